/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All tensors of every rank are freed and allocated again, over and over, in one group. Every result is right, and
 * after a few rounds each new allocation is accessed in place; mappings of freed memory end. Without -p tensors come
 * from ncclMemAlloc, with it from the device's own allocator. Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "nccl_ep_ext.h"
#include "test/oracle/ht_rig.h"

enum { ROUNDS = 400 };

struct job {
	struct ht_cfg cfg;
	int lives;
};

/* Shared by the ranks: those whose last round was not all direct. */
struct board {
	atomic_int late[2];
};

static int counts_of(struct ht_rig *rig, anyEpReachCounts_t *out)
{
	*out = ANYEP_REACH_COUNTS_INIT;
	return ht_expect(rig, "anyEpGroupReachCounts", anyEpGroupReachCounts(rig->group, out));
}

static void nap_ms(int ms)
{
	nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000L }, NULL);
}

/* Rounds until every rank has accessed all others' tensors in place. */
static int life_play(struct ht_rig *rig)
{
	struct board *board = seat_board(rig->seat);
	uint64_t each = 2 * (uint64_t)(seat_ranks(rig->seat) - 1);
	anyEpReachCounts_t before, after;

	for (int round = 0; round < ROUNDS; round++) {
		atomic_int *late = &board->late[round % 2];

		if (counts_of(rig, &before) || ht_script(rig, "UA DA CA") || ht_sync(rig) || counts_of(rig, &after))
			return -1;
		if (rig->verdict.wrong)
			return seat_fail(rig->seat, "round %d: #wrong %llu: %s", round,
					 (unsigned long long)rig->verdict.wrong, rig->verdict.first);
		if (after.direct + after.staged != before.direct + before.staged + each)
			return seat_fail(rig->seat, "%llu direct and %llu staged after %llu and %llu",
					 (unsigned long long)after.direct, (unsigned long long)after.staged,
					 (unsigned long long)before.direct, (unsigned long long)before.staged);
		if (after.staged != before.staged)
			atomic_fetch_add(late, 1);
		if (seat_barrier(rig->seat))
			return -1;
		if (!atomic_load(late))
			return seat_barrier(rig->seat);
		nap_ms(2);
		if (seat_barrier(rig->seat))
			return -1;
		atomic_store(late, 0);
	}
	return seat_fail(rig->seat, "rank %d: still staged after %d rounds", seat_rank(rig->seat), ROUNDS);
}

/* No kernel runs while memory is freed and allocated: either may wait for it. */
static int renew(struct ht_rig *rig)
{
	if (seat_barrier(rig->seat))
		return -1;
	ht_bufs_close(rig, 0);
	return ht_bufs_open(rig, 0) || seat_barrier(rig->seat) ? -1 : 0;
}

/* Mappings of the last life are left, and of freed memory those that were not closed yet. */
static int bounded(struct ht_rig *rig, int lives)
{
	uint64_t others = (uint64_t)(seat_ranks(rig->seat) - 1);
	double end = world_now() + 20;
	anyEpReachCounts_t c;

	do {
		if (counts_of(rig, &c))
			return -1;
		nap_ms(20);
	} while (c.mapped > others && world_now() < end);
	if (c.mapped != others || c.unmapped != (uint64_t)(lives - 1) * others || c.refused || c.evicted)
		return seat_fail(rig->seat,
				 "rank %d: %llu mapped (peak %llu), %llu unmapped, %llu refused, %llu evicted",
				 seat_rank(rig->seat), (unsigned long long)c.mapped, (unsigned long long)c.peak,
				 (unsigned long long)c.unmapped, (unsigned long long)c.refused,
				 (unsigned long long)c.evicted);
	if (!seat_rank(rig->seat))
		printf("direct %llu, staged %llu, peak %llu\n", (unsigned long long)c.direct,
		       (unsigned long long)c.staged, (unsigned long long)c.peak);
	return 0;
}

/* Frees the slab of all tensors while kernels use it, and puts ordinary memory with the same bytes in its place. */
static int swap(struct ht_rig *rig)
{
	struct slab *slab = &rig->handle[0].window;
	uint8_t *copy = malloc(slab->size);

	if (!copy)
		return seat_fail(rig->seat, "out of memory");
	memcpy(copy, slab->base, slab->size);
	ncclMemFree(slab->base);
	if (mmap(slab->base, slab->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	    MAP_FAILED)
		return seat_fail(rig->seat, "mmap");
	memcpy(slab->base, copy, slab->size);
	free(copy);
	return 0;
}

static int unmapped(struct ht_rig *rig)
{
	double end = world_now() + 20;
	anyEpReachCounts_t c;

	do {
		if (counts_of(rig, &c))
			return -1;
		nap_ms(5);
	} while (c.mapped && world_now() < end);
	return c.mapped ? seat_fail(rig->seat, "rank %d: still mapped", seat_rank(rig->seat)) : 0;
}

/* The last rank has published an allocation that it then withdraws, and the others have closed its mapping when their
 * kernels read the line: they must not use it. */
static int withdrawn(struct ht_rig *rig)
{
	bool last = seat_rank(rig->seat) == seat_ranks(rig->seat) - 1;
	struct ht_args args[HT_OPS];

	if (ht_round(rig, 0) || ht_load(rig, 0, HT_DISPATCH))
		return -1;
	ht_args(rig, 0, HT_UPDATE, &args[HT_UPDATE]);
	ht_args(rig, 0, HT_DISPATCH, &args[HT_DISPATCH]);
	if (ht_expect(rig, "ncclEpUpdateHandle", ht_call_with(rig, 0, HT_UPDATE, &args[HT_UPDATE])) || ht_sync(rig) ||
	    seat_barrier(rig->seat))
		return -1;
	if (last &&
	    (ht_expect(rig, "ncclEpDispatch", ht_call_with(rig, 0, HT_DISPATCH, &args[HT_DISPATCH])) || swap(rig)))
		return -1;
	if (!last &&
	    (unmapped(rig) || ht_expect(rig, "ncclEpDispatch", ht_call_with(rig, 0, HT_DISPATCH, &args[HT_DISPATCH]))))
		return -1;
	if (ht_sync(rig) || ht_check(rig, 0, HT_DISPATCH) || seat_barrier(rig->seat))
		return -1;
	if (last) {
		munmap(rig->handle[0].window.base, rig->handle[0].window.size);
		rig->handle[0].window.base = NULL;
	}
	if (rig->verdict.wrong)
		return seat_fail(rig->seat, "withdrawn: #wrong %llu: %s", (unsigned long long)rig->verdict.wrong,
				 rig->verdict.first);
	return 0;
}

static int churn_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ht_rig *rig = calloc(1, sizeof(*rig));
	int life = 0;

	if (!rig)
		return seat_fail(seat, "out of memory");
	if (ht_open(rig, seat, &job->cfg) || life_play(rig))
		goto close;
	for (life = 1; life < job->lives; life++)
		if (renew(rig) || life_play(rig))
			goto close;
	if (!bounded(rig, job->lives) && seat_ranks(seat) == 2 && job->cfg.own_stream)
		withdrawn(rig);
close:
	ht_close(rig);
	free(rig);
	return seat_failed(seat) ? -1 : 0;
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ht_churn [-g RANKS] [-n LIVES] [-p] [-s]\n"
		     "  -g  processes (2)   -n  times that all tensors are allocated (30)   -p  not by ncclMemAlloc\n"
		     "  -s  CPU: on host streams; two ranks: and one withdraws memory in the middle of an operation\n");
	return status;
}

int main(int argc, char **argv)
{
	struct job job = { .lives = 30 };
	struct world_opts opts = { .seats = 2, .processes = true, .board = sizeof(struct board) };
	enum ht_where where = HT_POINTER;
	bool own_stream = false;
	struct world *world;
	double start = world_now();
	int c, rc;

	_Static_assert(sizeof(struct job) <= WORLD_ARG, "a job must fit into the world's argument");
	while ((c = getopt(argc, argv, "g:n:psh")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 'g')
			opts.seats = atoi(optarg);
		else if (c == 'n')
			job.lives = atoi(optarg);
		else if (c == 's')
			own_stream = true;
		else if (c == 'p')
			where = HT_PLAIN;
		else
			return usage(stderr, 2);
	}
	if (optind != argc || opts.seats < 2 || job.lives < 1)
		return usage(stderr, 2);
	job.cfg = (struct ht_cfg){ .shape = { .base = { .ranks = opts.seats,
							.experts = 3 * opts.seats,
							.topk = 3,
							.tmax = 16,
							.hidden = 256,
							.token = NUM_BF16,
							.combine = NUM_BF16 } },
				   .handles = 1,
				   .where = where,
				   .own_stream = own_stream,
				   .spare = LL_ALL };
	job.cfg.data.seed = 29;
	job.cfg.shape.capacity = ht_bound(&job.cfg.shape);
	if (world_open(&opts, &world))
		return 1;
	rc = world_run(world, opts.seats, churn_job, &job, sizeof(job), 60 + job.lives);
	if (rc)
		printf("FAILED %s\n", world_text(world));
	printf("ht_churn: %s, %d lives, %d processes, %.1f s\n", rc ? "failed" : "passed", job.lives, opts.seats,
	       world_now() - start);
	return world_close(world) || rc ? 1 : 0;
}
