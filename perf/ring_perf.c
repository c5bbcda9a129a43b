/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rate of commands from kernels into one host thread, including claims and credits; the rate of the stores alone for
 * comparison; and the round trip from a kernel to the host and back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/perf_tool.h"
#include "test/rig/ring_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define POP_MAX 64 /* as an engine */
#define WARPS 4	   /* per block */

struct options {
	uint32_t producers, rings, entries; /* producers and rings 0: by device */
	uint64_t commands;
	int kind; /* enum ep_dev_kind; EP_DEV_KINDS: CUDA if available */
};

struct row {
	const char *name;
	uint32_t mode, batch;
	uint32_t producers; /* 0: as given by -p */
	uint64_t fraction;  /* divides the number of commands, for slow modes */
	double us, rate;    /* total time; commands per microsecond */
	uint64_t count, wrong;
};

/* An order-independent checksum, cheap enough to compute while popping. */
struct sum {
	uint64_t count, bits, src;
};

static void sum_add(struct sum *s, const struct ep_cmd *cmd)
{
	s->count++;
	s->bits ^= cmd->half[0];
	s->src += cmd->half[1];
}

/* Pops until all have arrived or the kernels have ended; the time from the first to the last. */
static uint64_t consume(struct ring_rig *rig, const struct rig_job *job, int jobs, uint64_t total, struct sum *s)
{
	struct ep_cmd cmd[POP_MAX];
	uint64_t first = 0;
	int late = 0;

	while (s->count < total) {
		uint64_t before = s->count;
		int ended = 0;

		for (uint32_t r = 0; r < rig->rings; r++) {
			int n = ep_ring_pop(&rig->ring[r], cmd, POP_MAX);

			if (n < 0)
				return 0;
			for (int i = 0; i < n; i++)
				sum_add(s, &cmd[i]);
			if (n > 0)
				ep_ring_complete(&rig->ring[r], (uint32_t)n);
		}
		if (s->count != before) {
			first = first ? first : ep_now_ns();
			continue;
		}
		for (int j = 0; j < jobs; j++)
			ended += rig_ended(&job[j]);
		/* Poll once more: the last commands may have arrived meanwhile. */
		if (ended == jobs && late++)
			break;
	}
	return first ? ep_now_ns() - first : 0;
}

static uint64_t count_wrong(const struct sum *got, uint32_t producers, uint32_t count)
{
	struct sum must = { .count = 0 };

	for (uint32_t p = 0; p < producers; p++)
		for (uint32_t i = 0; i < count; i++) {
			struct ep_cmd cmd = ep_ring_push_cmd(p, i);

			sum_add(&must, &cmd);
		}
	if (got->count != must.count)
		return got->count > must.count ? got->count - must.count : must.count - got->count;
	return got->bits != must.bits || got->src != must.src;
}

/* On the CPU device each launch is a thread; on a GPU one launch has all producers. */
static int start_jobs(struct ring_rig *rig, const struct row *row, uint32_t producers, uint32_t count,
		      struct rig_job *job)
{
	uint32_t jobs = rig->dev->warp > 1 ? 1 : producers < RIG_JOBS ? producers : RIG_JOBS, first = 0;

	for (uint32_t j = 0; j < jobs; j++) {
		uint32_t items = producers / jobs + (j < producers % jobs);

		job[j] = (struct rig_job){ .rig = rig,
					   .index = (int)j,
					   .grid = (items + WARPS - 1) / WARPS,
					   .warps = items < WARPS ? items : WARPS };
		job[j].args = (struct ep_ring_push_args){ .first = first,
							  .items = items,
							  .count = count,
							  .batch = row->batch,
							  .mode = row->mode,
							  .timeout_ns = 10000000000ull };
		first += items;
		/* Producers that did not start show up in the count. */
		if (rig_start(&job[j]))
			return (int)j;
	}
	return (int)jobs;
}

static int measure(const struct options *opt, struct row *row, uint64_t commands)
{
	uint32_t producers = row->producers ? row->producers : opt->producers;
	uint32_t count = (uint32_t)(commands / row->fraction / producers) + 1;
	struct rig_job job[RIG_JOBS];
	struct ring_rig rig;
	struct sum got = { .count = 0 };
	uint64_t ns = 0, failed, most = 0;
	int jobs, rc = 0;

	if (rig_open(&rig, opt->kind, opt->rings, opt->entries, 0, 0))
		return -1;
	row->count = (uint64_t)producers * count;
	jobs = start_jobs(&rig, row, producers, count, job);
	if (row->mode != EP_PUSH_RAW)
		ns = consume(&rig, job, jobs, row->count, &got);
	for (int j = 0; j < jobs; j++) {
		rc |= rig_join(&job[j], &failed);
		rc |= failed != 0;
		most = job[j].wall_ns > most ? job[j].wall_ns : most;
	}
	if (row->mode == EP_PUSH_RAW)
		ns = most; /* includes the launch: microseconds of milliseconds */
	if (row->mode == EP_PUSH_ECHO)
		ns = rig_page(&rig)->report[0].echo_ns;
	row->wrong = row->mode == EP_PUSH_RAW ? 0 : count_wrong(&got, producers, count);
	row->us = (double)ns / 1e3;
	row->rate = ns ? (double)row->count * 1e3 / (double)ns : 0;
	rig_close(&rig);
	return rc ? -1 : 0;
}

static void print_row(const struct options *opt, const struct row *row)
{
	uint32_t producers = row->producers ? row->producers : opt->producers;

	printf("  %-24s %9u %6u %10llu %12.1f %10.2f %10.3f %7llu\n", row->name, producers,
	       producers < opt->rings ? producers : opt->rings, row->count + 0ull, row->us, row->rate,
	       row->us / (double)row->count, row->wrong + 0ull);
	fflush(stdout);
}

static int run(const struct options *opt)
{
	struct row rows[] = {
		{ .name = "one thread", .mode = EP_PUSH_THREAD, .batch = 1, .producers = 1, .fraction = 8 },
		{ .name = "one thread, 16 a claim",
		  .mode = EP_PUSH_THREAD,
		  .batch = 16,
		  .producers = 1,
		  .fraction = 4 },
		{ .name = "first lanes", .mode = EP_PUSH_THREAD, .batch = 1, .fraction = 1 },
		{ .name = "first lanes, 16 a claim", .mode = EP_PUSH_THREAD, .batch = 16, .fraction = 1 },
		{ .name = "whole warps", .mode = EP_PUSH_WARP, .batch = 1, .fraction = 1 },
		{ .name = "stores alone", .mode = EP_PUSH_RAW, .batch = 1, .fraction = 1 },
		{ .name = "stores alone, one warp", .mode = EP_PUSH_RAW, .batch = 1, .producers = 1, .fraction = 4 },
		{ .name = "round trip", .mode = EP_PUSH_ECHO, .batch = 1, .producers = 1, .fraction = 100 },
	};
	uint64_t wrong = 0;

	printf("# ring_perf " EP_VERSION ", device %s, %u entries per ring, one consuming thread, %d at a time\n",
	       ep_dev_row(opt->kind)->name, opt->entries, POP_MAX);
	printf("# time is from the first command popped to the last; for stores alone the kernel's, for round trips "
	       "their sum\n#\n");
	printf("# %-24s %9s %6s %10s %12s %10s %10s %7s\n# %-24s %9s %6s %10s %12s %10s %10s %7s\n", "way", "producers",
	       "rings", "commands", "time", "rate", "each", "#wrong", "", "", "", "", "(us)", "(M/s)", "(us)", "");
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		/* A short warm-up first. */
		if (measure(opt, &rows[i], opt->commands / 10) || measure(opt, &rows[i], opt->commands)) {
			fprintf(stderr, "ring_perf: %s: %s\n", rows[i].name, ep_last_error());
			return 1;
		}
		print_row(opt, &rows[i]);
		wrong += rows[i].wrong;
	}
	return perf_end(-1, (long long)wrong);
}

/* clang-format off */
static const struct perf_arg args_rows[] = {
#define AT(member) offsetof(struct options, member)
	{ "producers", 'p', 0, ARG_INT, AT(producers), 0, 4096, NULL, "producing warps, CPU: threads (64, CPU 2)" },
	{ "rings", 'r', 0, ARG_INT, AT(rings), 0, RIG_RINGS, NULL, "rings (8, CPU 2)" },
	{ "entries", 'e', 0, ARG_INT, AT(entries), 1, 1 << 30, NULL, "entries per ring, a power of two (4096)" },
	{ "commands", 'n', 0, ARG_U64, AT(commands), 1000, 1000000000, NULL, "total commands (4000000)" },
	{ "device", 'D', 0, ARG_WORD, AT(kind), 0, EP_DEV_KINDS, "host cuda", "host or cuda (cuda if there is one)" },
	{ "help", 'h', 0, ARG_HELP, 0, 0, 0, NULL, "this text" },
#undef AT
};
/* clang-format on */
_Static_assert(EP_DEV_HOST == 0 && EP_DEV_CUDA == 1, "--device is an index");

static int parse(int argc, char **argv, struct options *opt)
{
	struct perf_args args = { .program = "ring_perf", .rows = args_rows, .count = PERF_ARGS_COUNT(args_rows) };
	int gpus = 0, rc;

	*opt = (struct options){ .entries = 4096, .commands = 4000000, .kind = EP_DEV_KINDS };
	rc = perf_args_take(&args, opt, argc, argv);
	if (opt->kind == EP_DEV_KINDS)
		opt->kind = ep_dev_row(EP_DEV_CUDA)->count(&gpus) || gpus == 0 ? EP_DEV_HOST : EP_DEV_CUDA;
	if (opt->producers == 0)
		opt->producers = opt->kind == EP_DEV_CUDA ? 64 : 2;
	if (opt->rings == 0)
		opt->rings = opt->kind == EP_DEV_CUDA ? 8 : 2;
	return rc;
}

int main(int argc, char **argv)
{
	struct options opt;
	int rc = parse(argc, argv, &opt);

	if (rc)
		return rc < 0 ? 2 : 0;
	return run(&opt);
}
