/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libfabric transport: NCCL_EP_NET=fabric, with the provider from the option provider=NAME or
 * NCCL_EP_FABRIC_PROVIDER, or else the first one of a list that has a device.
 * Options:
 *   provider=NAME
 *   contexts=N   endpoints per rank, 1 to 4; by default as many as NCCL_EP_ENGINES says, else as the provider's profile
 *                (1: an endpoint of tcp;ofi_rxm touches 85 MB of buffers, one of shm maps 16 MiB)
 *   delivery=0   puts complete at transmission, not at delivery: a lost peer is detected later
 *   direct=0     not the fabric efa-direct of efa, but its protocols above the device
 *   emulated=1   accept a device whose RDMA writes the provider emulates (efa on p4d)
 *
 * The net is never `ordered`. SRD and cxi do not order puts. tcp and shm do, but CPUs write the bytes to memory without
 * a barrier between two puts, and tcp may expose half a word. verbs, which is ordered, has a transport of its own. So
 * every put carries an immediate, and one scheme serves all providers.
 */
#include "net/fabric/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/option.h"
#include "net/table.h"
#include "util/error.h"
#include "util/param.h"

static int fab_finalize(void *n)
{
	struct fab_net *net = n;

	fab_devices_drop(net);
	free(net);
	return 0;
}

#define UNSET UINT64_MAX

static uint64_t contexts_default(const struct fab_net *net)
{
	uint64_t n = (uint64_t)ep_param_int(EP_P_ENGINES);

	if (!n && net->base.count)
		n = net->devs[0].profile->contexts;
	return !n ? 1 : n < FAB_CONTEXTS ? n : FAB_CONTEXTS;
}

static int fab_init(const ncclEpNetInit_v1_t *args, void **out)
{
	struct fab_net *net = EP_CALLOC(EP_NET, 1, sizeof(*net), "transport fabric");
	int rc;

	if (!net)
		return -ENOMEM;
	net->base.name = "fabric";
	const struct ep_net_option options[] = {
		{ "provider", NULL, sizeof(net->provider), net->provider },
		{ "contexts", &net->contexts, FAB_CONTEXTS, NULL },
		{ "delivery", &net->delivery, 1, NULL },
		{ "direct", &net->direct, 1, NULL },
		{ "emulated", &net->emulated, 1, NULL },
	};

	snprintf(net->provider, sizeof(net->provider), "%s", ep_param_str(EP_P_FABRIC_PROVIDER));
	net->contexts = UNSET;
	net->delivery = 1;
	net->direct = 1;
	rc = ep_net_options("fabric", args->options, options, sizeof(options) / sizeof(options[0]));
	if (!rc && !net->contexts)
		rc = EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: fabric: contexts must be at least 1");
	if (rc) {
		free(net);
		return rc;
	}
	fab_devices_find(net);
	if (net->contexts == UNSET)
		net->contexts = contexts_default(net);
	*out = net;
	return 0;
}

static int fab_getProperties(void *n, int i, ncclEpNetProperties_v1_t *props)
{
	struct fab_net *net = n;
	const struct fab_dev *dev;
	int rc = ep_base_dev_check(&net->base, i);

	if (rc)
		return rc;
	dev = &net->devs[i];
	*props = (ncclEpNetProperties_v1_t){
		.name = dev->info->domain_attr->name,
		.pciPath = dev->pci[0] ? dev->pci : NULL,
		.numaNode = -1,
		.speed = dev->speed,
		.memKinds = NCCL_EP_NET_MEM_HOST | (dev->hmem ? NCCL_EP_NET_MEM_CUDA | NCCL_EP_NET_MEM_HIP : 0),
		.immBits = 32,
		.maxInline = FAB_INLINE,
		.maxPuts = FAB_PUTS,
		.maxContexts = (uint32_t)net->contexts,
		.dmaBuf = dev->dmabuf,
		.flushes = 1,
		.maxPutSize = dev->info->ep_attr->max_msg_size,
		.maxRegSize = SIZE_MAX,
	};
	return 0;
}

static int fab_createContext(void *c, int index, void **out)
{
	struct fab_comm *comm = c;
	int rc = ep_base_ctx_take(&comm->base, index);

	if (!rc)
		*out = comm->ctx[index];
	return rc;
}

/* The endpoint stays until the comm is closed: peers hold its address. */
static int fab_destroyContext(void *c)
{
	struct fab_ctx *ctx = c;

	ep_base_ctx_give(&ctx->comm->base, ctx->index);
	return 0;
}

const ncclEpNet_v1_t ep_net_fabric = {
	EP_NET_OPS("fabric", fab),
	.devices = ep_base_devices,
	.regMrDmaBuf = fab_regMrDmaBuf,
	.queryLastError = ep_base_queryLastError,
};
