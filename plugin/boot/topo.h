/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks share a node: by boot id and by a shared memory probe, never by host name or address. */
#ifndef EP_PLUGIN_TOPO_H
#define EP_PLUGIN_TOPO_H

#include <stdbool.h>
#include <stdint.h>

#include "plugin/boot/boot.h"

struct ep_topo_rank {
	int node;     /* nodes are numbered by their lowest rank */
	int local;    /* index among the ranks of the node, in rank order */
	int home;     /* lowest rank of its physical node, whatever NCCL_EP_RANKS_PER_NODE says */
	int pid_rank; /* lowest rank of the same process: if equal, pointers are valid in both */
	int dev_kind; /* enum ep_dev_kind */
	int dev_ordinal;
	struct ep_fd_token fds; /* for ep_boot_fd_fetch */
};

struct ep_topo {
	int nranks, nodes;
	int node, local, locals;   /* of this rank */
	struct ep_topo_rank *rank; /* [nranks] */
};

/* Collective. NCCL_EP_RANKS_PER_NODE > 0 splits physical nodes into nodes of that size. */
int ep_topo_build(struct ep_boot *boot, int rank, int nranks, int dev_kind, int dev_ordinal, struct ep_topo *out);
void ep_topo_free(struct ep_topo *topo);
/* Whether kernels of both ranks can use each other's pointers: same node, process and device. */
bool ep_topo_near(const struct ep_topo *topo, int a, int b);

#endif
