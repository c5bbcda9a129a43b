/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank with an HT group, handles and their tensors: generates the data, calls the public interface, and compares
 * every byte of every output with the model. A job of world.h opens a rig, runs scripts on it, closes it.
 */
#ifndef EP_TEST_ORACLE_HT_RIG_H
#define EP_TEST_ORACLE_HT_RIG_H

#include "nccl_ep_ext.h"
#include "test/oracle/buf.h"
#include "test/oracle/ht_model.h"

#define HT_HANDLES 4

/* Where tensors are: malloc'ed, in a registered window, addresses of ncclMemAlloc, or a random mix, different on every
 * rank. */
enum ht_where { HT_PLAIN, HT_WINDOW, HT_POINTER, HT_MIXED };
/* How a handle is created: InitHandle with K, with -1, or ncclEpCreateHandle. */
enum ht_init { HT_INIT_TOPK, HT_INIT_AUTO, HT_INIT_CREATE };
/* A second handle over the same handle_mem, without Update, runs everything except FWD dispatch. */
enum ht_twin { HT_TWIN_NONE, HT_TWIN_TOPK, HT_TWIN_AUTO };

struct ht_cfg {
	struct ht_shape shape;
	struct ll_data data; /* the cell's seed; each handle, round and operation derives its own */
	int handles;
	enum ht_where where;
	enum ht_init init;
	enum ht_twin twin; /* needs caller_mem */
	bool caller_mem;
	bool separate;	 /* GPU: every plain tensor is an allocation of its own, as on the CPU */
	bool skew;	 /* plain tokens are aligned to their elements only */
	bool own_stream; /* CPU: a host stream instead of the calling thread */
	bool stall;	 /* before some operations one rank sleeps up to 3 ms */
	bool scribble;	 /* in half of the rounds inputs are overwritten right after the call */
	bool idx64;
	int counters; /* 0: no layout_info, 32 or 64 bits */
	int count;    /* expert-major: the same for FWD dispatch, which writes counters of its own */
	bool pinned;  /* all of them in pinned host memory */
	int id_kind;  /* ncclEpExpertIdKind_t */
	int zero_copy;
	int overflow; /* ncclEpOverflowPolicy_t */
	int sms;
	int dispatch_sms, combine_sms; /* 0: as sms */
	int extra;		       /* extra rows of outputs */
	int spare;		       /* rows after the valid ones that are poisoned and checked; LL_ALL in tests */
	bool tall;		       /* tensors have the worst-case height in every round */
	bool backward;		       /* with backward operations */
	bool back_quant;	       /* with LL_QUANT_FWD: backward dispatch moves quantised rows and scales too */
	int biases;		       /* most that a combine has, 0 to 2; ranks and rounds differ */
	unsigned max_token_bytes;      /* 0: the largest row of the shape */
	bool tell_topk;		       /* config.num_topk */
};

enum ht_buf_id {
	HT_IDX,
	HT_COUNTS,
	HT_OFFSETS,
	HT_TOTAL,
	HT_SENT_COUNTS, /* of dispatch */
	HT_SENT_OFFSETS,
	HT_SENT_TOTAL,
	HT_TOKENS, /* dispatch */
	HT_SCALES,
	HT_WEIGHTS,
	HT_OUT,
	HT_OUT_SCALES,
	HT_OUT_IDX,
	HT_OUT_WEIGHTS,
	HT_ANSWERS, /* combine */
	HT_SUMS,
	HT_BIAS, /* of combines in both directions */
	HT_BIAS_2,
	HT_BACK, /* dispatch, backward */
	HT_BACK_SCALES,
	HT_OUT_BACK,
	HT_OUT_BACK_SCALES,
	HT_BACK_ANSWERS, /* combine, backward */
	HT_BACK_WEIGHTS,
	HT_BACK_SUMS,
	HT_OUT_BACK_WEIGHTS,
	HT_MEM,
	HT_BUFS
};

/* The operations, in the order of a round. In scripts: U D C E B. */
enum ht_op { HT_UPDATE, HT_DISPATCH, HT_COMBINE, HT_DISPATCH_BWD, HT_COMBINE_BWD, HT_OPS };

struct ht_state {
	bool loaded, pending; /* data is in place; outputs are to be checked */
	uint64_t seed;	      /* of its data */
	int serial;	      /* how often it was loaded */
};

struct ht_handle {
	ncclEpHandle_t handle, twin;
	struct slab slab, window;
	struct buf buf[HT_BUFS];
	enum slab_kind kind[HT_BUFS]; /* SLAB_NCCL: in the window, but given as an address */
	struct ll_data data;	      /* of the round: tokens and routing */
	struct ll_input *in;	      /* [ranks] */
	struct ht_plan *plan;	      /* [ranks] */
	int round;		      /* rounds started */
	struct ht_state op[HT_OPS];
	double init_seconds; /* duration of InitHandle or CreateHandle */
	bool created;	     /* CreateHandle has done the round's Update already */
	bool scribbled;	     /* inputs of the round do not outlive their operation */
};

struct ht_rig {
	struct seat *seat;
	struct ht_cfg cfg;
	ncclComm_t comm;
	struct shim shim;
	ncclEpGroup_t group;
	bool guest; /* comm, shim and group are another rig's */
	struct ht_handle handle[HT_HANDLES];
	struct ll_verdict verdict;
	double group_seconds; /* duration of CreateGroup */
	bool bad_ids;	      /* since the last check */
	uint64_t words;	      /* played */
	uint64_t crossed;     /* expected bytes given to the net so far */
	bool parted;	      /* the group has failed on some ranks: ht_close does not wait and ignores errors */
};

/* All collective: 0, or -1 after seat_fail. Wrong values are no failure; they count in the verdict. */
int ht_open(struct ht_rig *rig, struct seat *seat, const struct ht_cfg *cfg);
/* The same with the group of another rig, which outlives this one and has the same capacity and types: for handles of
 * different layouts or K on one group. */
int ht_join(struct ht_rig *rig, const struct ht_rig *host, const struct ht_cfg *cfg);
/* Also after a failure. */
int ht_close(struct ht_rig *rig);

/*
 * Words of an operation and a handle: U update (a new round with new tokens and routing), D dispatch, C combine, E and
 * B the same backward, small letters with send_only, x complete; handles are A to D. Everything is checked at the end,
 * and before an operation is repeated.
 */
int ht_script(struct ht_rig *rig, const char *script);
/* Waits for the stream and runs all pending checks. */
int ht_settle(struct ht_rig *rig);

/* The steps of a script, for timing. */
int ht_round(struct ht_rig *rig, int handle);			/* a new routing; loads Update */
int ht_load(struct ht_rig *rig, int handle, enum ht_op op);	/* new data, outputs poisoned */
int ht_scribble(struct ht_rig *rig, int handle, enum ht_op op); /* over the inputs */
ncclResult_t ht_call(struct ht_rig *rig, int handle, enum ht_op op, bool send_only);
int ht_check(struct ht_rig *rig, int handle, enum ht_op op);
/*
 * Bytes given to the net by all operations so far, as the engines count them: of every token one row per node to
 * dispatch and one to combine, and no more. Rigs that joined give theirs as `more`.
 */
int ht_check_crossed(struct ht_rig *rig, uint64_t more);
int ht_sync(struct ht_rig *rig);

/* A tensor as the library gets it; sizes are its own. */
struct ht_tensor {
	ncclEpTensor_t t;
	size_t sizes[2];
};

void ht_tensor(const struct ht_rig *rig, int handle, enum ht_buf_id id, struct ht_tensor *out);

/* All arguments of a call, to be modified by tests. Not to be copied: it points into itself. */
struct ht_args {
	struct ht_tensor tensor[HT_BUFS];
	ncclEpLayoutInfo_t update_info;
	ncclEpDispatchInputs_t dispatch_in;
	ncclEpDispatchOutputs_t dispatch_out;
	ncclEpLayoutInfo_t dispatch_info;
	ncclEpDispatchConfig_t dispatch;
	ncclEpCombineInputs_t combine_in;
	ncclEpCombineOutputs_t combine_out;
	ncclEpCombineConfig_t combine;
};

void ht_args(const struct ht_rig *rig, int handle, enum ht_op op, struct ht_args *args);
ncclResult_t ht_call_with(struct ht_rig *rig, int handle, enum ht_op op, struct ht_args *args);

/* -1 and seat_fail unless the result is ncclSuccess. */
int ht_expect(struct ht_rig *rig, const char *call, ncclResult_t got);
/* A call that must return `want`; anything else counts in the verdict. */
void ht_want(struct ht_rig *rig, const char *what, ncclResult_t want, ncclResult_t got);

/* ---- internal to the rig ---- */

extern const char *const ht_buf_names[HT_BUFS];
extern const char ht_words[HT_OPS];

int ht_bufs_open(struct ht_rig *rig, int handle);
void ht_bufs_close(struct ht_rig *rig, int handle);
size_t ht_row_bytes(const struct ht_rig *rig, enum ht_buf_id id);
/* Rows of a tensor: the most it can have, and in this round. */
size_t ht_rows_max(const struct ht_rig *rig, enum ht_buf_id id);
size_t ht_rows(const struct ht_rig *rig, int handle, enum ht_buf_id id);
/* The tensors of an operation, inputs or outputs, as a bit mask of enum ht_buf_id. */
unsigned ht_op_bufs(const struct ht_rig *rig, enum ht_op op, bool outputs);
struct buf_env ht_env(struct ht_rig *rig);
/* After an operation: adds the bytes that it gives to the net. */
void ht_crossed_add(struct ht_rig *rig, int handle, enum ht_op op);
/* Whether a dispatch of this round writes this counter: all of them, or some. */
bool ht_counted(const struct ht_rig *rig, int handle, enum ht_buf_id id);
/* Rows of a tensor that are poisoned and checked. */
size_t ht_rows_seen(const struct ht_rig *rig, int handle, enum ht_buf_id id);
/* Biases of this rank's combines in this round. */
int ht_biases(const struct ht_rig *rig, int handle);
/* A row of an input that the rig generates: combine's tokens, biases and weights, backward dispatch's tokens and
 * scales. */
void ht_back(const struct ht_rig *rig, int handle, struct ht_row row, enum ht_buf_id id, uint8_t *out);
void ht_answer(const struct ht_rig *rig, int handle, enum ht_op op, struct ht_row row, int64_t from, uint8_t *out);
float ht_gradient(const struct ht_rig *rig, int handle, int src, int token, int64_t expert);
/* The global expert or the rank that a row of this rank belongs to. */
int64_t ht_from(const struct ht_rig *rig, const struct ht_row *row);

/* The final result of a call on handle A: on the CPU its own, on a GPU that of the next call on the group. */
ncclResult_t ht_outcome(struct ht_rig *rig, enum ht_op op, struct ht_args *args);
/* After ht_close: wrong values fail the seat. -1 if it has failed. */
int ht_tell(struct ht_rig *rig);

#endif
