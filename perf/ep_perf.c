/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time and bandwidth of dispatch and combine, in the style of nccl-tests: one line per size from -b to -e, every value
 * checked against the oracle, JSON on request. Its ranks are threads (-t) or processes (-g) of this host, or one
 * process each of a launcher (perf/launch.h). Rank 0 prints. Exit status 0; 1 for a wrong value or a failed call; 2 for
 * a bad option.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/ep_perf.h"
#include "perf/launch.h"

#define SIZE_SECONDS 600.0
#define ROWS_MAX 256
#define USE (PERF_FOR_LL | PERF_FOR_HT)

struct table {
	struct perf_row row[ROWS_MAX];
	struct perf_each *each; /* rank 0: [ROWS_MAX][ranks] */
	int count;
	struct perf_facts facts;
};

/* Runs on every rank. */
struct start {
	struct perf_opts given, opts; /* before and after the defaults of the CPU */
};

static int run_size(struct seat *seat, struct perf_job *job, struct table *table)
{
	const struct perf_opts *opts = &job->opts;
	bool ht = opts->algorithm == PERF_HT, prints = !seat_rank(seat);

	if (ht ? perf_ht_job(seat, job) : perf_ll_job(seat, job))
		return -1;
	if ((opts->memcpy || opts->puts) && perf_own(job->board)->device < 0 &&
	    (ht ? perf_puts_job(seat, job) : perf_plain_job(seat, job)))
		return -1;
	if (perf_board_gather(job->board, seat))
		return -1;
	if (!table->count) {
		perf_facts_make(opts, job->board, &table->facts);
		if (prints)
			perf_print_facts(opts, &table->facts);
	}
	for (const enum perf_phase *p = perf_phases(opts); *p != PERF_PHASES && table->count < ROWS_MAX; p++) {
		struct perf_each *each = prints ? table->each + (size_t)table->count * (size_t)opts->ranks : NULL;
		struct perf_row *row = &table->row[table->count++];

		perf_row_make(opts, job->board, job->tokens, *p, row);
		if (!prints)
			continue;
		if (perf_each_make(opts, job->board, *p, each))
			return seat_fail(seat, "out of memory");
		perf_print_row(opts, row);
		if (opts->each)
			perf_print_each(each, opts->ranks);
	}
	return 0;
}

static int sweep(struct seat *seat, struct perf_job *job, struct table *table)
{
	const struct perf_opts *opts = &job->opts;
	bool prints = !seat_rank(seat);
	int rc = 0;

	if (prints) {
		table->each = calloc((size_t)ROWS_MAX * (size_t)opts->ranks, sizeof(*table->each));
		if (!table->each)
			return seat_fail(seat, "out of memory");
		perf_print_head(opts);
	}
	for (int tokens = opts->first; tokens <= opts->last && !rc; tokens = tokens ? tokens * opts->factor : 1) {
		job->tokens = tokens;
		rc = run_size(seat, job, table);
	}
	if (!table->count)
		return -1;
	if (prints) {
		perf_print_end(&table->facts, table->row, table->count);
		if (opts->json && perf_write_json(&(struct perf_report){ .opts = opts,
									 .facts = &table->facts,
									 .rows = table->row,
									 .each = table->each,
									 .count = table->count }))
			rc = seat_fail(seat, "no JSON");
		fflush(stdout);
	}
	for (int i = 0; i < table->count && !rc; i++)
		if (table->row[i].wrong > 0)
			rc = seat_fail(seat, "wrong values at %d tokens", table->row[i].tokens);
	return rc;
}

/* The defaults depend on the device, which the first communicator tells. Rank 0 checks what one process can. */
static int settle(struct seat *seat, const struct start *start, struct perf_opts *opts)
{
	ncclComm_t comm = seat_comm(seat);
	int device = -1, bad = 0, *all;

	*opts = start->opts;
	if (!comm)
		return -1;
	if (ncclCommCuDevice(comm, &device) != ncclSuccess)
		return seat_fail(seat, "ncclCommCuDevice: %s", ncclGetLastError(comm));
	if (device >= 0) {
		*opts = start->given;
		opts->quiet = seat_rank(seat) > 0;
		bad = perf_opts_settle(opts, USE, true) || (!opts->quiet && perf_nic_check(opts));
	}
	all = calloc((size_t)seat_ranks(seat), sizeof(*all));
	if (!all || seat_gather(seat, &bad, sizeof(bad), all))
		bad = 1;
	for (int r = 0; r < seat_ranks(seat) && !bad; r++)
		bad = all[r];
	free(all);
	return bad ? seat_fail(seat, "the options do not fit the device") : 0;
}

static int perf_main(struct seat *seat, const void *arg)
{
	struct table *table = calloc(1, sizeof(*table));
	struct perf_board board;
	struct perf_job job = { .board = &board };

	if (!table)
		return seat_fail(seat, "out of memory");
	if (!settle(seat, arg, &job.opts) && !perf_board_open(&job.opts, seat, &board)) {
		sweep(seat, &job, table);
		perf_board_close(&board);
	}
	free(table->each);
	free(table);
	return seat_failed(seat) ? -1 : 0;
}

/* ---- */

static int rows_count(const struct perf_opts *opts)
{
	int n = 0;

	for (int tokens = opts->first; tokens <= opts->last; tokens = tokens ? tokens * opts->factor : 1)
		n++;
	return n;
}

static int peers_gather(void *arg, const void *mine, size_t bytes, void *all, char *text, size_t size)
{
	return launch_gather(arg, mine, bytes, all, text, size);
}

static int world_make(const struct perf_opts *opts, struct launch *launch, struct world **out)
{
	struct world_opts alone = { .seats = opts->ranks,
				    .processes = opts->processes,
				    .board = perf_shared_bytes(opts) };
	struct world_peers peers = { .gather = peers_gather, .arg = launch };

	if (!launch)
		return world_open(&alone, out);
	peers.rank = launch_rank(launch);
	peers.ranks = launch_ranks(launch);
	peers.local = launch_local(launch);
	return world_join(&peers, 0, out);
}

/* Before and after the defaults; 0, 1 after help, -1. */
static int options(int argc, char **argv, const struct launch *launch, struct start *start)
{
	int rc;

	if (launch) {
		start->given.launcher = launch_name(launch);
		start->given.ranks = launch_ranks(launch);
		start->given.quiet = launch_rank(launch) > 0;
	}
	rc = perf_opts_take(&start->given, USE, argc, argv);
	start->opts = start->given;
	return rc ? rc : perf_opts_settle(&start->opts, USE, false);
}

static void environment(const struct perf_opts *opts)
{
	setenv("NCCL_EP_DEVICE", opts->device[0] ? opts->device : "auto", opts->device[0] != 0);
	if (opts->puts && opts->algorithm == PERF_LL)
		setenv("NCCL_EP_RANKS_PER_NODE", "1", 1);
	setenv("NCCL_EP_DEBUG", "WARN", 0);
}

int main(int argc, char **argv)
{
	struct start start = { .given = { .program = "ep_perf",
					  .factor = 2,
					  .ranks = 1,
					  .topk = 8,
					  .check = true,
					  .iterations = 20,
					  .warmup = 5,
					  .bandwidth = 4300,
					  .seed = 1 } };
	struct launch *launch;
	struct world *world;
	char text[LAUNCH_TEXT];
	int rc;

	if (launch_open(&launch, text, sizeof(text))) {
		fprintf(stderr, "ep_perf: %s\n", text);
		return 1;
	}
	rc = options(argc, argv, launch, &start);
	if (rc) {
		launch_close(launch);
		return rc > 0 ? 0 : 2;
	}
	environment(&start.opts);
	if (world_make(&start.opts, launch, &world))
		return 1;
	rc = world_run(world, start.opts.ranks, perf_main, &start, sizeof(start),
		       SIZE_SECONDS * rows_count(&start.opts));
	if (rc)
		fprintf(stderr, "ep_perf: %s\n", world_text(world));
	if (world_close(world))
		rc = 1;
	/* After a failure the others may not come: MPI ends them when this process does. */
	if (!rc)
		launch_close(launch);
	return rc ? 1 : 0;
}
