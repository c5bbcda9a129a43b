/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net rails between its files: rails.c (devices, meeting, memory), rails_put.c (hot). Everything there is of the
 * inner net is there once for each rail: a listener, a comm, contexts, registrations.
 */
#ifndef EP_NET_RAILS_H
#define EP_NET_RAILS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_ep_net.h"

#define RAILS_MAX 8

/* A device of this net: so many of the inner one. */
struct rails_dev {
	int inner[RAILS_MAX];
	char name[128];
};

struct rails_net {
	const ncclEpNet_v1_t *inner;
	void *net;
	int n, count;
	struct rails_dev *devs;
};

struct rails_listener {
	struct rails_net *net;
	int nranks;
	void *inner[RAILS_MAX];
	void *comm[RAILS_MAX]; /* those that are connected, until all are */
	uint8_t *handles;      /* [rails][nranks], taken apart; NULL before the first connect */
};

struct rails_comm {
	struct rails_net *net;
	int rank, nranks;
	void *inner[RAILS_MAX];
};

struct rails_mr {
	void *inner[RAILS_MAX];
};

/* A request of the inner net. */
struct rails_op {
	struct rails_op *next;
	void *request;
	void *mr; /* of a flush that its rail has not taken yet, else NULL */
	int rail;
};

/* A request of this one: done when all of these are. */
struct rails_req {
	struct rails_req *next; /* free ones */
	struct rails_op *first;
	int peer; /* -1: a flush */
	int rc;
};

/* A peer, as one context sees it. */
struct rails_lane {
	int rail;		       /* of the next put */
	bool open;		       /* there are quiet puts on that rail which the next one there has to cover */
	uint64_t bytes;		       /* of those */
	int failed;		       /* errno, negative: nothing more goes there */
	int quiet_rc;		       /* what quiet puts came to, for the request that covers them */
	struct rails_op *first, **end; /* they end with these, and belong to the request to come */
};

struct rails_ctx {
	struct rails_comm *comm;
	const ncclEpNetHot_v1_t *hot;
	int n, turn;
	void *inner[RAILS_MAX];
	struct rails_op *free_ops;
	struct rails_req *free_reqs;
	void **slabs;
	size_t nslabs;
	struct rails_lane lanes[];
};

extern const ncclEpNetHot_v1_t rails_hot;

#endif
