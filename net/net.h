/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry of nets. A net is named as in NCCL_EP_NET: NAME, NAME:option=value,... or, for nets that wrap others,
 * NAME(INNER):option=value,... A|B is a list of alternatives.
 */
#ifndef EP_NET_NET_H
#define EP_NET_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "nccl_ep_net.h"

/* An open net. No operation is NULL: what the net lacks answers -ENOTSUP. */
struct ep_net {
	ncclEpNetHot_v1_t hot;
	ncclEpNet_v1_t ops; /* ops.hot points to the table above */
	void *net;
	void *library; /* of a plugin, else NULL */
	struct ep_net *inner;
	char name[64];
};

#define EP_NET_SPEC_MAX 1024
#define EP_NET_WHY_MAX 256

/*
 * The candidates that spec names (NULL: NCCL_EP_NET), separated by '|', in the order in which they are tried. "A|B" is
 * such a list; "" stands for the default list, plugins first; "^A,B" for the default list without A and B.
 */
int ep_net_list(const char *spec, char out[EP_NET_SPEC_MAX]);
/* Takes the first candidate off a list; false: the list is empty. */
bool ep_net_next(const char **list, char out[EP_NET_SPEC_MAX]);
/* Whether the net, or the one it wraps, reaches ranks of the same host only. */
bool ep_net_is_local(const char *spec);

/*
 * Opens one net. -ENODEV, logged at INFO only: no device on this host; why has the reason, ep_last_error() the whole
 * message. Otherwise why is "". why may be NULL.
 */
int ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX]);
/* The first of ep_net_list with a device on this host. */
int ep_net_open(const char *spec, struct ep_net **out);
/* Wraps an open net in one of the library's; on success *out owns inner. */
int ep_net_wrap(struct ep_net *inner, const char *name, const char *options, struct ep_net **out);
/* NULL is accepted. */
void ep_net_close(struct ep_net *net);

/*
 * Whether connect may be given handles of zeroes, for ranks that nothing is put to: the net does not connect to them.
 * Only the library's own nets know that, where they wrap no plugin: nccl_ep_net.h promises plugins all handles.
 */
bool ep_net_sparse(const struct ep_net *net);

/* Names of the library's own nets; NULL past the last. */
const char *ep_net_name(int index);

#endif
