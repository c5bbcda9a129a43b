/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank with an LL group, handles and their tensors: generates the data, calls the public interface, and checks the
 * outputs by the oracle. A job of world.h opens a rig, runs scripts on it, closes it.
 */
#ifndef EP_TEST_ORACLE_RIG_H
#define EP_TEST_ORACLE_RIG_H

#include "nccl_ep_ext.h"
#include "test/oracle/buf.h"

#define RIG_HANDLES 4

struct rig_cfg {
	struct ll_shape shape;
	struct ll_data data; /* the cell's seed; each handle and round derives its own */
	int handles;
	bool windows;	 /* all tensors in registered windows, data NULL */
	bool skew;	 /* tokens are aligned to their elements only */
	bool own_stream; /* CPU: a host stream instead of the calling thread */
	bool no_counts;	 /* rank-major without src_rank_counters */
	bool create;	 /* ncclEpCreateHandle instead of Init and Update */
	bool caller_mem; /* handle_mem is the caller's */
	bool mask;
	int id_kind;   /* ncclEpExpertIdKind_t */
	int zero_copy; /* ncclEpZeroCopyMode_t */
	int sms;
	int dispatch_sms, combine_sms; /* 0: as sms */
	int spare;		       /* rows after the valid ones that are poisoned and checked; LL_ALL in tests */
	bool idx64;
	unsigned max_token_bytes;   /* 0: the largest row of the shape */
	unsigned long buffer_bytes; /* rdma_buffer_size; 0: automatic */
	int per_node;		    /* ranks per simulated node (far.h), to count bytes between nodes; 0: one node */
};

enum rig_buf_id {
	RIG_IDX,
	RIG_WEIGHTS, /* of dispatch in rank-major, of combine in expert-major */
	RIG_TOKENS,
	RIG_SCALES,
	RIG_OUT,
	RIG_OUT_SCALES,
	RIG_OUT_IDX,
	RIG_OUT_WEIGHTS,
	RIG_COUNTS,
	RIG_ANSWERS, /* combine's input */
	RIG_SUMS,
	RIG_MEM,
	RIG_BUFS
};

struct rig_handle {
	ncclEpHandle_t handle;
	struct buf buf[RIG_BUFS];
	struct ll_data data; /* of the current round */
	struct ll_input *in; /* [ranks] */
	struct ll_row *map;  /* [zones][cap]: where received rows came from */
	struct ll_expect expect;
	int round;
	bool loaded;	   /* inputs of the next dispatch are in place */
	bool fresh;	   /* and the handle knows its topk_idx */
	char staged;	   /* 'd', 'c' or 0 */
	bool rows_pending; /* dispatch's outputs are to be checked */
	bool sums_pending;
};

struct rig {
	struct seat *seat;
	struct rig_cfg cfg;
	ncclComm_t comm;
	struct shim shim;
	ncclEpGroup_t group;
	bool guest; /* comm, shim and group are another rig's */
	struct rig_handle handle[RIG_HANDLES];
	struct ll_verdict verdict;
	bool *active;	   /* [ranks]; all true at first */
	int async;	   /* expected ncclEpGetAsyncError, apart from bad ids; -1: not checked */
	bool bad_ids;	   /* since the last check */
	int stall_at;	   /* before this word of a script, from 1, */
	unsigned stall_us; /* this rank sleeps this long */
	uint64_t naps;	   /* seed, different on every rank: sleeps of 1 to 50 ms before every word; 0: none */
	uint64_t crossed;  /* expected bytes given to the net so far */
	bool parted;	   /* the group has failed, or ranks are lost: rig_close does not wait and ignores errors */
};

/* All collective: 0, or -1 after seat_fail. Wrong values are no failure; they count in the verdict. */
int rig_open(struct rig *rig, struct seat *seat, const struct rig_cfg *cfg);
/* The same with the group of another rig, which outlives this one: for handles of different layouts or K. */
int rig_join(struct rig *rig, const struct rig *host, const struct rig_cfg *cfg);
/* Also after a failure. */
int rig_close(struct rig *rig);

/*
 * Words of an operation and a handle: D dispatch, d its send half, C combine, c its send half, x complete; handles are
 * A to D. Everything is checked at the end, and before a combine that needs the rows.
 */
int rig_script(struct rig *rig, const char *script);
/* Sleeps as rig.naps asks for. */
void rig_nap(struct rig *rig);
/* Waits for the stream and runs all pending checks. */
int rig_settle(struct rig *rig);

/* The steps of a script, for timing. */
int rig_load(struct rig *rig, int handle);  /* new data for the next dispatch, outputs poisoned */
int rig_store(struct rig *rig, int handle); /* copies the round's data from host memory to the device */
int rig_update(struct rig *rig, int handle);
ncclResult_t rig_dispatch(struct rig *rig, int handle, bool send_only);
ncclResult_t rig_combine(struct rig *rig, int handle, bool send_only);
ncclResult_t rig_complete(struct rig *rig, int handle);
int rig_check_rows(struct rig *rig, int handle);
int rig_answer(struct rig *rig, int handle); /* combine's input, for the rows that rig_check_rows found */
int rig_check_sums(struct rig *rig, int handle);
int rig_sync(struct rig *rig);
/* All ranks, nothing staged, no rank masked: the library's counters against the model's bytes between nodes. */
int rig_check_crossed(struct rig *rig);

/* The group's mask must be rig->active. */
int rig_check_mask(struct rig *rig);
/* Starts a round by number and drops what was pending. Data depends on the number only, so ranks that missed rounds
 * agree with the others. */
void rig_set_round(struct rig *rig, int round);

/* A tensor as the library gets it; sizes are its own. */
struct rig_tensor {
	ncclEpTensor_t t;
	size_t sizes[3];
};

void rig_tensor(const struct rig *rig, int handle, enum rig_buf_id id, struct rig_tensor *out);

/* All arguments of a call, to be modified by tests. Not to be copied: it points into itself. */
struct rig_dispatch_args {
	struct rig_tensor tensor[RIG_BUFS];
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info;
	ncclEpDispatchConfig_t config;
};

struct rig_combine_args {
	struct rig_tensor answers, sums, weights;
	ncclEpCombineInputs_t in;
	ncclEpCombineOutputs_t out;
	ncclEpCombineConfig_t config;
};

void rig_dispatch_args(const struct rig *rig, int handle, struct rig_dispatch_args *args);
void rig_combine_args(const struct rig *rig, int handle, struct rig_combine_args *args);

/* After rig_close: wrong values fail the seat. -1 if it has failed. */
int rig_tell(struct rig *rig);
/* -1 and seat_fail unless the result is ncclSuccess. */
int rig_expect(struct rig *rig, const char *call, ncclResult_t got);

#endif
