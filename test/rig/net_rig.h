/* SPDX-License-Identifier: Apache-2.0 */
/* A few ranks on one net, as threads or as processes: opened, connected, with one shared registration each. */
#ifndef EP_TEST_NET_RIG_H
#define EP_TEST_NET_RIG_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "net/net.h"
#include "util/clock.h"

#define NET_RANKS 8
#define NET_WAIT_MS 40000

struct net_board;

struct net_rank {
	const struct net_case *test;
	struct net_board *board;
	struct ep_net *net;
	const ncclEpNetHot_v1_t *hot;
	ncclEpNetProperties_v1_t props;
	void *comm, *ctx, *mr;
	uint8_t *mem;
	int rank, nranks, share_rc, errors;
	unsigned meetings;
	char message[256]; /* of share_rc */
};

struct net_case {
	const char *spec;
	int ranks;
	int each;		     /* ranks per process, as threads; 0: all in this process */
	bool hidden;		     /* memory without a file descriptor: shareMr may fail */
	size_t bytes;		     /* registered by each rank */
	bool (*peers)(int a, int b); /* who connects to whom, both ways; NULL: all */
	int (*enter)(int first); /* or NULL: in each process before its ranks start, with the first rank; not 0: exit */
	void (*run)(struct net_rank *me);
	/* Where a launcher started the ranks, one per process: this one's rank, and `bytes` of every rank to
	 * all[ranks] (0, or -1 after a message); also a barrier. NULL: net_run starts them. */
	int rank;
	int (*gather)(void *arg, const void *mine, size_t bytes, void *all);
	void *gather_arg;
};

/* The number of failed expectations or ranks, which are printed; of a launcher's ranks those of this one. */
int net_run(const struct net_case *test);
/* Whether this net has no device here; prints the reason on stderr. Leaves nothing loaded. */
bool net_absent(const char *spec);

/* All ranks that have not left; counts an error past NET_WAIT_MS. */
void net_meet(struct net_rank *me);
/* One rank fewer comes to meetings: called before it dies. */
void net_leave(struct net_rank *me);
pid_t net_pid(struct net_rank *me, int rank);

/* Puts until accepted and waits for completion; the net's result. Immediates arriving meanwhile go to `take`. */
typedef void (*net_take)(struct net_rank *me, uint32_t imm, void *arg);
int net_put(struct net_rank *me, const ncclEpNetPut_v1_t *put, net_take take, void *arg);
int net_end(struct net_rank *me, void *request, net_take take, void *arg);
/* 64 bytes to offset 4096 + 64 * own rank; needs 8192 bytes. */
int net_put_to(struct net_rank *me, int peer);
/* Puts to the lost rank fail in the end, puts to the other never do. */
void net_see_loss(struct net_rank *me, int lost, int other);
/* Closes the comm while the others go on; and opens one of this rank alone, so that the rig has something to close. */
void net_close(struct net_rank *me);
void net_alone(struct net_rank *me);
/* Both. */
void net_close_early(struct net_rank *me);
/* One call of progress. */
void net_step(struct net_rank *me, net_take take, void *arg);

#define EXPECT(me, cond)                                                                                              \
	do {                                                                                                          \
		if (!(cond) && (me)->errors++ < 10)                                                                   \
			fprintf(stderr, "%s:%d: %s, rank %d: %s\n", __FILE__, __LINE__, (me)->test->spec, (me)->rank, \
				#cond);                                                                               \
	} while (0)

/* Calls progress until cond; an error after NET_WAIT_MS. */
#define NET_UNTIL(me, cond, take, arg)                             \
	do {                                                       \
		uint64_t net_end_ns = ep_deadline_ms(NET_WAIT_MS); \
		while (!(cond) && ep_now_ns() < net_end_ns)        \
			net_step(me, take, arg);                   \
		EXPECT(me, cond);                                  \
	} while (0)

#endif
