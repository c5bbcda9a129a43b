/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nets there are. One is named as in NCCL_EP_NET: NAME, NAME:option=value,... or, for nets that wrap others,
 * NAME(INNER):option=value,...
 */
#ifndef EP_NET_NET_H
#define EP_NET_NET_H

#include <stdint.h>

#include "nccl_ep_net.h"

/* An open net. Both tables are complete: what the net lacks answers -ENOTSUP. */
struct ep_net {
	ncclEpNetHot_v1_t hot;
	ncclEpNet_v1_t ops; /* its hot is the one above */
	void *net;
	void *library; /* of an external one, else NULL */
	struct ep_net *inner;
	char name[64];
};

/* spec NULL: by NCCL_EP_NET; empty: the first with a device, external ones before those of the library. */
int ep_net_open(const char *spec, struct ep_net **out);
/* NULL is accepted. */
void ep_net_close(struct ep_net *net);

/* Names of the library's own nets, in the order they are tried; NULL behind the last. */
const char *ep_net_name(int index);

#endif
