/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An external net made of SMs: a kernel on a few multiprocessors of GPU 0 copies between registered memories (the GPU's
 * or host memory) for ranks that are threads of one process, at the rate and latency of a NIC: GPUDirect on one GPU, at
 * a NIC's speed. Without a GPU the same kernel runs on the CPU device.
 * Options, as NCCL_EP_NET=sm:name=value,...
 *   rate=400	Gb/s of each rank's wire in each direction (0: no limit)
 *   latency=5000	ns from the end of the transfer to delivery (0)
 *   unordered=1	puts are delivered out of order (0)
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
#include "net_sm.h"
#include "util/error.h"

#define CONTEXTS 4
#define MAGIC 0x4e49434du
#define MAX_PUT ((uint64_t)EP_NIC_ENTRIES / 2 * EP_NIC_PIECE)

struct net {
	ncclEpNetLog_t log;
	struct sm_fabric *fabric;
};

/* Peers deliver immediates to it, so it lives until the last of them is closed. */
struct comm {
	struct net *net;
	uint32_t refs; /* atomic */
	bool closed;   /* atomic */
	uint32_t port;
	int rank, nranks;
	struct comm **peer;
	bool *lost; /* atomic, [nranks] */
	char (*why)[48];
	struct sm_inbox in[CONTEXTS];
};

struct handle {
	uint32_t magic;
	int32_t pid;
	struct comm *comm;
};

/* base: as the kernel addresses it */
struct key {
	uint64_t base, size, serial;
	uint32_t region;
};

struct mr {
	struct key own;
	struct ep_pinned pin; /* by us, or none */
	bool shared;
	struct key far[];
};

/* A descriptor; of a put in pieces the last one stands for it. */
struct entry {
	bool done, tested;
	bool quiet, imm;
	int peer;
	uint32_t value, number;
	uint32_t last; /* number of the put's last piece, */
	uint32_t left; /* in whose entry the pieces are counted that are not delivered yet */
};

struct ctx {
	struct comm *comm;
	struct sm_slot *slot;
	uint32_t number; /* of the slot */
	int index;
	uint32_t first, read, next; /* descriptors: oldest in use, records read, posted */
	struct entry entry[EP_NIC_ENTRIES];
	uint32_t *clear; /* [nranks]: all before this one to the peer are done */
};

static int sm_finalize(void *n)
{
	struct net *net = n;

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
	struct net *net = calloc(1, sizeof(*net));
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
	const struct net *net = n;
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
		.maxContexts = CONTEXTS,
		.flushes = 1,
		.maxPutSize = MAX_PUT,
		.maxRegSize = SIZE_MAX,
	};
	return 0;
}

/* ---- comms ---- */

static void comm_drop(struct comm *comm)
{
	if (__atomic_sub_fetch(&comm->refs, 1, __ATOMIC_ACQ_REL))
		return;
	for (int i = 0; i < CONTEXTS; i++) {
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
	struct comm *comm = c;

	__atomic_store_n(&comm->closed, true, __ATOMIC_RELEASE);
	sm_port_put(comm->net->fabric, comm->port);
	for (int r = 0; r < comm->nranks; r++)
		if (comm->peer[r])
			comm_drop(comm->peer[r]);
	comm_drop(comm);
	return 0;
}

struct listener {
	struct comm *comm;
	bool taken;
};

static int sm_listen(void *n, int dev, int nranks, void *handle, void **out)
{
	struct listener *l = calloc(1, sizeof(*l));
	struct comm *comm = calloc(1, sizeof(*comm));
	struct handle h = { .magic = MAGIC, .pid = getpid(), .comm = comm };
	struct net *net = n;
	int rc = -ENOMEM;

	(void)dev;
	if (!l || !comm)
		goto free_listener;
	*comm = (struct comm){ .net = net, .refs = 1, .nranks = nranks };
	comm->peer = calloc((size_t)nranks, sizeof(*comm->peer));
	comm->lost = calloc((size_t)nranks, sizeof(*comm->lost));
	comm->why = calloc((size_t)nranks, sizeof(*comm->why));
	for (int i = 0; i < CONTEXTS; i++)
		pthread_mutex_init(&comm->in[i].lock, NULL);
	if (!comm->peer || !comm->lost || !comm->why)
		goto drop;
	if ((rc = sm_port_get(net->fabric, &comm->port))) {
		net->log(NCCL_EP_NET_WARN, "%s", ep_last_error());
		goto drop;
	}
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
	struct comm *comm = c;
	bool lost = __atomic_load_n(&comm->lost[peer], __ATOMIC_ACQUIRE);

	*message = lost ? comm->why[peer] : "";
	return lost ? -EREMOTEIO : 0;
}

static int sm_createContext(void *c, int index, void **out)
{
	struct comm *comm = c;
	struct ctx *ctx = calloc(1, sizeof(*ctx));
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
	*out = ctx;
	return 0;
}

static int sm_destroyContext(void *c)
{
	struct ctx *ctx = c;

	sm_slot_put(ctx->comm->net->fabric, ctx->number);
	free(ctx->clear);
	free(ctx);
	return 0;
}

/* ---- memory ---- */

/* Where the kernel accesses it; host memory is pinned unless it is already. */
static int mem_address(struct ep_dev *dev, const ncclEpNetMem_v1_t *mem, struct mr *mr)
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
	struct comm *comm = c;
	struct sm_fabric *f = comm->net->fabric;
	struct mr *mr = calloc(1, sizeof(*mr) + (size_t)comm->nranks * sizeof(mr->far[0]));
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
	struct comm *comm = c;
	struct mr *mr = m;

	for (int r = 0; r < comm->nranks; r++)
		memcpy(&mr->far[r], (const uint8_t *)keys + (size_t)r * NCCL_EP_NET_KEY_SIZE, sizeof(mr->far[r]));
	mr->shared = true;
	return 0;
}

static int sm_deregMr(void *c, void *m)
{
	struct comm *comm = c;
	struct sm_fabric *f = comm->net->fabric;
	struct mr *mr = m;
	int rc = sm_region_put(f, mr->own.region);

	if (rc)
		comm->net->log(NCCL_EP_NET_WARN, "sm: rank %d: %s", comm->rank, ep_last_error());
	if (mr->pin.host)
		f->dev->ops->unpin(f->dev, &mr->pin);
	free(mr);
	return rc;
}

/* ---- puts ---- */

static bool inside(const struct key *key, uint64_t offset, uint64_t size)
{
	return offset <= key->size && size <= key->size - offset;
}

static bool valid(const struct ctx *ctx, const ncclEpNetPut_v1_t *put)
{
	const struct mr *src = put->srcMr, *dst = put->dstMr;
	bool small = put->flags & NCCL_EP_NET_INLINE;

	return put->peer >= 0 && put->peer < ctx->comm->nranks && dst->shared &&
	       inside(&dst->far[put->peer], put->dstOffset, put->size) &&
	       put->size <= (small ? EP_NIC_SMALL : MAX_PUT) && (small || inside(&src->own, put->srcOffset, put->size));
}

/* Whether the peer can still be put to; for good. */
static int peer_check(struct comm *comm, int peer, const struct key *to)
{
	if (__atomic_load_n(&comm->lost[peer], __ATOMIC_RELAXED))
		return -EREMOTEIO;
	if (!__atomic_load_n(&comm->peer[peer]->closed, __ATOMIC_ACQUIRE) &&
	    __atomic_load_n(&comm->net->fabric->region[to->region], __ATOMIC_RELAXED) == to->serial)
		return 0;
	pthread_mutex_lock(&comm->in[0].lock); /* contexts may find out at once */
	if (!comm->lost[peer]) {
		snprintf(comm->why[peer], sizeof(comm->why[0]), "rank %d has closed its memory or comm", peer);
		__atomic_store_n(&comm->lost[peer], true, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&comm->in[0].lock);
	comm->net->log(NCCL_EP_NET_WARN, "sm: rank %d: %s", comm->rank, comm->why[peer]);
	return -EREMOTEIO;
}

static uint32_t pieces(uint64_t bytes)
{
	return bytes ? (uint32_t)((bytes + EP_NIC_PIECE - 1) / EP_NIC_PIECE) : 1;
}

static void piece_post(struct ctx *ctx, const ncclEpNetPut_v1_t *put, uint64_t at)
{
	const struct mr *src = put->srcMr, *dst = put->dstMr;
	struct ep_nic_desc *d = &ctx->slot->queue->desc[ctx->next % EP_NIC_ENTRIES];
	bool last = put->size - at <= EP_NIC_PIECE, small = put->flags & NCCL_EP_NET_INLINE || !put->size;

	*d = (struct ep_nic_desc){
		.dst = dst->far[put->peer].base + put->dstOffset + at,
		.bytes = last ? (uint32_t)(put->size - at) : EP_NIC_PIECE,
		.flags = small ? EP_NIC_INLINE : 0,
		.from = ctx->comm->port,
		.to = ctx->comm->peer[put->peer]->port,
	};
	if (!small)
		d->src = src->own.base + put->srcOffset + at;
	else if (put->size)
		memcpy(d->word, put->src, put->size);
	ctx->entry[ctx->next % EP_NIC_ENTRIES] = (struct entry){
		.quiet = !last || put->flags & NCCL_EP_NET_QUIET,
		.imm = last && put->flags & NCCL_EP_NET_IMM,
		.peer = put->peer,
		.value = put->imm,
		.number = ctx->next,
		.last = ctx->next + pieces(put->size - at) - 1,
		.left = pieces(put->size),
	};
	ctx->next++;
}

static int sm_iput(void *c, const ncclEpNetPut_v1_t *put, void **request)
{
	struct ctx *ctx = c;
	const struct mr *dst = put->dstMr;
	uint64_t at = 0;
	uint32_t last;
	int rc;

	*request = NULL;
	if (!valid(ctx, put))
		return -EINVAL;
	if (ctx->next - ctx->first + pieces(put->size) + 1 > EP_NIC_ENTRIES)
		return 0;
	/* A running kernel takes what is posted to a context that it serves, also if it does not serve the port. */
	if (!sm_serves(ctx->comm->net->fabric, ctx->number))
		return sm_kick(ctx->comm->net->fabric, ctx->number);
	pthread_mutex_lock(&ctx->slot->lock);
	if (!(rc = peer_check(ctx->comm, put->peer, &dst->far[put->peer]))) {
		do {
			piece_post(ctx, put, at);
			at += EP_NIC_PIECE;
		} while (at < put->size);
		ctx->slot->posted = ctx->next;
		__atomic_store_n(&ctx->slot->queue->posted, ctx->next, __ATOMIC_RELEASE); /* pairs with A0 of nic.cu */
	}
	last = ctx->next - 1;
	pthread_mutex_unlock(&ctx->slot->lock);
	if (rc || (rc = sm_kick(ctx->comm->net->fabric, ctx->number)))
		return rc;
	*request = put->flags & NCCL_EP_NET_QUIET ? NCCL_EP_NET_QUIET_REQUEST : &ctx->entry[last % EP_NIC_ENTRIES];
	return 0;
}

/* The kernel's writes are the GPU's own. */
static int sm_iflush(void *c, void *mr, void **request)
{
	static struct entry flushed;

	(void)c;
	(void)mr;
	*request = &flushed;
	return 0;
}

/* Whether the put and all before it to the same peer are done: it completes quiet ones. */
static bool covered(struct ctx *ctx, const struct entry *e)
{
	uint32_t *at = &ctx->clear[e->peer];

	if (!ctx->comm->net->fabric->config.unordered)
		return e->done;
	if (*at - ctx->first > EP_NIC_ENTRIES) /* before it, however long ago */
		*at = ctx->first;
	while ((int32_t)(e->number - *at) > 0 &&
	       (ctx->entry[*at % EP_NIC_ENTRIES].peer != e->peer || ctx->entry[*at % EP_NIC_ENTRIES].done))
		++*at;
	return (int32_t)(e->number - *at) <= 0 && e->done;
}

static void entries_free(struct ctx *ctx)
{
	for (; ctx->first != ctx->next; ctx->first++) {
		const struct entry *e = &ctx->entry[ctx->first % EP_NIC_ENTRIES];

		if (!e->done || (!e->quiet && !e->tested))
			return;
	}
}

static int sm_test(void *c, void *request, int *done)
{
	struct ctx *ctx = c;
	struct entry *e = request;

	*done = 1;
	if (e < ctx->entry || e >= ctx->entry + EP_NIC_ENTRIES)
		return 0; /* a flush */
	*done = covered(ctx, e);
	e->tested = *done;
	entries_free(ctx);
	return 0;
}

/* How late, for the message at the end; the halves of a record may become visible one after the other, so the time may
 * be that of an older record. */
static void late_count(struct sm_slot *slot, uint64_t ns)
{
	slot->puts++;
	slot->late_ns += ns;
	slot->late_max_ns = ns > slot->late_max_ns ? ns : slot->late_max_ns;
}

static int records_read(struct ctx *ctx)
{
	int rc = 0;

	while (!rc && ctx->read != ctx->next) {
		const struct ep_nic_record *r = &ctx->slot->queue->log[ctx->read % EP_NIC_ENTRIES];
		uint64_t stamp = __atomic_load_n(&r->stamp, __ATOMIC_ACQUIRE); /* pairs with R4 of nic.cu */
		struct entry *e = &ctx->entry[(uint32_t)stamp % EP_NIC_ENTRIES], *put;

		if (stamp >> 32 != (uint32_t)(ctx->read + 1))
			break;
		late_count(ctx->slot, __atomic_load_n(&r->late_ns, __ATOMIC_RELAXED));
		ctx->read++;
		e->done = true;
		put = &ctx->entry[e->last % EP_NIC_ENTRIES]; /* without order its pieces overtake each other */
		if (--put->left == 0 && put->imm)
			rc = sm_inbox_add(&ctx->comm->peer[e->peer]->in[ctx->index], put->value);
	}
	entries_free(ctx);
	return rc;
}

static int sm_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct ctx *ctx = c;
	int rc = ctx->read == ctx->next ? 0 : records_read(ctx);

	*count = 0;
	if (!rc && ctx->read != ctx->next && (rc = sm_kick(ctx->comm->net->fabric, ctx->number)))
		ctx->comm->net->log(NCCL_EP_NET_WARN, "sm: rank %d: %s", ctx->comm->rank, ep_last_error());
	if (!rc)
		*count = sm_inbox_take(&ctx->comm->in[ctx->index], imms, max);
	return rc;
}

static const ncclEpNetHot_v1_t hot = {
	.iput = sm_iput,
	.iflush = sm_iflush,
	.test = sm_test,
	.progress = sm_progress,
};

extern const ncclEpNet_v1_t ncclEpNetPlugin_v1;
__attribute__((visibility("default"))) const ncclEpNet_v1_t ncclEpNetPlugin_v1 = {
	.version = NCCL_EP_NET_VERSION,
	.size = sizeof(ncclEpNet_v1_t),
	.name = "sm",
	.hot = &hot,
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
