/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nets there are. One is named as in NCCL_EP_NET: NAME, NAME:option=value,... or, for nets that wrap others,
 * NAME(INNER):option=value,... Several of them, A|B, are choices.
 */
#ifndef EP_NET_NET_H
#define EP_NET_NET_H

#include <stdbool.h>
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

#define EP_NET_SPEC_MAX 1024
#define EP_NET_WHY_MAX 256

/*
 * What spec comes to, NULL standing for NCCL_EP_NET: one net, or several with '|' between them in the order they are
 * to be tried. "A|B" is one already; empty is every net that is worth trying, external ones first; "^A,B" the same
 * without those.
 */
int ep_net_list(const char *spec, char out[EP_NET_SPEC_MAX]);
/* Takes the first off a list; false: none is left. */
bool ep_net_next(const char **list, char out[EP_NET_SPEC_MAX]);
/* Whether the net, or what it wraps, reaches ranks of its own host only. */
bool ep_net_is_local(const char *spec);

/*
 * One net. -ENODEV, and a line at INFO only, where it has no device here: the reason alone is in why, the whole message
 * is ep_last_error(). why is "" otherwise; NULL is accepted.
 */
int ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX]);
/* The first of ep_net_list that has a device here. */
int ep_net_open(const char *spec, struct ep_net **out);
/* A net of the library around one that is open, which belongs to the new one from then on. */
int ep_net_wrap(struct ep_net *inner, const char *name, const char *options, struct ep_net **out);
/* NULL is accepted. */
void ep_net_close(struct ep_net *net);

/* Names of the library's own nets; NULL behind the last. */
const char *ep_net_name(int index);

#endif
