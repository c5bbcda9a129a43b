/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An external net made of SMs: a kernel on a few multiprocessors of GPU 0 copies between registered memories (the GPU's
 * or host memory) for ranks that are threads of one process, at the rate and latency of a NIC: GPUDirect on one GPU, at
 * a NIC's speed. Without a GPU the same kernel runs on the CPU device.
 * Options, as NCCL_EP_NET=sm:name=value,...
 *   rate=400	Gb/s of each rank's wire in each direction (0: no limit)
 *   latency=5000	ns from the end of the transfer to delivery (0)
 *   unordered=1	puts are delivered out of order (0): up to 500 ns and a quarter of the latency before or
 *		after it, but never before they were sent
 *   relaxed=1	words and completions that are due at the same time become visible in any order (0): a NIC needs
 *		no fence between two words, this one does, of 2 us
 *   sms=16	multiprocessors (8): ranks' own and these must fit on the GPU together
 *   warps=4	per multiprocessor (as many as its shared memory allows)
 *   idle=1000000	ns without a put after which the kernel ends (1 ms): freeing memory waits for it
 *   host=1	the CPU device, even where there is a GPU
 * What differs from a NIC: the bytes of a put over 32 bytes may be there before its time or turn. Words, completions
 * and immediates, which tell of them, never are.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_ep_net.h"
#include "net/option.h"
#include "net_sm_comm.h"
#include "util/error.h"

#define MAGIC 0x4e49434du

struct handle {
	uint32_t magic;
	int32_t pid;
	struct sm_comm *comm;
};

static int sm_finalize(void *n)
{
	struct sm_net *net = n;

	sm_fabric_put(net->fabric);
	free(net);
	return 0;
}

static int sm_init(const ncclEpNetInit_v1_t *args, void **out)
{
	struct sm_config c = { .sms = SM_SMS, .idle = 1000000 };
	const struct ep_net_option table[] = {
		{ "rate", &c.rate, 100000, NULL },	{ "latency", &c.latency, 1000000000, NULL },
		{ "unordered", &c.unordered, 1, NULL }, { "relaxed", &c.relaxed, 1, NULL },
		{ "sms", &c.sms, 1024, NULL },		{ "warps", &c.warps, 64, NULL },
		{ "idle", &c.idle, 1000000000, NULL },	{ "host", &c.host, 1, NULL },
	};
	struct sm_net *net = calloc(1, sizeof(*net));
	int count = 0, rc;

	if (!net)
		return -ENOMEM;
	net->log = args->log;
	rc = ep_net_options("sm", args->options, table, (int)(sizeof(table) / sizeof(table[0])));
	c.sms += c.sms == 0;
	c.host |= ep_dev_row(ep_dev_gpu_kind())->count(&count) || !count;
	if (!rc)
		rc = sm_fabric_get(&c, &net->fabric);
	if (rc) {
		args->log(NCCL_EP_NET_WARN, "sm: %s", ep_last_error());
		free(net);
		return rc;
	}
	*out = net;
	return 0;
}

static int sm_devices(void *net, int *count)
{
	(void)net;
	*count = 1;
	return 0;
}

static int sm_getProperties(void *n, int dev, ncclEpNetProperties_v1_t *props)
{
	const struct sm_net *net = n;
	bool gpu = net->fabric->dev->ops->kind == EP_DEV_CUDA;

	(void)dev;
	*props = (ncclEpNetProperties_v1_t){
		.name = "sm",
		.ordered = !net->fabric->config.unordered,
		.numaNode = -1,
		.memKinds = NCCL_EP_NET_MEM_HOST | (gpu ? NCCL_EP_NET_MEM_CUDA : 0),
		.immBits = 32,
		.maxInline = EP_NIC_SMALL,
		.maxPuts = EP_NIC_ENTRIES,
		.maxContexts = SM_COMM_CONTEXTS,
		.flushes = 1,
		.maxPutSize = SM_MAX_PUT,
		.maxRegSize = SIZE_MAX,
	};
	return 0;
}

/* ---- comms ---- */

static void comm_drop(struct sm_comm *comm)
{
	if (__atomic_sub_fetch(&comm->refs, 1, __ATOMIC_ACQ_REL))
		return;
	for (int i = 0; i < SM_COMM_CONTEXTS; i++) {
		pthread_mutex_destroy(&comm->in[i].lock);
		free(comm->in[i].imm);
	}
	free(comm->peer);
	free(comm->lost);
	free(comm->why);
	free(comm);
}

static int sm_closeComm(void *c)
{
	struct sm_comm *comm = c;

	__atomic_store_n(&comm->closed, true, __ATOMIC_RELEASE);
	sm_port_put(comm->net->fabric, comm->port);
	for (int r = 0; r < comm->nranks; r++)
		if (comm->peer[r])
			comm_drop(comm->peer[r]);
	comm_drop(comm);
	return 0;
}

struct listener {
	struct sm_comm *comm;
	bool taken;
};

static int sm_listen(void *n, int dev, int nranks, void *handle, void **out)
{
	struct listener *l = calloc(1, sizeof(*l));
	struct sm_comm *comm = calloc(1, sizeof(*comm));
	struct handle h = { .magic = MAGIC, .pid = getpid(), .comm = comm };
	struct sm_net *net = n;
	int rc = -ENOMEM;

	(void)dev;
	if (!l || !comm)
		goto free_listener;
	*comm = (struct sm_comm){ .net = net, .refs = 1, .nranks = nranks };
	comm->peer = calloc((size_t)nranks, sizeof(*comm->peer));
	comm->lost = calloc((size_t)nranks, sizeof(*comm->lost));
	comm->why = calloc((size_t)nranks, sizeof(*comm->why));
	for (int i = 0; i < SM_COMM_CONTEXTS; i++)
		pthread_mutex_init(&comm->in[i].lock, NULL);
	if (!comm->peer || !comm->lost || !comm->why)
		goto drop;
	if ((rc = sm_port_get(net->fabric, &comm->port))) {
		net->log(NCCL_EP_NET_WARN, "%s", ep_last_error());
		goto drop;
	}
	sm_told_forget(net->fabric, comm->port);
	memset(handle, 0, NCCL_EP_NET_HANDLE_SIZE);
	memcpy(handle, &h, sizeof(h));
	l->comm = comm;
	*out = l;
	return 0;
drop:
	comm_drop(comm);
	comm = NULL;
free_listener:
	free(comm);
	free(l);
	return rc;
}

static int sm_connect(void *listener, const void *handles, int nranks, int rank, void **out)
{
	struct listener *l = listener;
	struct handle h;

	for (int r = 0; r < nranks; r++) {
		memcpy(&h, (const uint8_t *)handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE, sizeof(h));
		if (h.magic != MAGIC || h.pid != getpid()) {
			l->comm->net->log(NCCL_EP_NET_WARN, "sm: rank %d: rank %d is not a thread of this process",
					  rank, r);
			return -EINVAL;
		}
		__atomic_fetch_add(&h.comm->refs, 1, __ATOMIC_RELAXED);
		l->comm->peer[r] = h.comm;
	}
	l->comm->rank = rank;
	l->taken = true;
	*out = l->comm;
	return 0;
}

static int sm_closeListen(void *listener)
{
	struct listener *l = listener;

	if (!l->taken)
		sm_closeComm(l->comm);
	free(l);
	return 0;
}

static int sm_queryLastError(void *c, int peer, const char **message)
{
	struct sm_comm *comm = c;
	bool lost = __atomic_load_n(&comm->lost[peer], __ATOMIC_ACQUIRE);

	*message = lost ? comm->why[peer] : "";
	return lost ? -EREMOTEIO : 0;
}

static int sm_createContext(void *c, int index, void **out)
{
	struct sm_comm *comm = c;
	struct sm_ctx *ctx = calloc(1, sizeof(*ctx));
	int rc = -ENOMEM;

	if (ctx && (ctx->clear = calloc((size_t)comm->nranks, sizeof(*ctx->clear))))
		rc = sm_slot_get(comm->net->fabric, &ctx->number);
	if (rc) {
		comm->net->log(NCCL_EP_NET_WARN, "%s", rc == -ENOMEM ? "out of memory" : ep_last_error());
		if (ctx)
			free(ctx->clear);
		free(ctx);
		return rc;
	}
	ctx->comm = comm;
	ctx->index = index;
	ctx->slot = &comm->net->fabric->slot[ctx->number];
	/* The slot may have been another context's, whose puts were all delivered: its counters continue. */
	ctx->first = ctx->read = ctx->next = ctx->slot->posted;
	for (int r = 0; r < comm->nranks; r++)
		ctx->clear[r] = ctx->first;
	for (int i = 0; i < SM_COMM_CONTEXTS; i++) /* one that was destroyed had it: peers look there no more */
		if (comm->slot[i] == ctx->number + 1)
			__atomic_store_n(&comm->slot[i], 0, __ATOMIC_RELAXED);
	__atomic_store_n(&comm->slot[index], ctx->number + 1, __ATOMIC_RELAXED);
	*out = ctx;
	return 0;
}

static int sm_destroyContext(void *c)
{
	struct sm_ctx *ctx = c;

	sm_slot_put(ctx->comm->net->fabric, ctx->number);
	free(ctx->clear);
	free(ctx);
	return 0;
}

/* ---- memory ---- */

/* Where the kernel accesses it; host memory is pinned unless it is already. */
static int mem_address(struct ep_dev *dev, const ncclEpNetMem_v1_t *mem, struct sm_mr *mr)
{
	void *there = NULL;
	int rc = dev->ops->address(dev, mem->ptr, &there);

	if (rc == -ENOENT && mem->kind == NCCL_EP_NET_MEM_HOST &&
	    !(rc = dev->ops->pin(dev, mem->ptr, mem->size, &mr->pin)))
		there = mr->pin.dev;
	mr->own.base = (uint64_t)(uintptr_t)there;
	return rc;
}

static int sm_regMr(void *c, const ncclEpNetMem_v1_t *mem, void *key, void **out)
{
	struct sm_comm *comm = c;
	struct sm_fabric *f = comm->net->fabric;
	struct sm_mr *mr = calloc(1, sizeof(*mr) + (size_t)comm->nranks * sizeof(mr->far[0]));
	int rc = -ENOMEM;

	if (!mr)
		return rc;
	mr->own.size = mem->size;
	if ((rc = mem_address(f->dev, mem, mr)) || (rc = sm_region_get(f, &mr->own.region, &mr->own.serial))) {
		comm->net->log(NCCL_EP_NET_WARN, "sm: rank %d: cannot register %zu bytes: %s", comm->rank, mem->size,
			       ep_last_error());
		if (mr->pin.host)
			f->dev->ops->unpin(f->dev, &mr->pin);
		free(mr);
		return rc;
	}
	memset(key, 0, NCCL_EP_NET_KEY_SIZE);
	memcpy(key, &mr->own, sizeof(mr->own));
	*out = mr;
	return 0;
}

static int sm_shareMr(void *c, void *m, const void *keys)
{
	struct sm_comm *comm = c;
	struct sm_mr *mr = m;

	for (int r = 0; r < comm->nranks; r++)
		memcpy(&mr->far[r], (const uint8_t *)keys + (size_t)r * NCCL_EP_NET_KEY_SIZE, sizeof(mr->far[r]));
	mr->shared = true;
	return 0;
}

static int sm_deregMr(void *c, void *m)
{
	struct sm_comm *comm = c;
	struct sm_fabric *f = comm->net->fabric;
	struct sm_mr *mr = m;
	int rc = sm_region_put(f, mr->own.region);

	if (rc)
		comm->net->log(NCCL_EP_NET_WARN, "sm: rank %d: %s", comm->rank, ep_last_error());
	if (mr->pin.host)
		f->dev->ops->unpin(f->dev, &mr->pin);
	free(mr);
	return rc;
}

extern const ncclEpNet_v1_t ncclEpNetPlugin_v1;
__attribute__((visibility("default"))) const ncclEpNet_v1_t ncclEpNetPlugin_v1 = {
	.version = NCCL_EP_NET_VERSION,
	.size = sizeof(ncclEpNet_v1_t),
	.name = "sm",
	.hot = &sm_hot,
	.init = sm_init,
	.finalize = sm_finalize,
	.devices = sm_devices,
	.getProperties = sm_getProperties,
	.listen = sm_listen,
	.connect = sm_connect,
	.closeListen = sm_closeListen,
	.closeComm = sm_closeComm,
	.createContext = sm_createContext,
	.destroyContext = sm_destroyContext,
	.regMr = sm_regMr,
	.shareMr = sm_shareMr,
	.deregMr = sm_deregMr,
	.queryLastError = sm_queryLastError,
};
