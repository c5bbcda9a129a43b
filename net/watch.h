/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of this host that ranks of a comm live in, and their ends, which no network tells of. */
#ifndef EP_NET_WATCH_H
#define EP_NET_WATCH_H

#include <stdint.h>

struct ep_watch {
	uint64_t host;
	int epoll, nranks;
	struct ep_watched {
		int pid, fd; /* pid 0: not watched; fd -1: another of the same process has it */
	} *rank;
};

/* Boot and pid namespace: within them a pid means something. 0: unknown, and nobody's. */
uint64_t ep_watch_host(void);
int ep_watch_open(struct ep_watch *watch, int nranks);
/* Of any state that open left, or zeros. */
void ep_watch_close(struct ep_watch *watch);
/* Rank lives in process pid of this host and pid namespace. This process is not watched. */
void ep_watch_add(struct ep_watch *watch, int rank, int pid);
/* The same where the host is not known to be this one: a process elsewhere is not watched. */
void ep_watch_add_on(struct ep_watch *watch, int rank, uint64_t host, int pid);
/* Calls gone once for every rank whose process has ended since; any thread. */
void ep_watch_look(struct ep_watch *watch, void (*gone)(void *arg, int rank), void *arg);

#endif
