/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An external net whose puts are copies by the CUDA driver, from and to host memory or memory of GPU 0, between threads
 * of one process: emulates GPUDirect without a NIC. It is unordered: small puts between host memory overtake the GPU's
 * copies.
 * Options: dmabuf=1: device memory is registered by its dma-buf only, as by most NICs; refuse=1: it is not registered;
 * strict=1 and dmabuf=1: rows between two ranks in host memory are an error.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/driver_api.h"
#include "nccl_ep_net.h"

#define CONTEXTS 4
#define PUTS 512u
#define SMALL 64u /* bytes: signals and control messages of engines */
#define MAGIC 0x436f7079u
#define EVENT_PLAIN 2u /* CU_EVENT_DISABLE_TIMING */

/* Functions of libcuda used here. */
struct cuda {
	unsigned (*init)(unsigned);
	unsigned (*retain)(struct CUctx_st **, int);
	unsigned (*release)(int);
	unsigned (*current)(struct CUctx_st *);
	unsigned (*relax)(unsigned *);
	unsigned (*stream)(struct CUstream_st **, unsigned);
	unsigned (*copy)(unsigned long long, unsigned long long, size_t, struct CUstream_st *);
	unsigned (*event)(void **, unsigned);
	unsigned (*record)(void *, struct CUstream_st *);
	unsigned (*query)(void *);
};

struct net {
	ncclEpNetLog_t log;
	struct cuda cu;
	struct CUctx_st *ctx;
	bool dmabuf, refuse, strict;
};

struct inbox {
	pthread_mutex_t lock;
	uint32_t *imm;
	size_t count, room;
};

struct comm {
	struct net *net;
	int rank, nranks;
	struct comm **peer;
	struct inbox in[CONTEXTS];
};

struct handle {
	uint32_t magic;
	int32_t pid;
	struct comm *comm;
};

struct key {
	uint8_t *base;
	uint64_t size;
	uint32_t kind;
};

struct mr {
	struct key own;
	struct key far[];
};

struct entry {
	void *event;
	bool copies; /* completion is known by the event */
	bool done, quiet, tested;
	bool imm;
	int peer;
	uint32_t value;
};

struct ctx {
	struct comm *comm;
	int index;
	struct CUstream_st *stream;
	uint64_t first, reached, next;
	struct entry entry[PUTS];
};

static int copy_finalize(void *n)
{
	struct net *net = n;

	if (net->ctx)
		net->cu.release(0);
	free(net);
	return 0;
}

static int copy_init(const ncclEpNetInit_v1_t *args, void **out)
{
	static const char *const names[] = { "cuInit",
					     "cuDevicePrimaryCtxRetain",
					     "cuDevicePrimaryCtxRelease_v2",
					     "cuCtxSetCurrent",
					     "cuThreadExchangeStreamCaptureMode",
					     "cuStreamCreate",
					     "cuMemcpyAsync",
					     "cuEventCreate",
					     "cuEventRecord",
					     "cuEventQuery" };
	struct net *net = calloc(1, sizeof(*net));
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	void **fn;

	if (!net)
		return -ENOMEM;
	net->log = args->log;
	net->dmabuf = strstr(args->options, "dmabuf=1") != NULL;
	net->strict = net->dmabuf || strstr(args->options, "strict=1");
	net->refuse = strstr(args->options, "refuse=1") != NULL;
	fn = (void **)&net->cu;
	for (size_t i = 0; lib && i < sizeof(names) / sizeof(names[0]); i++)
		fn[i] = dlsym(lib, names[i]);
	_Static_assert(sizeof(names) / sizeof(names[0]) * sizeof(void *) == sizeof(struct cuda), "all of them");
	if (!lib || net->cu.init(0) || net->cu.retain(&net->ctx, 0)) {
		args->log(NCCL_EP_NET_WARN, "copy: no GPU 0");
		free(net);
		return -ENODEV;
	}
	*out = net;
	return 0;
}

static int copy_devices(void *net, int *count)
{
	(void)net;
	*count = 1;
	return 0;
}

static int copy_getProperties(void *n, int dev, ncclEpNetProperties_v1_t *props)
{
	const struct net *net = n;

	(void)dev;
	*props = (ncclEpNetProperties_v1_t){
		.name = "copy",
		.numaNode = -1,
		.memKinds = NCCL_EP_NET_MEM_HOST | NCCL_EP_NET_MEM_CUDA,
		.immBits = 32,
		.maxInline = SMALL,
		.maxPuts = PUTS,
		.maxContexts = CONTEXTS,
		.dmaBuf = net->dmabuf || net->refuse,
		.flushes = 1,
		.maxPutSize = 1u << 30,
		.maxRegSize = SIZE_MAX,
	};
	return 0;
}

static int copy_closeComm(void *c)
{
	struct comm *comm = c;

	for (int i = 0; i < CONTEXTS; i++) {
		pthread_mutex_destroy(&comm->in[i].lock);
		free(comm->in[i].imm);
	}
	free(comm->peer);
	free(comm);
	return 0;
}

struct listener {
	struct comm *comm;
	bool taken;
};

static int copy_listen(void *net, int dev, int nranks, void *handle, void **out)
{
	struct listener *l = calloc(1, sizeof(*l));
	struct comm *comm = calloc(1, sizeof(*comm));
	struct handle h = { .magic = MAGIC, .pid = getpid(), .comm = comm };

	(void)dev;
	if (comm)
		comm->peer = calloc((size_t)nranks, sizeof(struct comm *));
	if (!l || !comm || !comm->peer) {
		free(l);
		free(comm);
		return -ENOMEM;
	}
	comm->net = net;
	comm->nranks = nranks;
	for (int i = 0; i < CONTEXTS; i++)
		pthread_mutex_init(&comm->in[i].lock, NULL);
	memset(handle, 0, NCCL_EP_NET_HANDLE_SIZE);
	memcpy(handle, &h, sizeof(h));
	l->comm = comm;
	*out = l;
	return 0;
}

static int copy_connect(void *listener, const void *handles, int nranks, int rank, void **out)
{
	struct listener *l = listener;
	struct handle h;

	for (int r = 0; r < nranks; r++) {
		memcpy(&h, (const uint8_t *)handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE, sizeof(h));
		if (h.magic != MAGIC || h.pid != getpid()) {
			l->comm->net->log(NCCL_EP_NET_WARN, "copy: rank %d is not a thread of this process", r);
			return -EINVAL;
		}
		l->comm->peer[r] = h.comm;
	}
	l->comm->rank = rank;
	l->taken = true;
	*out = l->comm;
	return 0;
}

static int copy_closeListen(void *listener)
{
	struct listener *l = listener;

	if (!l->taken)
		copy_closeComm(l->comm);
	free(l);
	return 0;
}

/* The calling thread is one of the library's own. */
static void enter(const struct net *net)
{
	unsigned relaxed = EP_CU_CAPTURE_MODE_RELAXED;

	net->cu.current(net->ctx);
	net->cu.relax(&relaxed);
}

static int copy_createContext(void *c, int index, void **out)
{
	struct comm *comm = c;
	struct ctx *ctx = calloc(1, sizeof(*ctx));
	unsigned bad;

	if (!ctx)
		return -ENOMEM;
	ctx->comm = comm;
	ctx->index = index;
	comm->net->cu.current(comm->net->ctx);
	bad = comm->net->cu.stream(&ctx->stream, EP_CU_STREAM_NON_BLOCKING);
	for (uint32_t i = 0; !bad && i < PUTS; i++)
		bad = comm->net->cu.event(&ctx->entry[i].event, EVENT_PLAIN);
	if (bad) {
		comm->net->log(NCCL_EP_NET_WARN, "copy: no stream or event: CUDA error %u", bad);
		free(ctx);
		return -EIO;
	}
	*out = ctx;
	return 0;
}

/* The stream and its events are leaked: freeing them would wait for kernels. */
static int copy_destroyContext(void *ctx)
{
	free(ctx);
	return 0;
}

static int mr_make(struct comm *comm, const ncclEpNetMem_v1_t *mem, void *key, void **out)
{
	struct mr *mr = calloc(1, sizeof(*mr) + (size_t)comm->nranks * sizeof(mr->far[0]));

	if (!mr)
		return -ENOMEM;
	mr->own = (struct key){ mem->ptr, mem->size, mem->kind };
	memset(key, 0, NCCL_EP_NET_KEY_SIZE);
	memcpy(key, &mr->own, sizeof(mr->own));
	*out = mr;
	return 0;
}

static int copy_regMr(void *c, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	struct comm *comm = c;

	if (mem->kind != NCCL_EP_NET_MEM_HOST && (comm->net->dmabuf || comm->net->refuse)) {
		comm->net->log(NCCL_EP_NET_WARN, "copy: no peer memory module");
		return -ENOTSUP;
	}
	return mr_make(comm, mem, key, mr);
}

static int copy_regMrDmaBuf(void *c, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	struct comm *comm = c;
	struct stat st;

	if (comm->net->refuse || mem->fd < 0 || fstat(mem->fd, &st)) {
		comm->net->log(NCCL_EP_NET_WARN, "copy: no dma-buf in %d", mem->fd);
		return -EOPNOTSUPP;
	}
	return mr_make(comm, mem, key, mr);
}

static int copy_shareMr(void *c, void *m, const void *keys)
{
	struct comm *comm = c;
	struct mr *mr = m;

	for (int r = 0; r < comm->nranks; r++)
		memcpy(&mr->far[r], (const uint8_t *)keys + (size_t)r * NCCL_EP_NET_KEY_SIZE, sizeof(mr->far[r]));
	return 0;
}

static int copy_deregMr(void *comm, void *mr)
{
	(void)comm;
	free(mr);
	return 0;
}

static int copy_queryLastError(void *comm, int peer, const char **message)
{
	(void)comm;
	(void)peer;
	*message = "";
	return 0;
}

static int imm_give(struct ctx *ctx, int peer, uint32_t value)
{
	struct inbox *in = &ctx->comm->peer[peer]->in[ctx->index];
	int rc = 0;

	pthread_mutex_lock(&in->lock);
	if (in->count == in->room) {
		size_t room = in->room ? 2 * in->room : 64;
		uint32_t *imm = realloc(in->imm, room * sizeof(*imm));

		if (imm) {
			in->imm = imm;
			in->room = room;
		} else {
			rc = -ENOMEM;
		}
	}
	if (!rc)
		in->imm[in->count++] = value;
	pthread_mutex_unlock(&in->lock);
	return rc;
}

/* By the CPU, immediately. P1: a word is one store. */
static void bytes_store(uint8_t *to, const void *from, uint64_t size)
{
	uint64_t word;

	if (size == 8 && (uintptr_t)to % 8 == 0) {
		memcpy(&word, from, 8);
		__atomic_store_n((uint64_t *)to, word, __ATOMIC_RELEASE);
	} else {
		memcpy(to, from, size);
	}
}

static bool inside(const struct key *key, uint64_t offset, uint64_t size)
{
	return offset <= key->size && size <= key->size - offset;
}

static int copy_iput(void *c, const ncclEpNetPut_v1_t *put, void **request)
{
	struct ctx *ctx = c;
	const struct net *net = ctx->comm->net;
	const struct mr *src = put->srcMr, *dst = put->dstMr;
	const struct key *to = &dst->far[put->peer];
	bool small = put->flags & NCCL_EP_NET_INLINE;
	const uint8_t *from = small ? put->src : src->own.base + put->srcOffset;
	struct entry *e = &ctx->entry[ctx->next % PUTS];

	*request = NULL;
	if (!inside(to, put->dstOffset, put->size) || (!small && !inside(&src->own, put->srcOffset, put->size)))
		return -EINVAL;
	if (ctx->next - ctx->first == PUTS)
		return 0;
	*e = (struct entry){ .event = e->event, .quiet = put->flags & NCCL_EP_NET_QUIET, .peer = put->peer };
	e->copies = to->kind != NCCL_EP_NET_MEM_HOST || (!small && src->own.kind != NCCL_EP_NET_MEM_HOST);
	if (!e->copies && net->strict && put->size > SMALL) {
		net->log(NCCL_EP_NET_WARN, "copy: %llu bytes from CPU to CPU", (unsigned long long)put->size);
		return -EINVAL;
	}
	if (!e->copies) {
		bytes_store(to->base + put->dstOffset, from, put->size);
		if (put->flags & NCCL_EP_NET_IMM && imm_give(ctx, put->peer, put->imm))
			return -ENOMEM;
	} else {
		enter(net);
		if (net->cu.copy((unsigned long long)(uintptr_t)(to->base + put->dstOffset),
				 (unsigned long long)(uintptr_t)from, put->size, ctx->stream) ||
		    net->cu.record(e->event, ctx->stream))
			return -EIO;
		e->imm = put->flags & NCCL_EP_NET_IMM;
		e->value = put->imm;
	}
	ctx->next++;
	*request = e->quiet ? NCCL_EP_NET_QUIET_REQUEST : (void *)e;
	return 0;
}

static void entries_free(struct ctx *ctx)
{
	while (ctx->first < ctx->reached) {
		const struct entry *e = &ctx->entry[ctx->first % PUTS];

		if (!e->quiet && !e->tested)
			return;
		ctx->first++;
	}
}

static int copy_iflush(void *c, void *mr, void **request)
{
	static struct entry done = { .done = true };

	(void)c;
	(void)mr;
	*request = &done;
	return 0;
}

static int copy_test(void *c, void *request, int *done)
{
	struct ctx *ctx = c;
	struct entry *e = request;

	*done = e->done;
	if (e->done && e->event) {
		e->tested = true;
		entries_free(ctx);
	}
	return 0;
}

/* Whether everything before the oldest put in flight succeeded. */
static int entries_reach(struct ctx *ctx)
{
	enter(ctx->comm->net);
	for (; ctx->reached < ctx->next; ctx->reached++) {
		struct entry *e = &ctx->entry[ctx->reached % PUTS];
		unsigned result = e->copies ? ctx->comm->net->cu.query(e->event) : EP_CU_OK;

		if (result == EP_CU_NOT_READY)
			break;
		if (result) {
			ctx->comm->net->log(NCCL_EP_NET_WARN, "copy: a copy failed: CUDA error %u", result);
			return -EIO;
		}
		if (e->imm && imm_give(ctx, e->peer, e->value))
			return -ENOMEM;
		e->done = true;
	}
	entries_free(ctx);
	return 0;
}

static int copy_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct ctx *ctx = c;
	struct inbox *in = &ctx->comm->in[ctx->index];
	int rc = ctx->reached < ctx->next ? entries_reach(ctx) : 0;
	size_t n;

	pthread_mutex_lock(&in->lock);
	n = in->count < (size_t)max ? in->count : (size_t)max;
	memcpy(imms, in->imm, n * sizeof(*imms));
	in->count -= n;
	memmove(in->imm, in->imm + n, in->count * sizeof(*imms));
	pthread_mutex_unlock(&in->lock);
	*count = (int)n;
	return rc;
}

static const ncclEpNetHot_v1_t hot = {
	.iput = copy_iput,
	.iflush = copy_iflush,
	.test = copy_test,
	.progress = copy_progress,
};

extern const ncclEpNet_v1_t ncclEpNetPlugin_v1;
__attribute__((visibility("default"))) const ncclEpNet_v1_t ncclEpNetPlugin_v1 = {
	.version = NCCL_EP_NET_VERSION,
	.size = sizeof(ncclEpNet_v1_t),
	.name = "copy",
	.hot = &hot,
	.init = copy_init,
	.finalize = copy_finalize,
	.devices = copy_devices,
	.getProperties = copy_getProperties,
	.listen = copy_listen,
	.connect = copy_connect,
	.closeListen = copy_closeListen,
	.closeComm = copy_closeComm,
	.createContext = copy_createContext,
	.destroyContext = copy_destroyContext,
	.regMr = copy_regMr,
	.regMrDmaBuf = copy_regMrDmaBuf,
	.shareMr = copy_shareMr,
	.deregMr = copy_deregMr,
	.queryLastError = copy_queryLastError,
};
