/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport: InfiniBand and RoCE through libibverbs, NCCL_EP_NET=verbs. Options:
 *   hca=NAME      as NCCL_EP_IB_HCA, without commas
 *   gid=N         as NCCL_EP_IB_GID_INDEX
 *   contexts=N    per rank, 1 to 4 (2)
 *   qps=N         queue pairs per peer, 1 to 8; with more than one the net is unordered, and runs of puts alternate
 *   ordered=N     1: writes are visible in order, 0: they are not, whatever the NIC's profile says
 *   inline=0      no inline data: small puts use registered buffers
 *   srq=N         entries of the shared receive queue; 0: receives of every queue pair, as for NICs without shared ones
 *   cq=N          entries of the completion queue; for tests
 *   profile=NAME  treat the NIC as one of that driver; for tests
 */
#include "net/verbs/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/option.h"
#include "net/table.h"
#include "util/error.h"
#include "util/param.h"

static int vb_finalize(void *n)
{
	struct vb_net *net = n;

	free(net->devs);
	free(net);
	return 0;
}

static int options_check(struct vb_net *net)
{
	char names[200] = "";
	const struct ep_verbs_profile *p;

	if (!net->contexts || !net->qps)
		return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: verbs: contexts and qps must be at least 1");
	if (!net->profile[0] || ep_verbs_profile_of(net->profile)->driver)
		return 0;
	for (int i = 0; (p = ep_verbs_profile(i)) && p->driver; i++)
		snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? ", " : "", p->driver);
	return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: verbs: no profile %s; known drivers: %s", net->profile, names);
}

static int vb_init(const ncclEpNetInit_v1_t *args, void **out)
{
	struct vb_net *net = EP_CALLOC(EP_NET, 1, sizeof(*net), "transport verbs");
	int64_t qps = ep_param_int(EP_P_IB_QPS_PER_CONNECTION);
	uint64_t gid = UINT64_MAX;
	int rc;

	if (!net)
		return -ENOMEM;
	net->base.name = "verbs";
	const struct ep_net_option options[] = {
		{ "hca", NULL, sizeof(net->hca), net->hca },
		{ "gid", &gid, 255, NULL },
		{ "contexts", &net->contexts, VB_CONTEXTS, NULL },
		{ "qps", &net->qps, VB_QPS, NULL },
		{ "ordered", &net->ordered, 1, NULL },
		{ "inline", &net->inlines, 1, NULL },
		{ "srq", &net->srq, 1 << 20, NULL },
		{ "cq", &net->cq, 1 << 22, NULL },
		{ "profile", NULL, sizeof(net->profile), net->profile },
	};

	net->contexts = 2;
	net->qps = (uint64_t)(qps < VB_QPS ? qps : VB_QPS);
	net->inlines = 1;
	net->ordered = UINT64_MAX; /* as the profile says */
	net->srq = VB_SRQ;
	rc = ep_net_options("verbs", args->options, options, sizeof(options) / sizeof(options[0]));
	net->gid = gid == UINT64_MAX ? 0 : gid + 1;
	rc = rc ? rc : options_check(net);
	rc = rc ? rc : vb_devices_find(net);
	if (rc)
		vb_finalize(net);
	else
		*out = net;
	return rc;
}

/* User settings override the profile; -1: not set. */
static void flow_set(ncclEpNetFlow_v1_t *flow, enum ep_param_id puts)
{
	int64_t bytes = ep_param_int(EP_P_MAX_INFLIGHT_BYTES), n = ep_param_int(puts);

	flow->maxBytes = bytes < 0 ? flow->maxBytes : (uint64_t)bytes;
	flow->maxPuts = n < 0 ? flow->maxPuts : (uint32_t)n;
}

static int vb_getProperties(void *n, int i, ncclEpNetProperties_v1_t *props)
{
	struct vb_net *net = n;
	const struct vb_dev *dev;
	int rc = ep_base_dev_check(&net->base, i);
	int64_t ring;

	if (rc)
		return rc;
	dev = &net->devs[i];
	*props = (ncclEpNetProperties_v1_t){
		.name = dev->name,
		.pciPath = dev->pci[0] ? dev->pci : NULL,
		.numaNode = -1,
		.speed = dev->speed,
		.linkLayer = dev->roce ? NCCL_EP_NET_LAYER_ETHERNET : NCCL_EP_NET_LAYER_INFINIBAND,
		.ordered = net->qps == 1 && (net->ordered == UINT64_MAX ? dev->profile->ordered : net->ordered),
		.memKinds = dev->kinds,
		.immBits = 32,
		.maxInline = VB_INLINE,
		.maxPuts = VB_PUTS,
		.maxContexts = (uint32_t)net->contexts,
		.dmaBuf = dev->dmabuf,
		.flushes = 1,
		.maxPutSize = dev->link.max_msg_sz,
		.maxRegSize = dev->attr.max_mr_size,
		.lowLatency = dev->profile->lowLatency,
		.throughput = dev->profile->throughput,
	};
	flow_set(&props->lowLatency, EP_P_MAX_INFLIGHT_LL);
	flow_set(&props->throughput, EP_P_MAX_INFLIGHT_HT);
	ring = ep_param_int(EP_P_MAX_INFLIGHT_RING);
	if (ring >= 0)
		props->lowLatency.ringPuts = (uint32_t)ring;
	return 0;
}

static int vb_createContext(void *c, int index, void **out)
{
	struct vb_comm *comm = c;
	int rc = ep_base_ctx_take(&comm->base, index);

	if (!rc)
		*out = comm->ctx[index];
	return rc;
}

/* Its queues stay until the comm is closed: peers hold their numbers. */
static int vb_destroyContext(void *c)
{
	struct vb_ctx *ctx = c;

	ep_base_ctx_give(&ctx->comm->base, ctx->index);
	return 0;
}

static const ncclEpNetHot_v1_t vb_hot = { EP_NET_HOT_OPS(vb) };

const ncclEpNet_v1_t ep_net_verbs = {
	EP_NET_OPS("verbs", vb),
	.devices = ep_base_devices,
	.regMrDmaBuf = vb_regMrDmaBuf,
	.queryLastError = ep_base_queryLastError,
};
