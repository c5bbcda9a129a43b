/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the net rails: rails.c (devices, connections, registrations), put.c (hot path). Every object of the inner
 * net exists once per rail: listener, comm, contexts, registrations.
 */
#ifndef EP_NET_RAILS_H
#define EP_NET_RAILS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_ep_net.h"

#define RAILS_MAX 8

/* A device of this net: several of the inner one. */
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
	uint8_t *handles;      /* [rails][nranks], unpacked; NULL before the first connect */
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
	void *mr; /* of a flush that its rail has not accepted yet, else NULL */
	int rail;
};

/* A request of this net: done when all its inner requests are. */
struct rails_req {
	struct rails_req *next; /* free list */
	struct rails_op *first;
	int peer; /* -1: a flush */
	int rc;
};

/* The state of one peer in one context. */
struct rails_conn {
	int rail;		       /* of the next put */
	bool open;		       /* quiet puts are on that rail: the next put must go there too and cover them */
	uint64_t bytes;		       /* of these quiet puts */
	int failed;		       /* negative errno: a put failed, so all later ones do */
	int quiet_rc;		       /* result of quiet puts, for the request that covers them */
	struct rails_op *first, **end; /* inner requests that the next request waits for */
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
	struct rails_conn conns[];
};

extern const ncclEpNetHot_v1_t rails_hot;

#endif
