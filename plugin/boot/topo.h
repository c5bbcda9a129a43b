/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks share a node: by boot id and by a shared memory probe, never by host name or address. */
#ifndef EP_PLUGIN_TOPO_H
#define EP_PLUGIN_TOPO_H

#include <stdbool.h>
#include <stdint.h>

#include "plugin/boot/boot.h"

/* A device, as its rank describes it to the others. */
struct ep_topo_dev {
	int32_t kind;	  /* enum ep_dev_kind */
	int32_t ordinal;  /* means nothing in another process */
	uint32_t sms;	  /* multiprocessors that the rank may use */
	uint32_t sms_all; /* that the device has, for all its ranks; 0: unknown */
	uint8_t uuid[16]; /* zeros: unknown */
	char pci[32];	  /* domain:bus:device.function; "": unknown */
};

struct ep_topo_rank {
	int node;     /* nodes are numbered by their lowest rank */
	int local;    /* index among the ranks of the node, in rank order */
	int home;     /* lowest rank of its physical node, whatever NCCL_EP_RANKS_PER_NODE says */
	int pid_rank; /* lowest rank of the same process: if equal, pointers are valid in both */
	struct ep_topo_dev dev;
	bool apart; /* of this node or not, its device's memory is out of reach here; known once a window is open */
	struct ep_fd_token fds; /* for ep_boot_fd_fetch */
};

struct ep_topo {
	int nranks, nodes;
	bool alone;		   /* NCCL_EP_P2P_DISABLE: ranks of a host are nodes though nothing parts them */
	int node, local, locals;   /* of this rank */
	struct ep_topo_rank *rank; /* [nranks] */
};

/* Collective. NCCL_EP_RANKS_PER_NODE splits physical nodes into nodes of that size, or of those sizes. */
int ep_topo_build(struct ep_boot *boot, int rank, int nranks, const struct ep_topo_dev *dev, struct ep_topo *out);
void ep_topo_free(struct ep_topo *topo);
/* Whether kernels of both ranks can use each other's pointers: same node, process and device. */
bool ep_topo_near(const struct ep_topo *topo, int a, int b);
/* Whether they run on one GPU, whatever number each knows it by; MIG slices are different GPUs. */
bool ep_topo_shares(const struct ep_topo *topo, int a, int b);
/* Blocks that a rank may launch so that those of all ranks on its GPU are resident at once, one per multiprocessor: its
 * part of the GPU by what it sees of it, so that a partition is not divided again. At least 1. */
unsigned ep_topo_blocks(const struct ep_topo *topo, int rank);

#endif
