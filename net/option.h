/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a net: what follows the colon in NCCL_EP_NET. */
#ifndef EP_NET_OPTION_H
#define EP_NET_OPTION_H

#include <stdint.h>

struct ep_net_option {
	const char *name;
	uint64_t *value;
	uint64_t max;
	char *text; /* instead of value: a string of at most max bytes including its NUL */
};

/* Parses "name=value,..." into the places of the table; -EP_EARG with a message for an unknown or malformed option. */
int ep_net_options(const char *net, const char *text, const struct ep_net_option *table, int count);

#endif
