/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by ep_perf and mpi_alltoallv_perf: options, table rows, printing. */
#ifndef EP_PERF_PERF_H
#define EP_PERF_PERF_H

#include <stdio.h>

#include "test/oracle/model.h"

enum perf_algorithm { PERF_LL, PERF_HT };
enum perf_layout { PERF_EXPERT_MAJOR, PERF_RANK_MAJOR, PERF_FLAT };

enum perf_phase {
	PERF_UPDATE,
	PERF_DISPATCH,
	PERF_COMBINE,
	PERF_DISPATCH_BWD,
	PERF_COMBINE_BWD,
	PERF_DISPATCH_SEND,
	PERF_DISPATCH_RECV,
	PERF_COMBINE_SEND,
	PERF_COMBINE_RECV,
	PERF_GRAPH, /* dispatch and combine, one launch */
	PERF_ALLTOALLV,
	PERF_PHASES
};
extern const char *const perf_phase_names[PERF_PHASES], *const perf_quant_names[], *const perf_layout_names[];

/* Which programs take an option; ep_perf is the first two. */
enum perf_use { PERF_FOR_LL = 1 << PERF_LL, PERF_FOR_HT = 1 << PERF_HT, PERF_FOR_MPI = 1 << 2 };

struct perf_opts {
	const char *program, *title;			/* title NULL: the algorithm's name */
	const char *launcher;				/* that started the ranks; NULL: the program does */
	bool quiet;					/* print no errors: another rank does */
	uint64_t given;					/* bits: rows of the option table */
	int algorithm, layout, dtype, quant, zero_copy; /* enums; zero_copy as ncclEpZeroCopyMode_t */
	int first, last, factor;			/* tokens */
	int ranks;
	bool processes;
	size_t hidden;
	int topk, experts;
	int align, max_recv; /* HT; max_recv 0: room for the worst case */
	bool eager, drop, bwd;
	int graph_rounds; /* dispatches and combines in a graph; 0: 1 */
	bool staged, graph, graph_update, windows, separate, check;
	bool memcpy, puts;		    /* run the reference too; puts: by the net, one rank per node */
	int sms, dispatch_sms, combine_sms; /* of the latter two 0: as sms */
	int iterations, warmup;
	int idle;	      /* ranks without tokens, the last ones */
	double zipf;	      /* exponent of skewed routing; 0: uniform */
	bool each;	      /* a row per rank too */
	double bandwidth;     /* memory bandwidth of the device in GB/s, for the limit */
	double rate, latency; /* of a NIC, in Gb/s and us, for the limit; 0: as the transport's options say */
	uint64_t seed;
	char device[16];
	const char *json;
};

/* 0; 1 after help; -1 for an error, which has been printed. use: enum perf_use. */
int perf_opts_take(struct perf_opts *opts, unsigned use, int argc, char **argv);
/* Sets the defaults, which depend on the device, and checks the combination; 0, or -1 as above. */
int perf_opts_settle(struct perf_opts *opts, unsigned use, bool gpu);

/* The phases of a run of ep_perf, in table order; ends with PERF_PHASES. */
const enum perf_phase *perf_phases(const struct perf_opts *opts);
/* Of which a step of the phase consists. */
int perf_rounds(const struct perf_opts *opts);

/* The transport of a run across nodes. */
struct perf_net {
	char name[64]; /* "": the run has one node */
	char device[64];
	bool ordered, direct;
	double rate, latency; /* Gb/s, us; 0: unknown */
};

/* A phase of such a run. Of a rank: sums over its rounds. Of a row: counts per round, times per operation in us since
 * the kernel began, as anyEpNetTimes_t has them. */
struct perf_far {
	int rounds; /* 0: not measured */
	double bytes, commands, puts, signals;
	double operations, popped, given, completed, ended;
	double arrivals, arrived;
	double wire_us; /* of a row: the limit; < 0: unknown */
};

/* A row of the table: maxima over ranks, averaged over iterations. Times are in microseconds. */
struct perf_row {
	int tokens;
	enum perf_phase phase;
	double bytes;	  /* per rank; 0: the phase moves no rows */
	double remote;	  /* of these bytes: from other ranks */
	double device_us; /* < 0: not measured there */
	double host_us, algbw, busbw;
	double p50_us, p99_us;		/* of the slowest ranks of the iterations */
	double beside_us;		/* CPU: the reference; GPU: the bandwidth limit; < 0: none */
	double best_us, beside_best_us; /* the fastest iteration: least disturbed by other load */
	int64_t wrong;			/* -1: not checked */
	struct perf_far far;
};

/* One rank's part of a row. */
struct perf_each {
	int rank;
	double bytes, remote;
	double mean_us, p50_us, p99_us, worst_us;
	uint64_t window; /* memory of its group; UINT64_MAX: unknown */
	int64_t wrong;
	char host[32];
};

/* Known after the first size. */
struct perf_facts {
	const char *device; /* "cuda", "host" */
	const char *beside; /* title of that column, or "" */
	uint64_t window;    /* bytes of the rank that has most; UINT64_MAX: unknown */
	struct perf_net net;
	double group_us, first_us,
		later_us; /* creation of the group, its first and a later handle; < 0: not measured */
};

void perf_print_head(const struct perf_opts *opts);
void perf_print_facts(const struct perf_opts *opts, const struct perf_facts *facts);
void perf_print_row(const struct perf_opts *opts, const struct perf_row *row);
void perf_print_each(const struct perf_each *each, int count);
/* The value below which a part of the samples is, by the nearest rank; sorts them. */
double perf_percentile(double *samples, int count, double part);
void perf_print_end(const struct perf_facts *facts, const struct perf_row *rows, int count);
/* Nothing in a run of one node, as perf_json_net and perf_json_far. */
void perf_print_far(const struct perf_facts *facts, const struct perf_row *rows, int count);
void perf_json_net(FILE *out, const struct perf_net *net);
void perf_json_far(FILE *out, const struct perf_row *row);
/* What JSON is made of; each[ranks] per row, or NULL. */
struct perf_report {
	const struct perf_opts *opts;
	const struct perf_facts *facts;
	const struct perf_row *rows;
	const struct perf_each *each;
	int count;
};
/* 0 or -1 with a line on stderr. */
int perf_write_json(const struct perf_report *report);
/* A line that the next one replaces, where standard output is a terminal, and not more than ten times a second. */
void perf_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void perf_progress_end(void);

#endif
