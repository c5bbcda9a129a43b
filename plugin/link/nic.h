/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which devices of a net a rank uses. Of all devices those of the fabric count: the link layer with the most bandwidth
 * on this host, and of that no port slower than half the fastest, which is a front end. Of the fabric the nearest by
 * PCIe, then by NUMA node, then the fastest; of equal ones a different one for each rank of the host while they last;
 * several, as rails, where there are more devices than ranks.
 */
#ifndef EP_PLUGIN_NIC_H
#define EP_PLUGIN_NIC_H

#include <stdbool.h>
#include <stdint.h>

#include "net/net.h"
#include "plugin/link/spot.h"

#define EP_NICS 16     /* equally near ones that are considered */
#define EP_NIC_RAILS 4 /* at most, unless NCCL_EP_RAILS says how many */

/* What is compared of a device. */
struct ep_nic_dev {
	struct ep_spot place;
	uint32_t speed, layer; /* as in ncclEpNetProperties_v1_t */
	/* The verdict. */
	bool taken;
	char why[160];
};

/* What a rank tells the others of the devices it might use. */
struct ep_nic_card {
	int32_t rails;		/* NCCL_EP_RAILS */
	int32_t placed;		/* their location is known: distinct cards, which may be used at once */
	int32_t count;		/* never 0 */
	int32_t home;		/* the same on all ranks of a host */
	int32_t layer;		/* of all of them */
	uint64_t mark[EP_NICS]; /* hashes of their names */
};

/* The same with what only the rank itself needs. */
struct ep_nics {
	struct ep_nic_card card;
	int dev[EP_NICS];
	bool across[EP_NICS]; /* on another CPU socket than the rank's device */
	char why[256];
};

struct ep_nic_pick {
	int count, at[EP_NICS]; /* indices into ep_nics.dev */
	int sharers;		/* other ranks of this host that use the first of them */
};

/* All devices of a net, in its order; the caller frees them. */
int ep_nic_devs(const struct ep_net *net, struct ep_nic_dev **out, int *count);
/* Sets the verdicts: the ones a rank at this place may use. Returns how many. */
int ep_nics_judge(const struct ep_spot *place, struct ep_nic_dev *devs, int count);
/* The same, as candidates. */
void ep_nics_nearest(const struct ep_spot *place, struct ep_nic_dev *devs, int count, struct ep_nics *out);
/* Those, or the ones that NCCL_EP_NET_DEVICE names. */
int ep_nics_find(const struct ep_net *net, const struct ep_spot *place, struct ep_nics *out);
/* This rank's choice from all ranks' cards; as many as it wants, before ranks agree on a number. */
void ep_nic_choose(const struct ep_nic_card *all, int nranks, int rank, struct ep_nic_pick *out);
/* How many every rank can use: the smallest count of all ranks' picks. */
int ep_nic_rails(const struct ep_nic_card *all, int nranks);
/* The first rank whose devices are of another link layer than rank 0's; 0: none. */
int ep_nic_odd(const struct ep_nic_card *all, int nranks);
/* "InfiniBand", ... */
const char *ep_nic_layer(uint32_t layer);

#endif
