/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads or as processes, kept alive from one job to the next. A job is a function that every rank runs; it
 * gets a seat, which has its number, its communicator (kept by size), a barrier, and a place for its result. Processes
 * are forked by world_open, so nothing may be initialised before it: no CUDA, no communicator, no threads.
 */
#ifndef EP_TEST_ORACLE_WORLD_H
#define EP_TEST_ORACLE_WORLD_H

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define WORLD_SEATS 256
#define WORLD_ARG 1024 /* bytes of a job's argument */

struct world;
struct seat;

/* 0, or -1 after seat_fail. */
typedef int (*world_fn)(struct seat *seat, const void *arg);

struct world_opts {
	int seats;
	bool processes;
	size_t board; /* bytes of memory all ranks see, for what a job likes */
	/* Of a seat's process, before anything else: to move it elsewhere. Not 0: it exits with that. May be NULL. */
	int (*enter)(int seat);
};

/* 0 or -1 with a line on stderr. Sets environment variables that nobody has set: deadlines fit for tests. */
int world_open(const struct world_opts *opts, struct world **out);
/* Ends threads and processes; -1 when one of them was already gone. */
int world_close(struct world *world);

/*
 * Seats 0 to ranks-1 run fn(seat, copy of arg). 0 when all did; else -1, world_text() says what the first that failed
 * said, and the next job gets fresh communicators. A rank that is not back after `seconds` is lost, and so is the
 * world: every later job fails at once.
 */
int world_run(struct world *world, int ranks, world_fn fn, const void *arg, size_t size, double seconds);
/* As setenv, here and in the ranks' processes, for the jobs to come: not while one runs. At most 8 names. */
void world_setenv(struct world *world, const char *name, const char *value);
/* This seat's process is going to be killed: that fails no job. It is the last one before world_close. */
void world_doom(struct world *world, int seat);
const char *world_text(const struct world *world);
bool world_lost(const struct world *world);
void *world_board(const struct world *world);
/* The process of a seat; 0 where seats are threads. */
pid_t world_pid(const struct world *world, int seat);

double world_now(void); /* seconds */
/* Resident memory of this process. */
long world_resident_kib(void);

/* Before world_open, in a program whose kernels run under the emulator: GPU threads run in a random order that the seed
 * decides. -1 with a line on stderr where there is no emulator. */
int world_random_order(uint64_t seed);

/* ---- for the ranks ---- */

int seat_rank(const struct seat *seat);
int seat_ranks(const struct seat *seat); /* of the running job */
void *seat_board(const struct seat *seat);
/* All ranks of the job, or those before `ranks`; -1 when one of them failed or did not come in time. Spins and yields,
 * so that those who leave it leave together. */
int seat_barrier(struct seat *seat);
/* A barrier of some, on a counter of the board: until `want` seats have come; -1 after a minute. */
int seat_meet(struct seat *seat, atomic_int *count, int want);
/* The communicator of all ranks of this job; NULL after a failure. */
ncclComm_t seat_comm(struct seat *seat);
/* Remembers the first sentence and tells the others; always -1. */
int seat_fail(struct seat *seat, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool seat_failed(const struct seat *seat); /* this one has */

#endif
