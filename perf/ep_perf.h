/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of ep_perf share: options, the memory in which ranks leave their figures, one row of the table. */
#ifndef EP_PERF_EP_PERF_H
#define EP_PERF_EP_PERF_H

#include <stdio.h>

#include "test/oracle/rig.h"

enum perf_phase {
	PERF_DISPATCH,
	PERF_COMBINE,
	PERF_DISPATCH_SEND,
	PERF_DISPATCH_RECV,
	PERF_COMBINE_SEND,
	PERF_COMBINE_RECV,
	PERF_GRAPH, /* dispatch and combine, one launch */
	PERF_PHASES
};

struct perf_opts {
	bool ht;
	int first, last, factor; /* tokens */
	int ranks;
	bool processes;
	size_t hidden;
	int topk, experts; /* experts 0: 32 per rank */
	enum ll_layout layout;
	enum num_type dtype;
	enum ll_quant quant;
	bool staged, graph, windows, check, memcpy;
	int sms, iterations, warmup;
	double bandwidth; /* GB/s of the device, for the limit by bytes */
	uint64_t seed;
	char device[16];
	const char *json;
};

/* Times are microseconds everywhere. */
struct perf_sample {
	double device, host; /* device < 0: not measured there */
};

/* What a rank leaves behind. */
struct perf_rank {
	uint64_t rows;	   /* received */
	uint64_t pairs;	   /* (token, destination rank) sent */
	uint64_t wrong[2]; /* dispatch, combine */
	uint64_t window;   /* bytes; UINT64_MAX: the library does not say */
	bool gpu;
};

/* On the world's board: struct perf_rank [ranks], then samples [phase][iteration][rank]. */
size_t perf_board_size(const struct perf_opts *opts);
struct perf_rank *perf_board_rank(void *board, int rank);
struct perf_sample *perf_board_sample(void *board, const struct perf_opts *opts, enum perf_phase phase, int iteration,
				      int rank);
/* The plain program's times, beside the others. */
struct perf_sample *perf_board_plain(void *board, const struct perf_opts *opts, enum perf_phase phase, int iteration,
				     int rank);
/* Shared memory of the plain program: the window of a rank. */
uint8_t *perf_board_window(void *board, const struct perf_opts *opts, int rank);

/* One job: all ranks, `tokens` each. */
struct perf_job {
	struct perf_opts opts;
	int tokens;
};

void perf_shape(const struct perf_opts *opts, struct ll_shape *shape);
int perf_ll_job(struct seat *seat, const void *job);
int perf_plain_job(struct seat *seat, const void *job);

/* The phases of a run, in the order of the table; PERF_PHASES ends the list. */
const enum perf_phase *perf_phases(const struct perf_opts *opts);
extern const char *const perf_phase_names[PERF_PHASES];

/* A row of the table: maxima over ranks, averaged over iterations. */
struct perf_row {
	int tokens;
	enum perf_phase phase;
	double bytes; /* per rank */
	double device_us, host_us, algbw;
	double beside_us;		/* CPU: the plain program; GPU: the limit by bytes; < 0: none */
	double best_us, beside_best_us; /* the fastest iterations: what is left when nobody else uses the machine */
	int64_t wrong;			/* -1: not checked */
};

void perf_row_make(const struct perf_opts *opts, void *board, int tokens, enum perf_phase phase, struct perf_row *out);

void perf_print_head(const struct perf_opts *opts);
/* Once the first job is through: what the device and the windows are. */
void perf_print_facts(const struct perf_opts *opts, void *board);
void perf_print_row(const struct perf_row *row);
void perf_print_end(const struct perf_opts *opts, void *board, const struct perf_row *rows, int count);
/* 0 or -1 with a line on stderr. */
int perf_write_json(const struct perf_opts *opts, void *board, const struct perf_row *rows, int count);

#endif
