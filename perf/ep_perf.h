/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of ep_perf: jobs, the board on which a rank leaves its results, timing. */
#ifndef EP_PERF_EP_PERF_H
#define EP_PERF_EP_PERF_H

#include "nccl_ep.h"
#include "perf/perf_data.h"
#include "test/oracle/nodes.h"
#include "test/oracle/shim.h"
#include "test/oracle/world.h"

struct perf_sample {
	double device, host; /* device < 0: not measured there */
};

/* A rank's results. */
struct perf_rank {
	double bytes[PERF_PHASES];	     /* of rows received or returned */
	double remote[PERF_PHASES];	     /* of these: from other ranks, or to them */
	double traffic[PERF_PHASES];	     /* minimum memory traffic of the phase; 0: not known */
	int64_t wrong[PERF_PHASES];	     /* -1: not checked */
	uint64_t window;		     /* bytes; UINT64_MAX: unknown */
	double group_us, first_us, later_us; /* as in struct perf_facts */
	int device;			     /* -1: the CPU */
	char host[32];
	struct far_nodes nodes; /* HT */
	struct perf_net net;
	struct perf_far far[PERF_PHASES];
};

/* Results of all phases. A rank fills its own part; perf_board_gather gives every rank all of them. */
struct perf_board {
	int iterations;
	size_t part; /* bytes: struct perf_rank, samples [phase][iteration], the same for the reference program */
	uint8_t *own, *all;
	uint8_t *shared; /* by all ranks of one host, where perf_shared_bytes() is not 0 */
};

/* 0, or -1 after seat_fail. */
int perf_board_open(const struct perf_opts *opts, struct seat *seat, struct perf_board *out);
void perf_board_close(struct perf_board *board);
int perf_board_gather(struct perf_board *board, struct seat *seat);
struct perf_rank *perf_own(const struct perf_board *board);
struct perf_sample *perf_own_sample(const struct perf_board *board, enum perf_phase phase, int iteration);
struct perf_sample *perf_own_plain(const struct perf_board *board, enum perf_phase phase, int iteration);
const struct perf_rank *perf_board_rank(const struct perf_board *board, int rank);
const struct perf_sample *perf_board_sample(const struct perf_board *board, enum perf_phase phase, int iteration,
					    int rank);

/* Bytes of a rank's window in the reference program. */
size_t perf_window_bytes(const struct perf_opts *opts);
/* With -a ht -P: memory that stands for a rank's tensors, as far as other ranks access them. */
size_t perf_rows_bytes(const struct perf_opts *opts);
/* Whether the reference program needs memory that all ranks share, and how much. */
bool perf_needs_shared(const struct perf_opts *opts);
size_t perf_shared_bytes(const struct perf_opts *opts);
uint8_t *perf_shared_window(const struct perf_board *board, const struct perf_opts *opts, int rank);
uint8_t *perf_shared_rows(const struct perf_board *board, const struct perf_opts *opts, int rank);

void perf_row_make(const struct perf_opts *opts, const struct perf_board *board, int tokens, enum perf_phase phase,
		   struct perf_row *out);
/* What each rank had of it, to out[ranks]. */
int perf_each_make(const struct perf_opts *opts, const struct perf_board *board, enum perf_phase phase,
		   struct perf_each *out);
void perf_facts_make(const struct perf_opts *opts, const struct perf_board *board, struct perf_facts *out);

/* One size on one rank: `tokens` of each. */
struct perf_job {
	struct perf_opts opts;
	int tokens;
	struct perf_board *board;
};

int perf_ll_job(struct seat *seat, const struct perf_job *job);
int perf_ht_job(struct seat *seat, const struct perf_job *job);
int perf_plain_job(struct seat *seat, const struct perf_job *job); /* the copies of LL by memcpy or by puts */
int perf_puts_job(struct seat *seat, const struct perf_job *job);  /* the puts of HT */

/* Clears the results; sets the device of the job's communicator. */
void perf_rank_init(const struct perf_opts *opts, int device, struct perf_rank *out);

/* Launches a phase of one rank without waiting. 0, or -1 after seat_fail. */
struct perf_play {
	struct seat *seat;
	struct shim *shim;
	const struct perf_opts *opts;
	const struct perf_board *board;
	int tokens; /* for the progress line */
	int (*step)(void *rig, enum perf_phase phase);
	void *rig;
};

struct perf_play perf_play_of(const struct perf_job *job, struct seat *seat, struct shim *shim,
			      int (*step)(void *rig, enum perf_phase phase), void *rig);

/* Times all phases, warm-up and iterations, into the board: on the host, and on a GPU on the device too. */
int perf_time(const struct perf_play *play);
/* After it, collective: rounds that measure the transport, where the group uses one. */
int perf_far_run(const struct perf_play *play, ncclEpGroup_t group, struct perf_rank *out);
void perf_far_row(const struct perf_opts *opts, const struct perf_board *board, enum perf_phase phase,
		  struct perf_row *row);
/* Waits for the stream. */
int perf_sync(const struct perf_play *play);

/* The multiprocessors that the net sm takes; 0: NCCL_EP_NET names another net. */
unsigned perf_nic_sms(const char *net);
/* 0, or -1 if ranks and net do not fit on a GPU of so many multiprocessors, which has been printed. */
int perf_nic_fits(const struct perf_opts *opts, unsigned nic, unsigned gpu);
/* The same for NCCL_EP_NET and GPU 0. */
int perf_nic_check(const struct perf_opts *opts);

#endif
