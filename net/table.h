/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of net/ share: the rows, the stubs, the loader, options. */
#ifndef EP_NET_ROWS_H
#define EP_NET_ROWS_H

#include <stdint.h>

#include "nccl_ep_net.h"

extern const ncclEpNet_v1_t ep_net_loop;
extern const ncclEpNet_v1_t ep_net_fabric;
extern const ncclEpNet_v1_t ep_net_faulty;
extern const ncclEpNet_v1_t ep_net_rails;
extern const ncclEpNet_v1_t ep_net_verbs;

/* Stubs for what is missing. ops->hot is not touched; hot is a copy of what it points to. */
void ep_net_fill(ncclEpNet_v1_t *ops, ncclEpNetHot_v1_t *hot);

/*
 * The table of the external net X: the library X, or else libnccl_ep_net-X.so. -ENOENT and a log line, as with a wrong
 * version, when it cannot be used. The caller closes *library.
 */
int ep_net_load(const char *x, const ncclEpNet_v1_t **ops, void **library);

struct ep_net_option {
	const char *name;
	uint64_t *value;
	uint64_t max;
	char *text; /* instead of value: a word, of at most max bytes with its end */
};

/* Options of a net, "name=value,...", into the places of the table; -EP_EARG with a sentence for what is not there. */
int ep_net_options(const char *net, const char *text, const struct ep_net_option *table, int count);

#endif
