/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which devices of a net a rank uses: the nearest by PCIe; of equally near ones a different one for each rank of the
 * host while they last; several, as rails, where there are more devices than ranks.
 */
#ifndef EP_PLUGIN_NIC_H
#define EP_PLUGIN_NIC_H

#include <stdbool.h>
#include <stdint.h>

#include "net/net.h"

#define EP_NICS 16	  /* equally near ones that are considered */
#define EP_NIC_RAILS 4	  /* at most, unless NCCL_EP_RAILS says how many */
#define EP_NIC_PLACE 4096 /* bytes of a path */

/* Location of a rank's device. */
struct ep_nic_place {
	char path[EP_NIC_PLACE]; /* in sysfs, all links followed; "" if unknown */
	int numa;		 /* -1: unknown, or several */
	char name[32];
};

/* What a rank tells the others of the devices it might use. */
struct ep_nic_card {
	int32_t rails;		/* NCCL_EP_RAILS */
	int32_t placed;		/* their location is known: distinct cards, which may be used at once */
	int32_t count;		/* never 0 */
	int32_t home;		/* the same on all ranks of a host */
	uint64_t mark[EP_NICS]; /* hashes of their names */
};

/* The same with what only the rank itself needs. */
struct ep_nics {
	struct ep_nic_card card;
	int dev[EP_NICS];
	char why[256];
};

struct ep_nic_pick {
	int count, at[EP_NICS]; /* indices into ep_nics.dev */
	int sharers;		/* other ranks of this host that use the first of them */
};

/* pci: the sysfs folder of the rank's device, "" for the CPU. */
void ep_nic_place(const char *name, const char *pci, struct ep_nic_place *out);
/* A larger number is nearer. NULL is the farthest. */
int ep_nic_nearness(const struct ep_nic_place *place, const char *path);
/* The nearest devices, or those that NCCL_EP_NET_DEVICE names. */
int ep_nics_find(const struct ep_net *net, const struct ep_nic_place *place, struct ep_nics *out);
/* This rank's choice from all ranks' cards; as many as it wants, before ranks agree on a number. */
void ep_nic_choose(const struct ep_nic_card *all, int nranks, int rank, struct ep_nic_pick *out);
/* How many every rank can use: the smallest count of all ranks' picks. */
int ep_nic_rails(const struct ep_nic_card *all, int nranks);

#endif
