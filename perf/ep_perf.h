/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of ep_perf: jobs, the board on which ranks leave their results, timing. */
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
	double traffic[PERF_PHASES];	     /* minimum memory traffic of the phase; 0: not known */
	int64_t wrong[PERF_PHASES];	     /* -1: not checked */
	uint64_t window;		     /* bytes; UINT64_MAX: unknown */
	double group_us, first_us, later_us; /* as in struct perf_facts */
	int device;			     /* -1: the CPU */
	struct far_nodes nodes;		     /* HT */
	struct perf_net net;
	struct perf_far far[PERF_PHASES];
};

/* On the world's board: struct perf_rank [ranks], then samples [phase][iteration][rank]. */
size_t perf_board_size(const struct perf_opts *opts);
struct perf_rank *perf_board_rank(void *board, int rank);
struct perf_sample *perf_board_sample(void *board, const struct perf_opts *opts, enum perf_phase phase, int iteration,
				      int rank);
/* The same for the reference program. */
struct perf_sample *perf_board_plain(void *board, const struct perf_opts *opts, enum perf_phase phase, int iteration,
				     int rank);
/* Bytes of a rank's window in the reference program. */
size_t perf_window_bytes(const struct perf_opts *opts);
/* Shared memory of the reference program: a rank's window, or its card (ep_perf_wire.h). */
uint8_t *perf_board_window(void *board, const struct perf_opts *opts, int rank);
/* With -a ht -P: shared memory that stands for a rank's tensors, as far as other ranks access them. */
size_t perf_rows_bytes(const struct perf_opts *opts);
uint8_t *perf_board_rows(void *board, const struct perf_opts *opts, int rank);

void perf_row_make(const struct perf_opts *opts, void *board, int tokens, enum perf_phase phase, struct perf_row *out);
void perf_facts_make(const struct perf_opts *opts, void *board, struct perf_facts *out);

/* One job: all ranks, `tokens` each. */
struct perf_job {
	struct perf_opts opts;
	int tokens;
};

int perf_ll_job(struct seat *seat, const void *job);
int perf_ht_job(struct seat *seat, const void *job);
int perf_plain_job(struct seat *seat, const void *job); /* the copies of LL by memcpy or by puts */
int perf_puts_job(struct seat *seat, const void *job);	/* the puts of HT */

/* Clears the results; sets the device of the job's communicator. */
void perf_rank_init(const struct perf_opts *opts, int device, struct perf_rank *out);

/* Launches a phase of one rank without waiting. 0, or -1 after seat_fail. */
struct perf_play {
	struct seat *seat;
	struct shim *shim;
	const struct perf_opts *opts;
	int (*step)(void *rig, enum perf_phase phase);
	void *rig;
};

/* Times all phases, warm-up and iterations, into the board: on the host, and on a GPU on the device too. */
int perf_time(const struct perf_play *play);
/* After it, collective: rounds that measure the transport, where the group uses one. */
int perf_far_run(const struct perf_play *play, ncclEpGroup_t group, struct perf_rank *out);
void perf_far_row(const struct perf_opts *opts, void *board, enum perf_phase phase, struct perf_row *row);
/* Waits for the stream. */
int perf_sync(const struct perf_play *play);

/* The multiprocessors that the net sm takes; 0: NCCL_EP_NET names another net. */
unsigned perf_nic_sms(const char *net);
/* 0, or -1 if ranks and net do not fit on a GPU of so many multiprocessors, which has been printed. */
int perf_nic_fits(const struct perf_opts *opts, unsigned nic, unsigned gpu);
/* The same for NCCL_EP_NET and GPU 0. */
int perf_nic_check(const struct perf_opts *opts);

#endif
