/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin that models a NIC behind a GPU whose memory shows writes late: late(dgram). What is put arrives, and its
 * immediate data is returned, but its bytes are stored only when a flush that began after that ends, which takes a few
 * polls: P5 of nccl_ep_net.h, to the letter. NCCL flushes for this on GPUs before sm_90, where a CPU's store overtakes
 * a NIC's writes on their way through the GPU, and where such a store comes by C2C (src/graph/paths.cc,
 * ncclTopoNeedFlush). Up to 16 bytes are stored at once: that is what engines put to each other, in host memory, which
 * a NIC's completion is ordered with. Options:
 *   force=0   does not say that it must be flushed: what then arrives is never seen
 *
 * A put becomes one put of the inner net, header and bytes, to an inbox at the receiver, who takes it out in progress.
 * One inbox for each context is enough: dgram stores bytes in progress too, and with max = 1 those of one put.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <nccl_ep_net.h>

#define CONTEXTS 4
#define MRS 256
#define AT_ONCE 16u /* bytes */
#define POLLS 16u   /* the longest flush */

struct net {
	const ncclEpNet_v1_t *ops; /* of the inner net */
	void *inner;
	int force;
};

struct header {
	uint32_t flags, imm, mr, reserved;
	uint64_t offset, size;
};

struct mr {
	uint8_t *base;
	uint64_t size;
	uint32_t index; /* equal on all ranks */
};

/* Bytes that arrived and do not show. */
struct piece {
	struct piece *next;
	uint8_t *to;
	uint64_t size;
	uint8_t data[];
};

struct comm {
	const ncclEpNet_v1_t *ops;
	void *inner, *inbox_mr;
	uint8_t *inbox; /* [CONTEXTS][frame] */
	uint64_t frame;
	struct mr *mrs[MRS]; /* read by contexts: atomic */
};

struct listener {
	struct net *net;
	void *inner;
	uint64_t frame;
};

struct ctx {
	struct comm *comm;
	void *inner;
	int index;
	uint8_t *frame; /* of a put */
	struct piece *arrived, **arrived_end, *flushing;
	uint32_t polls, due, luck; /* the flush under way ends at poll `due` */
	int busy;
};

static int late_init(const ncclEpNetInit_v1_t *args, void **out)
{
	struct net *net = calloc(1, sizeof(*net));

	if (!net || !args->inner) {
		free(net);
		return net ? -EINVAL : -ENOMEM;
	}
	*net = (struct net){ .ops = args->inner,
			     .inner = args->innerNet,
			     .force = strcmp(args->options, "force=0") != 0 };
	*out = net;
	return 0;
}

static int late_finalize(void *net)
{
	free(net);
	return 0;
}

static int late_devices(void *n, int *count)
{
	struct net *net = n;

	return net->ops->devices(net->inner, count);
}

static int late_getProperties(void *n, int dev, ncclEpNetProperties_v1_t *props)
{
	struct net *net = n;
	int rc = net->ops->getProperties(net->inner, dev, props);

	if (rc)
		return rc;
	props->ordered = 0;
	props->forceFlush = (uint32_t)net->force;
	props->maxInline = 64;
	props->maxPutSize -= sizeof(struct header);
	props->maxContexts = props->maxContexts < CONTEXTS ? props->maxContexts : CONTEXTS;
	return 0;
}

static int late_listen(void *n, int dev, int nranks, void *handle, void **out)
{
	struct listener *l = calloc(1, sizeof(*l));
	ncclEpNetProperties_v1_t props;
	struct net *net = n;
	int rc = l ? net->ops->getProperties(net->inner, dev, &props) : -ENOMEM;

	rc = rc ? rc : net->ops->listen(net->inner, dev, nranks, handle, &l->inner);
	if (rc) {
		free(l);
		return rc;
	}
	l->net = net;
	l->frame = props.maxPutSize;
	*out = l;
	return 0;
}

/* All ranks do the same: their keys are this one's. */
static int inbox_open(struct comm *comm, int nranks)
{
	uint8_t key[NCCL_EP_NET_KEY_SIZE] = { 0 }, *keys = calloc((size_t)nranks, sizeof(key));
	ncclEpNetMem_v1_t mem = { .size = CONTEXTS * comm->frame, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
	int rc;

	mem.ptr = comm->inbox = calloc(CONTEXTS, comm->frame);
	rc = keys && mem.ptr ? comm->ops->regMr(comm->inner, &mem, key, &comm->inbox_mr) : -ENOMEM;
	for (int r = 0; !rc && r < nranks; r++)
		memcpy(keys + (size_t)r * sizeof(key), key, sizeof(key));
	rc = rc ? rc : comm->ops->shareMr(comm->inner, comm->inbox_mr, keys);
	free(keys);
	return rc;
}

static int late_closeComm(void *c)
{
	struct comm *comm = c;

	if (comm->inbox_mr)
		comm->ops->deregMr(comm->inner, comm->inbox_mr);
	free(comm->inbox);
	comm->ops->closeComm(comm->inner);
	free(comm);
	return 0;
}

static int late_connect(void *listener, const void *handles, int nranks, int rank, void **out)
{
	struct comm *comm = calloc(1, sizeof(*comm));
	struct listener *l = listener;
	int rc = comm ? l->net->ops->connect(l->inner, handles, nranks, rank, &comm->inner) : -ENOMEM;

	if (rc || !comm->inner) {
		free(comm);
		return rc;
	}
	comm->ops = l->net->ops;
	comm->frame = l->frame;
	rc = inbox_open(comm, nranks);
	if (rc)
		late_closeComm(comm);
	else
		*out = comm;
	return rc;
}

static int late_closeListen(void *listener)
{
	struct listener *l = listener;
	int rc = l->net->ops->closeListen(l->inner);

	free(l);
	return rc;
}

static int late_createContext(void *c, int index, void **out)
{
	struct ctx *ctx = calloc(1, sizeof(*ctx));
	struct comm *comm = c;
	int rc = ctx && index < CONTEXTS ? comm->ops->createContext(comm->inner, index, &ctx->inner) : -ENOMEM;

	if (!rc)
		ctx->frame = malloc(comm->frame);
	if (rc || !ctx->frame) {
		free(ctx);
		return rc ? rc : -ENOMEM;
	}
	ctx->comm = comm;
	ctx->index = index;
	ctx->arrived_end = &ctx->arrived;
	*out = ctx;
	return 0;
}

static void pieces_end(struct piece *piece, int store)
{
	struct piece *next;

	for (; piece; piece = next) {
		next = piece->next;
		if (store)
			memcpy(piece->to, piece->data, piece->size);
		free(piece);
	}
}

static int late_destroyContext(void *c)
{
	struct ctx *ctx = c;
	int rc = ctx->comm->ops->destroyContext(ctx->inner);

	pieces_end(ctx->arrived, 0);
	pieces_end(ctx->flushing, 0);
	free(ctx->frame);
	free(ctx);
	return rc;
}

static int late_regMr(void *c, const ncclEpNetMem_v1_t *mem, void *key, void **out)
{
	struct mr *mr = calloc(1, sizeof(*mr));
	struct comm *comm = c;
	uint32_t i = 0;

	while (i < MRS && comm->mrs[i])
		i++;
	if (!mr || i == MRS) {
		free(mr);
		return mr ? -ENOSPC : -ENOMEM;
	}
	*mr = (struct mr){ .base = mem->ptr, .size = mem->size, .index = i };
	memset(key, 0, NCCL_EP_NET_KEY_SIZE);
	__atomic_store_n(&comm->mrs[i], mr, __ATOMIC_RELEASE);
	*out = mr;
	return 0;
}

static int late_shareMr(void *comm, void *mr, const void *keys)
{
	(void)comm;
	(void)mr;
	(void)keys;
	return 0;
}

static int late_deregMr(void *c, void *m)
{
	struct comm *comm = c;
	struct mr *mr = m;

	__atomic_store_n(&comm->mrs[mr->index], NULL, __ATOMIC_RELAXED);
	free(mr);
	return 0;
}

static int late_queryLastError(void *c, int peer, const char **message)
{
	struct comm *comm = c;

	return comm->ops->queryLastError(comm->inner, peer, message);
}

static int late_iput(void *c, const ncclEpNetPut_v1_t *put, void **request)
{
	struct ctx *ctx = c;
	const struct mr *src = put->srcMr, *dst = put->dstMr;
	const uint8_t *from = put->flags & NCCL_EP_NET_INLINE ? put->src : src->base + put->srcOffset;
	struct header header = { .flags = put->flags, .imm = put->imm, .mr = dst->index };
	ncclEpNetPut_v1_t whole = {
		.peer = put->peer,
		.flags = (put->flags & NCCL_EP_NET_QUIET) | NCCL_EP_NET_INLINE | NCCL_EP_NET_IMM,
		.src = ctx->frame,
		.dstMr = ctx->comm->inbox_mr,
		.dstOffset = (uint64_t)ctx->index * ctx->comm->frame,
		.size = sizeof(header) + put->size,
	};

	*request = NULL;
	if (whole.size > ctx->comm->frame)
		return -EINVAL;
	header.offset = put->dstOffset;
	header.size = put->size;
	memcpy(ctx->frame, &header, sizeof(header));
	memcpy(ctx->frame + sizeof(header), from, put->size);
	return ctx->comm->ops->hot->iput(ctx->inner, &whole, request);
}

static char flush_request;

/* Covers what has arrived by now. */
static int late_iflush(void *c, void *mr, void **request)
{
	struct ctx *ctx = c;

	(void)mr;
	*request = NULL;
	if (ctx->busy)
		return 0;
	ctx->flushing = ctx->arrived;
	ctx->arrived = NULL;
	ctx->arrived_end = &ctx->arrived;
	ctx->luck = ctx->luck * 1664525u + 1013904223u;
	ctx->due = ctx->polls + (ctx->luck >> 16) % POLLS;
	ctx->busy = 1;
	*request = &flush_request;
	return 0;
}

static int late_test(void *c, void *request, int *done)
{
	struct ctx *ctx = c;

	if (request != &flush_request)
		return ctx->comm->ops->hot->test(ctx->inner, request, done);
	*done = (int32_t)(ctx->polls - ctx->due) >= 0;
	if (*done) {
		pieces_end(ctx->flushing, 1);
		ctx->flushing = NULL;
		ctx->busy = 0;
	}
	return 0;
}

/* What is in the inbox. */
static int frame_take(struct ctx *ctx, struct header *header)
{
	const uint8_t *frame = ctx->comm->inbox + (uint64_t)ctx->index * ctx->comm->frame;
	struct piece *piece;
	struct mr *mr;

	memcpy(header, frame, sizeof(*header));
	mr = header->mr < MRS ? __atomic_load_n(&ctx->comm->mrs[header->mr], __ATOMIC_ACQUIRE) : NULL;
	if (!mr || header->offset > mr->size || header->size > mr->size - header->offset)
		return -EPROTO;
	if (header->size <= AT_ONCE) {
		memcpy(mr->base + header->offset, frame + sizeof(*header), header->size);
		return 0;
	}
	piece = malloc(sizeof(*piece) + header->size);
	if (!piece)
		return -ENOMEM;
	*piece = (struct piece){ .to = mr->base + header->offset, .size = header->size };
	memcpy(piece->data, frame + sizeof(*header), header->size);
	*ctx->arrived_end = piece;
	ctx->arrived_end = &piece->next;
	return 0;
}

static int late_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct ctx *ctx = c;
	struct header header;
	int one = 0, rc = 0;
	uint32_t none;

	ctx->polls++;
	*count = 0;
	for (int i = 0; i < max && !rc; i++) {
		rc = ctx->comm->ops->hot->progress(ctx->inner, &none, 1, &one);
		if (rc || !one)
			break;
		rc = frame_take(ctx, &header);
		if (!rc && header.flags & NCCL_EP_NET_IMM)
			imms[(*count)++] = header.imm;
	}
	return rc;
}

static const ncclEpNetHot_v1_t hot = {
	.iput = late_iput, .iflush = late_iflush, .test = late_test, .progress = late_progress
};

extern const ncclEpNet_v1_t ncclEpNetPlugin_v1;
__attribute__((visibility("default"))) const ncclEpNet_v1_t ncclEpNetPlugin_v1 = {
	.version = NCCL_EP_NET_VERSION,
	.size = sizeof(ncclEpNet_v1_t),
	.name = "late",
	.hot = &hot,
	.init = late_init,
	.finalize = late_finalize,
	.devices = late_devices,
	.getProperties = late_getProperties,
	.listen = late_listen,
	.connect = late_connect,
	.closeListen = late_closeListen,
	.closeComm = late_closeComm,
	.createContext = late_createContext,
	.destroyContext = late_destroyContext,
	.regMr = late_regMr,
	.shareMr = late_shareMr,
	.deregMr = late_deregMr,
	.queryLastError = late_queryLastError,
};
