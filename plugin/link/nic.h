/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which devices of a net a rank takes: the nearest by PCIe, and among those that are equally near one of its own, as
 * far as the other ranks of its host leave it one; several, as rails, where there are more than ranks.
 */
#ifndef EP_PLUGIN_NIC_H
#define EP_PLUGIN_NIC_H

#include <stdbool.h>
#include <stdint.h>

#include "net/net.h"

#define EP_NICS 16	  /* equally near ones that are told of */
#define EP_NIC_RAILS 4	  /* at most, unless NCCL_EP_RAILS says how many */
#define EP_NIC_PLACE 4096 /* bytes of a path */

/* Where a rank's device is. */
struct ep_nic_place {
	char path[EP_NIC_PLACE]; /* in sysfs, all links followed; "": nowhere */
	int numa;		 /* -1: unknown, or several */
	char name[32];
};

/* What a rank tells the others of the devices it might take. */
struct ep_nic_card {
	int32_t rails;		/* NCCL_EP_RAILS */
	int32_t placed;		/* they are somewhere: cards of their own, that may be used at once */
	int32_t count;		/* never 0 */
	int32_t home;		/* whoever has the same is on the same host */
	uint64_t mark[EP_NICS]; /* of their names */
};

/* The same for itself. */
struct ep_nics {
	struct ep_nic_card card;
	int dev[EP_NICS];
	char why[256];
};

struct ep_nic_pick {
	int count, at[EP_NICS]; /* places in ep_nics.dev */
	int sharers;		/* ranks of this host that have the first of them, beside this one */
};

/* pci: the folder of the rank's device in sysfs, "" for the CPU. */
void ep_nic_place(const char *name, const char *pci, struct ep_nic_place *out);
/* How near a device at this path is: only to be compared. NULL is the farthest. */
int ep_nic_nearness(const struct ep_nic_place *place, const char *path);
/* Those equally near, or those that NCCL_EP_NET_DEVICE names. */
int ep_nics_find(const struct ep_net *net, const struct ep_nic_place *place, struct ep_nics *out);
/* The rank's own, out of what all said; as many as it wants, before ranks agree on how many. */
void ep_nic_choose(const struct ep_nic_card *all, int nranks, int rank, struct ep_nic_pick *out);
/* How many all ranks can have: pick[].count of the one that has fewest. */
int ep_nic_rails(const struct ep_nic_card *all, int nranks);

#endif
