/* SPDX-License-Identifier: Apache-2.0 */
/* Watches the processes on this host in which ranks of a comm live: no network reports that one ended. */
#ifndef EP_NET_WATCH_H
#define EP_NET_WATCH_H

#include <stdint.h>

struct ep_watch {
	uint64_t host;
	int epoll, nranks;
	struct ep_watched {
		int pid, fd; /* pid 0: not watched; fd -1: another rank of that process holds the descriptor */
	} *rank;
};

/* A hash of boot id and pid namespace, within which a pid is unique. 0: unknown, matches no host. */
uint64_t ep_watch_host(void);
int ep_watch_open(struct ep_watch *watch, int nranks);
/* Accepts zeroes and what a failed open left. */
void ep_watch_close(struct ep_watch *watch);
/* Rank lives in process pid of this host and pid namespace. This process itself is not watched. */
void ep_watch_add(struct ep_watch *watch, int rank, int pid);
/* The same if host is this one, and else nothing. */
void ep_watch_add_on(struct ep_watch *watch, int rank, uint64_t host, int pid);
/* Calls gone once for every rank whose process has ended since. From any thread. */
void ep_watch_look(struct ep_watch *watch, void (*gone)(void *arg, int rank), void *arg);

#endif
