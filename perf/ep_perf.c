/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time and bandwidth of dispatch and combine, in the style of nccl-tests: one line per size from -b to -e, every value
 * checked against the oracle, JSON on request. Exit status 0; 1 for a wrong value or a failed call; 2 for a bad option.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/ep_perf.h"

#define JOB_SECONDS 600.0
#define ROWS_MAX 256
#define USE (PERF_FOR_LL | PERF_FOR_HT)

struct table {
	struct perf_row row[ROWS_MAX];
	int count;
	struct perf_facts facts;
};

/* The device of the first communicator: the default sizes depend on it. */
static int probe_job(struct seat *seat, const void *arg)
{
	struct perf_rank *out = perf_board_rank(seat_board(seat), seat_rank(seat));
	ncclComm_t comm = seat_comm(seat);

	(void)arg;
	if (!comm)
		return -1;
	if (ncclCommCuDevice(comm, &out->device) != ncclSuccess)
		return seat_fail(seat, "ncclCommCuDevice: %s", ncclGetLastError(comm));
	return 0;
}

static int run_job(struct world *world, const struct perf_opts *opts, int tokens, world_fn fn, const char *what)
{
	struct perf_job job = { .opts = *opts, .tokens = tokens };

	if (!world_run(world, opts->ranks, fn, &job, sizeof(job), JOB_SECONDS))
		return 0;
	fprintf(stderr, "ep_perf: %s: %s\n", what, world_text(world));
	return -1;
}

static int run_size(struct world *world, const struct perf_opts *opts, int tokens, struct table *table)
{
	void *board = world_board(world);
	char what[64];

	snprintf(what, sizeof(what), "%d tokens", tokens);
	if (run_job(world, opts, tokens, opts->algorithm == PERF_HT ? perf_ht_job : perf_ll_job, what))
		return -1;
	snprintf(what, sizeof(what), "%d tokens, plain copies", tokens);
	if ((opts->memcpy || opts->puts) && perf_board_rank(board, 0)->device < 0 &&
	    run_job(world, opts, tokens, opts->algorithm == PERF_HT ? perf_puts_job : perf_plain_job, what))
		return -1;
	if (!table->count) {
		perf_facts_make(opts, board, &table->facts);
		perf_print_facts(opts, &table->facts);
	}
	for (const enum perf_phase *p = perf_phases(opts); *p != PERF_PHASES && table->count < ROWS_MAX; p++) {
		struct perf_row *row = &table->row[table->count++];

		perf_row_make(opts, board, tokens, *p, row);
		perf_print_row(opts, row);
	}
	return 0;
}

static int sweep(struct world *world, const struct perf_opts *opts)
{
	struct table table = { .count = 0 };
	int rc = 0;

	perf_print_head(opts);
	for (int tokens = opts->first; tokens <= opts->last && !rc; tokens = tokens ? tokens * opts->factor : 1)
		rc = run_size(world, opts, tokens, &table);
	if (!table.count)
		return -1;
	perf_print_end(&table.facts, table.row, table.count);
	if (opts->json && perf_write_json(opts, &table.facts, table.row, table.count))
		rc = -1;
	for (int i = 0; i < table.count; i++)
		rc |= table.row[i].wrong > 0;
	return rc;
}

int main(int argc, char **argv)
{
	struct perf_opts given = { .program = "ep_perf",
				   .factor = 2,
				   .ranks = 1,
				   .topk = 8,
				   .check = true,
				   .iterations = 20,
				   .warmup = 5,
				   .bandwidth = 4300,
				   .seed = 1 },
			 opts;
	struct world_opts world_opts;
	struct world *world;
	int rc = perf_opts_take(&given, USE, argc, argv);

	if (rc)
		return rc > 0 ? 0 : 2;
	opts = given;
	if (perf_opts_settle(&opts, USE, false))
		return 2;
	setenv("NCCL_EP_DEVICE", opts.device[0] ? opts.device : "auto", opts.device[0] != 0);
	if (opts.puts && opts.algorithm == PERF_LL)
		setenv("NCCL_EP_RANKS_PER_NODE", "1", 1);
	setenv("NCCL_EP_DEBUG", "WARN", 0);
	world_opts = (struct world_opts){ .seats = opts.ranks,
					  .processes = opts.processes,
					  .board = perf_board_size(&opts) };
	if (world_open(&world_opts, &world))
		return 1;
	rc = run_job(world, &opts, 0, probe_job, "looking for the device");
	if (!rc && perf_board_rank(world_board(world), 0)->device >= 0) {
		opts = given;
		rc = perf_opts_settle(&opts, USE, true) || perf_nic_check(&opts);
	}
	if (!rc)
		rc = sweep(world, &opts);
	return world_close(world) || rc ? 1 : 0;
}
