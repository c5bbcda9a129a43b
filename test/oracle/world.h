/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads or processes, kept from one job to the next. A job is a function that every rank runs with a seat:
 * its rank, its communicator (cached by size), a barrier, and its result. Processes are forked by world_open, so
 * nothing may be initialised before it: no CUDA, no communicator, no threads.
 */
#ifndef EP_TEST_ORACLE_WORLD_H
#define EP_TEST_ORACLE_WORLD_H

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define WORLD_SEATS 512
#define WORLD_ARG 1024 /* bytes of a job's argument */

struct world;
struct seat;

/* 0, or -1 after seat_fail. */
typedef int (*world_fn)(struct seat *seat, const void *arg);

struct world_opts {
	int seats;
	bool processes;
	size_t board; /* bytes of memory shared by all ranks, for use by jobs */
	/* First call in a seat's process, to move it to a namespace. Not 0: it exits with that. May be NULL. */
	int (*enter)(int seat);
};

/* The other processes of a world, each with one seat, and how they exchange data before there is a communicator. */
struct world_peers {
	int rank, ranks;
	int local; /* index among those of this host: which GPU it takes */
	/* `bytes` of every rank to all[ranks]; 0, or -1 with a message in text. */
	int (*gather)(void *arg, const void *mine, size_t bytes, void *all, char *text, size_t size);
	void *arg;
};

/*
 * A world whose ranks were started by others, one per process, perhaps on other hosts. Jobs have all ranks and run in
 * the calling thread of each; the board is this rank's own. After a failed job only world_close may follow, which
 * aborts the communicator, so that the others fail too. 0, or -1 with a line on stderr.
 */
int world_join(const struct world_peers *peers, size_t board, struct world **out);

/* 0, or -1 with a line on stderr. Sets timeouts for tests in the environment, unless they are set. */
int world_open(const struct world_opts *opts, struct world **out);
/* Ends threads and processes; -1 if one had already exited. */
int world_close(struct world *world);

/*
 * Seats 0 to ranks-1 run fn(seat, copy of arg). 0 if all succeeded; else -1, world_text() is the message of the first
 * failure, and the next job gets new communicators. If a rank has not finished after `seconds`, the world is lost:
 * every later job fails at once.
 */
int world_run(struct world *world, int ranks, world_fn fn, const void *arg, size_t size, double seconds);
/* As setenv, here and in the ranks' processes, for later jobs: not while one runs. At most 8 names. */
void world_setenv(struct world *world, const char *name, const char *value);
/* This seat's process will be killed, which fails no job. Only world_close may follow that job. */
void world_doom(struct world *world, int seat);
const char *world_text(const struct world *world);
bool world_lost(const struct world *world);
void *world_board(const struct world *world);
/* The process of a seat; 0 where seats are threads. */
pid_t world_pid(const struct world *world, int seat);

double world_now(void); /* seconds */
/* Resident memory of this process. */
long world_resident_kib(void);

/* Before world_open: the emulator runs GPU threads in a random order given by the seed; an odd one: a launch has one
 * block at a time. -1 with a line on stderr if the program was built without the emulator. */
int world_random_order(uint64_t seed);

/* ---- for the ranks ---- */

int seat_rank(const struct seat *seat);
int seat_ranks(const struct seat *seat); /* of the running job */
void *seat_board(const struct seat *seat);
/* All ranks of the job; -1 if one failed or did not arrive in time. Spins and yields, so ranks leave it together. */
int seat_barrier(struct seat *seat);
/* A barrier of some seats, on a counter of the board: until `want` have arrived; -1 after a minute. */
int seat_meet(struct seat *seat, atomic_int *count, int want);
/* Collective, by the communicator: `bytes` of every rank, in order, to all[ranks]. 0, or -1 after seat_fail. */
int seat_gather(struct seat *seat, const void *mine, size_t bytes, void *all);
/* The communicator of all ranks of this job; NULL after a failure. */
ncclComm_t seat_comm(struct seat *seat);
/* Keeps the first message and notifies the other ranks; always -1. */
int seat_fail(struct seat *seat, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool seat_failed(const struct seat *seat);	/* whether this seat has failed */
const char *seat_text(const struct seat *seat); /* its message */
/* This seat's process calls exit(0) after the job, as a program that destroys nothing; later jobs are for fewer ranks.
 * world_close fails if it ended in another way. */
void seat_leave(struct seat *seat);

#endif
