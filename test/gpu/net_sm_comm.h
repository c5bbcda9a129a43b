/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators, contexts and registrations of the net sm, and its hot path (net_sm_put.c). */
#ifndef EP_TEST_NET_SM_COMM_H
#define EP_TEST_NET_SM_COMM_H

#include "net_sm.h"

#define SM_COMM_CONTEXTS 4
#define SM_MAX_PUT ((uint64_t)EP_NIC_ENTRIES / 2 * EP_NIC_PIECE)

struct sm_net {
	ncclEpNetLog_t log;
	struct sm_fabric *fabric;
};

/* Peers deliver immediates to it, so it lives until the last of them is closed. */
struct sm_comm {
	struct sm_net *net;
	uint32_t refs; /* atomic */
	bool closed;   /* atomic */
	uint32_t port;
	int rank, nranks;
	struct sm_comm **peer;
	bool *lost; /* atomic, [nranks] */
	char (*why)[48];
	struct sm_inbox in[SM_COMM_CONTEXTS];
	uint32_t slot[SM_COMM_CONTEXTS]; /* atomic: 1 + those of its contexts; 0: none yet */
};

/* base: as the kernel addresses it */
struct sm_key {
	uint64_t base, size, serial;
	uint32_t region;
};

struct sm_mr {
	struct sm_key own;
	struct ep_pinned pin; /* by us, or none */
	bool shared;
	struct sm_key far[];
};

/* A descriptor; of a put in pieces the last one stands for it. */
struct sm_entry {
	bool done, tested;
	bool quiet, imm;
	int peer;
	uint32_t value, number;
	uint32_t last; /* number of the put's last piece, */
	uint32_t left; /* in whose entry the pieces are counted that are not delivered yet */
};

struct sm_ctx {
	struct sm_comm *comm;
	struct sm_slot *slot;
	uint32_t number; /* of the slot */
	int index;
	uint32_t first, read, next; /* descriptors: oldest in use, records read, posted */
	struct sm_entry entry[EP_NIC_ENTRIES];
	uint32_t *clear; /* [nranks]: all before this one to the peer are done */
};

extern const ncclEpNetHot_v1_t sm_hot;

#endif
