/* SPDX-License-Identifier: Apache-2.0 */
/* Who shares a node with whom: by boot id and by shared memory that was really reached, never by name or address. */
#ifndef EP_PLUGIN_TOPO_H
#define EP_PLUGIN_TOPO_H

#include <stdbool.h>
#include <stdint.h>

#include "plugin/boot/boot.h"

struct ep_topo_rank {
	int node;     /* nodes are numbered by their lowest rank */
	int local;    /* index among the ranks of the node, in rank order */
	int home;     /* lowest rank of the machine it really shares, whatever nodes are pretended */
	int pid_rank; /* lowest rank of the same process: equal means plain pointers are good */
	int dev_kind; /* enum ep_dev_kind */
	int dev_ordinal;
	struct ep_fd_token fds; /* where its file descriptors are to be had */
};

struct ep_topo {
	int nranks, nodes;
	int node, local, locals;   /* of this rank */
	struct ep_topo_rank *rank; /* [nranks] */
};

/* Collective. ranks_per_node > 0 pretends nodes of that size (ranks of one pretended node must really share one). */
int ep_topo_build(struct ep_boot *boot, int rank, int nranks, int dev_kind, int dev_ordinal, struct ep_topo *out);
void ep_topo_free(struct ep_topo *topo);
/* Whether kernels of both ranks may use each other's addresses as they are: one process, one device. */
bool ep_topo_near(const struct ep_topo *topo, int a, int b);

#endif
