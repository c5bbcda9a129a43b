/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every network that libfabric knows, through one of its providers: NCCL_EP_NET=fabric, with the provider from
 * NCCL_EP_FABRIC_PROVIDER or the option provider=NAME, or else the first of a list that has a device here.
 * Options:
 *   provider=NAME
 *   contexts=N   endpoints of a rank; 1, as one of tcp;ofi_rxm writes to 85 MB of buffers and one of shm maps 16 MiB
 *   delivery=0   also a put that is not quiet is complete when it is on its way: a lost peer shows later
 *   narrow=1     4 bytes of immediate data where there are 8, as with efa; for tests
 *
 * The net never says `ordered`. SRD and cxi have no order; tcp and shm have one by their own words, but bytes get into
 * memory by processors without a barrier between two puts, and tcp may hand out half a word; and verbs with its order
 * has a net of its own. So every put carries an immediate, and what it says holds for all providers.
 */
#include "net/fabric/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static int fab_init(const ncclEpNetInit_v1_t *args, void **out)
{
	struct fab_net *net = calloc(1, sizeof(*net));
	int rc;

	if (!net)
		return EP_FAIL(EP_NET, ENOMEM, "fabric: no memory");
	const struct ep_net_option options[] = {
		{ "provider", NULL, sizeof(net->provider), net->provider },
		{ "contexts", &net->contexts, FAB_CONTEXTS, NULL },
		{ "delivery", &net->delivery, 1, NULL },
		{ "narrow", &net->narrow, 1, NULL },
	};

	snprintf(net->provider, sizeof(net->provider), "%s", ep_param_str(EP_P_FABRIC_PROVIDER));
	net->contexts = 1;
	net->delivery = 1;
	rc = ep_net_options("fabric", args->options, options, sizeof(options) / sizeof(options[0]));
	if (!rc && !net->contexts)
		rc = EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: fabric needs at least one context");
	if (rc) {
		free(net);
		return rc;
	}
	fab_devices_find(net);
	*out = net;
	return 0;
}

static int fab_devices(void *n, int *count)
{
	struct fab_net *net = n;

	*count = net->count;
	return 0;
}

static int fab_getProperties(void *n, int i, ncclEpNetProperties_v1_t *props)
{
	struct fab_net *net = n;
	const struct fab_dev *dev;

	if (i < 0 || i >= net->count)
		return EP_FAIL(EP_NET, EP_EARG, "fabric: no device %d of %d", i, net->count);
	dev = &net->devs[i];
	*props = (ncclEpNetProperties_v1_t){
		.name = dev->info->domain_attr->name,
		.pciPath = dev->pci[0] ? dev->pci : NULL,
		.memKinds = NCCL_EP_NET_MEM_HOST | (dev->hmem ? NCCL_EP_NET_MEM_CUDA | NCCL_EP_NET_MEM_HIP : 0),
		.immBits = 32,
		.maxInline = FAB_INLINE,
		.maxPuts = FAB_PUTS,
		.maxContexts = (uint32_t)net->contexts,
		.dmaBuf = dev->hmem,
		.gets = 1,
		.flushes = 1,
		.maxPutSize = dev->info->ep_attr->max_msg_size,
		.maxRegSize = SIZE_MAX,
	};
	return 0;
}

static int fab_createContext(void *c, int index, void **out)
{
	struct fab_comm *comm = c;

	if (index < 0 || index >= comm->contexts || comm->ctx[index]->taken)
		return EP_FAIL(EP_NET, EP_EARG, "fabric: context %d of %d; option contexts makes more", index,
			       comm->contexts);
	comm->ctx[index]->taken = true;
	*out = comm->ctx[index];
	return 0;
}

/* The endpoint stays until the comm is closed: peers know it by its name. */
static int fab_destroyContext(void *c)
{
	struct fab_ctx *ctx = c;

	ctx->taken = false;
	return 0;
}

static int mr_make(void *comm, const ncclEpNetMem_v1_t *mem, bool dmabuf, void *key, void **out)
{
	struct fab_key mine;
	struct fab_mr *mr;
	int rc = fab_mr_open(comm, mem, dmabuf, &mine, &mr);

	if (rc)
		return rc;
	memset(key, 0, NCCL_EP_NET_KEY_SIZE);
	memcpy(key, &mine, sizeof(mine));
	*out = mr;
	return 0;
}

static int fab_regMr(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	return mr_make(comm, mem, false, key, mr);
}

static int fab_regMrDmaBuf(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	return mr_make(comm, mem, true, key, mr);
}

static int fab_shareMr(void *comm, void *mr, const void *keys)
{
	return fab_mr_share(comm, mr, keys);
}

static int fab_deregMr(void *comm, void *mr)
{
	(void)comm;
	fab_mr_close(mr);
	return 0;
}

static int fab_queryLastError(void *c, int peer, const char **sentence)
{
	struct fab_comm *comm = c;
	int failed;

	if (peer < 0 || peer >= comm->nranks)
		return EP_FAIL(EP_NET, EP_EARG, "fabric: rank %d of %d", peer, comm->nranks);
	/* A1: pairs with R1 in fab_peer_lost (fabric_peer.c): the sentence is complete. */
	failed = __atomic_load_n(&comm->peers[peer].failed, __ATOMIC_ACQUIRE);
	*sentence = failed > 0 ? comm->peers[peer].why : "";
	return failed > 0 ? -failed : 0;
}

const ncclEpNet_v1_t ep_net_fabric = {
	.version = NCCL_EP_NET_VERSION,
	.size = sizeof(ncclEpNet_v1_t),
	.name = "fabric",
	.hot = &fab_hot,
	.init = fab_init,
	.finalize = fab_finalize,
	.devices = fab_devices,
	.getProperties = fab_getProperties,
	.listen = fab_listen,
	.connect = fab_connect,
	.closeListen = fab_closeListen,
	.closeComm = fab_closeComm,
	.createContext = fab_createContext,
	.destroyContext = fab_destroyContext,
	.regMr = fab_regMr,
	.regMrDmaBuf = fab_regMrDmaBuf,
	.shareMr = fab_shareMr,
	.deregMr = fab_deregMr,
	.queryLastError = fab_queryLastError,
};
