/* SPDX-License-Identifier: Apache-2.0 */
/* Defective plugins, one per ODD_*; see net_plugin.c. */
#include <stdlib.h>

#include <nccl_ep_net.h>

static int odd_init(const ncclEpNetInit_v1_t *args, void **net)
{
	if (args->options[0] == '!') {
		args->log(NCCL_EP_NET_WARN, "odd: does not like %s", args->options);
		return -5;
	}
	*net = malloc(1);
	return 0;
}

static int odd_finalize(void *net)
{
	free(net);
	return 0;
}

static int odd_devices(void *net, int *count)
{
	(void)net;
	*count = ODD_DEVICES;
	return 0;
}

static const ncclEpNetHot_v1_t hot = { .iput = NULL };

extern const ncclEpNet_v1_t ODD_SYMBOL;
__attribute__((visibility("default"))) const ncclEpNet_v1_t ODD_SYMBOL = {
	.version = ODD_VERSION,
	.size = sizeof(ncclEpNet_v1_t) + ODD_MORE,
	.name = ODD_NAME,
	.hot = &hot,
	.init = odd_init,
	.finalize = odd_finalize,
	.devices = odd_devices,
};
