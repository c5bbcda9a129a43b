/* SPDX-License-Identifier: Apache-2.0 */
/* The device a rank of a rig uses: the first, or with NET_SPREAD in the environment one after the other. */
#ifndef EP_TEST_NET_SPREAD_H
#define EP_TEST_NET_SPREAD_H

#include <stdlib.h>

#include "net/net.h"

static inline int net_spread(const struct ep_net *net, int rank)
{
	int count = 0;

	if (!getenv("NET_SPREAD") || net->ops.devices(net->net, &count) || count < 1)
		return 0;
	return rank % count;
}

#endif
