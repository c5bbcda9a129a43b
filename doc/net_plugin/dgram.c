/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A minimal transport that keeps every promise of nccl_ep_net.h: each put is one datagram between UNIX sockets, which
 * are reliable, ordered, and have no room while the receiver is slow. README.md shows how to build and use it. A real
 * network differs in iput and progress, not in structure.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <nccl_ep_net.h>

#define CONTEXTS 4
#define PUT_MAX 32768 /* several datagrams must fit in the socket's buffer */
#define MRS 256

/* The wire format; all processes are on one host, so the byte order does not matter. */
struct frame {
	uint32_t flags, imm, mr, reserved;
	uint64_t offset, size;
};

struct net {
	ncclEpNetLog_t log;
};

struct mr {
	uint8_t *base;
	uint64_t size;
	uint32_t index; /* equal on all ranks, which register in the same order; shareMr checks it */
	int shared;
};

struct comm {
	struct net *net;
	int rank, nranks;
	int fds[CONTEXTS];
	struct sockaddr_un *names; /* [nranks] of context 0; other contexts differ in the last digit */
	struct mr *mrs[MRS];
	int *failed; /* [nranks] set by any context, atomically */
};

struct ctx {
	struct comm *comm;
	int fd, index;
};

static char done_request; /* a put is complete when the kernel has copied its bytes */

static int dgram_init(const ncclEpNetInit_v1_t *args, void **out)
{
	struct net *net = calloc(1, sizeof(*net));

	if (!net)
		return -ENOMEM;
	net->log = args->log;
	*out = net;
	return 0;
}

static int dgram_finalize(void *net)
{
	free(net);
	return 0;
}

static int dgram_devices(void *net, int *count)
{
	(void)net;
	*count = 1;
	return 0;
}

static int dgram_getProperties(void *net, int dev, ncclEpNetProperties_v1_t *props)
{
	(void)net;
	(void)dev;
	*props = (ncclEpNetProperties_v1_t){
		.name = "dgram",
		.ordered = 1,
		.numaNode = -1,
		.memKinds = NCCL_EP_NET_MEM_HOST,
		.immBits = 32,
		.maxInline = PUT_MAX,
		.maxContexts = CONTEXTS,
		.flushes = 1,
		.maxPutSize = PUT_MAX,
		.maxRegSize = SIZE_MAX,
	};
	return 0;
}

/* An abstract name leaves nothing in the file system when a process is killed. */
static socklen_t name_of(struct sockaddr_un *name, uint64_t id, int index)
{
	int n;

	memset(name, 0, sizeof(*name));
	name->sun_family = AF_UNIX;
	n = snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "nccl_ep_dgram-%016llx-%d", (unsigned long long)id,
		     index);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void fds_close(const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

struct listener {
	struct net *net;
	uint64_t id;
	int fds[CONTEXTS], taken;
};

static int dgram_listen(void *net, int dev, int nranks, void *handle, void **out)
{
	struct listener *l = calloc(1, sizeof(*l));
	struct sockaddr_un name;
	int i, rc;

	(void)dev;
	(void)nranks;
	if (!l)
		return -ENOMEM;
	l->net = net;
	if (getentropy(&l->id, sizeof(l->id))) {
		rc = -errno;
		goto free_listener;
	}
	for (i = 0; i < CONTEXTS; i++) {
		socklen_t n = name_of(&name, l->id, i);

		l->fds[i] = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (l->fds[i] >= 0 && !bind(l->fds[i], (struct sockaddr *)&name, n))
			continue;
		rc = -errno;
		l->net->log(NCCL_EP_NET_WARN, "dgram: cannot create a socket: %s", strerror(-rc));
		fds_close(l->fds, i + (l->fds[i] >= 0));
		goto free_listener;
	}
	memset(handle, 0, NCCL_EP_NET_HANDLE_SIZE);
	memcpy(handle, &l->id, sizeof(l->id));
	*out = l;
	return 0;

free_listener:
	free(l);
	return rc;
}

static int dgram_connect(void *listener, const void *handles, int nranks, int rank, void **out)
{
	struct listener *l = listener;
	struct comm *comm = calloc(1, sizeof(*comm));
	uint64_t id;

	if (!comm)
		return -ENOMEM;
	comm->names = calloc((size_t)nranks, sizeof(*comm->names));
	comm->failed = calloc((size_t)nranks, sizeof(*comm->failed));
	if (!comm->names || !comm->failed) {
		free(comm->names);
		free(comm->failed);
		free(comm);
		return -ENOMEM;
	}
	for (int r = 0; r < nranks; r++) {
		memcpy(&id, (const char *)handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE, sizeof(id));
		name_of(&comm->names[r], id, 0);
	}
	comm->net = l->net;
	comm->rank = rank;
	comm->nranks = nranks;
	memcpy(comm->fds, l->fds, sizeof(comm->fds));
	l->taken = 1;
	*out = comm;
	return 0;
}

static int dgram_closeListen(void *listener)
{
	struct listener *l = listener;

	if (!l->taken)
		fds_close(l->fds, CONTEXTS);
	free(l);
	return 0;
}

static int dgram_closeComm(void *c)
{
	struct comm *comm = c;

	fds_close(comm->fds, CONTEXTS);
	free(comm->names);
	free(comm->failed);
	free(comm);
	return 0;
}

static int dgram_createContext(void *c, int index, void **out)
{
	struct comm *comm = c;
	struct ctx *ctx = index >= 0 && index < CONTEXTS ? calloc(1, sizeof(*ctx)) : NULL;

	if (!ctx)
		return index >= 0 && index < CONTEXTS ? -ENOMEM : -EINVAL;
	*ctx = (struct ctx){ .comm = comm, .fd = comm->fds[index], .index = index };
	*out = ctx;
	return 0;
}

static int dgram_destroyContext(void *ctx)
{
	free(ctx);
	return 0;
}

static int dgram_regMr(void *c, const ncclEpNetMem_v1_t *mem, void *key, void **out)
{
	struct comm *comm = c;
	uint64_t words[2];
	struct mr *mr;

	for (uint32_t i = 0; i < MRS; i++) {
		if (comm->mrs[i])
			continue;
		mr = calloc(1, sizeof(*mr));
		if (!mr)
			return -ENOMEM;
		*mr = (struct mr){ .base = mem->ptr, .size = mem->size, .index = i };
		words[0] = i;
		words[1] = mem->size;
		memset(key, 0, NCCL_EP_NET_KEY_SIZE);
		memcpy(key, words, sizeof(words));
		/* Other threads look it up while they receive. */
		__atomic_store_n(&comm->mrs[i], mr, __ATOMIC_RELEASE);
		*out = mr;
		return 0;
	}
	comm->net->log(NCCL_EP_NET_WARN, "dgram: region limit reached (%d)", MRS);
	return -ENOSPC;
}

static int dgram_shareMr(void *c, void *m, const void *keys)
{
	struct comm *comm = c;
	struct mr *mr = m;
	uint64_t words[2];

	for (int r = 0; r < comm->nranks; r++) {
		memcpy(words, (const char *)keys + (size_t)r * NCCL_EP_NET_KEY_SIZE, sizeof(words));
		if (words[0] == mr->index && words[1] == mr->size)
			continue;
		comm->net->log(NCCL_EP_NET_WARN, "dgram: ranks %d and %d registered different memory", r, comm->rank);
		return -EINVAL;
	}
	mr->shared = 1;
	return 0;
}

static int dgram_deregMr(void *c, void *m)
{
	struct comm *comm = c;
	struct mr *mr = m;

	__atomic_store_n(&comm->mrs[mr->index], NULL, __ATOMIC_RELAXED);
	free(mr);
	return 0;
}

/* The library asks here why a peer failed; messages to the log are for people. */
static int dgram_queryLastError(void *c, int peer, const char **message)
{
	struct comm *comm = c;

	if (peer < 0 || peer >= comm->nranks)
		return -EINVAL;
	if (!__atomic_load_n(&comm->failed[peer], __ATOMIC_RELAXED))
		return 0;
	*message = "dgram: the socket of the peer is closed";
	return -EREMOTEIO;
}

static int peer_fail(struct ctx *ctx, int peer, int error)
{
	__atomic_store_n(&ctx->comm->failed[peer], 1, __ATOMIC_RELAXED);
	ctx->comm->net->log(NCCL_EP_NET_WARN, "dgram: rank %d is lost: %s", peer, strerror(error));
	return -EREMOTEIO;
}

static int dgram_iput(void *c, const ncclEpNetPut_v1_t *put, void **request)
{
	struct ctx *ctx = c;
	const struct mr *src = put->srcMr, *dst = put->dstMr;
	const void *from = put->flags & NCCL_EP_NET_INLINE ? put->src : NULL;
	struct frame f = { .flags = put->flags, .imm = put->imm };
	struct iovec iov[2] = { { &f, sizeof(f) }, { NULL, 0 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	struct sockaddr_un name;

	*request = NULL;
	if (put->peer < 0 || put->peer >= ctx->comm->nranks || !dst || !dst->shared || put->size > PUT_MAX ||
	    (!from && (!src || put->srcOffset > src->size || put->size > src->size - put->srcOffset)))
		return -EINVAL;
	if (__atomic_load_n(&ctx->comm->failed[put->peer], __ATOMIC_RELAXED))
		return -EREMOTEIO;
	f.mr = dst->index;
	f.offset = put->dstOffset;
	f.size = put->size;
	iov[1].iov_base = from ? (void *)(uintptr_t)from : src->base + put->srcOffset;
	iov[1].iov_len = put->size;
	name = ctx->comm->names[put->peer];
	msg.msg_name = &name;
	msg.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name.sun_path + 1));
	name.sun_path[strlen(name.sun_path + 1)] = (char)('0' + ctx->index);
	if (sendmsg(ctx->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : peer_fail(ctx, put->peer, errno);
	*request = put->flags & NCCL_EP_NET_QUIET ? NCCL_EP_NET_QUIET_REQUEST : &done_request;
	return 0;
}

static int dgram_iflush(void *ctx, void *mr, void **request)
{
	(void)ctx;
	(void)mr;
	*request = &done_request;
	return 0;
}

static int dgram_test(void *ctx, void *request, int *done)
{
	(void)ctx;
	(void)request;
	*done = 1;
	return 0;
}

/* The destination of a frame, or NULL: input from a peer is not trusted. */
static uint8_t *place_of(struct comm *comm, uint32_t index, uint64_t offset, uint64_t size)
{
	struct mr *mr = index < MRS ? __atomic_load_n(&comm->mrs[index], __ATOMIC_ACQUIRE) : NULL;

	return mr && offset <= mr->size && size <= mr->size - offset ? mr->base + offset : NULL;
}

/* P1: an aligned word is one store; a release, so that earlier bytes are visible before it (P3). */
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

static int dgram_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct ctx *ctx = c;
	struct {
		struct frame f;
		uint8_t data[PUT_MAX];
	} in;
	int n = 0;

	/* Datagrams without immediate data take no entry of imms: max also limits the work of one call. */
	for (int i = 0; i < max && n < max; i++) {
		ssize_t got = recv(ctx->fd, &in, sizeof(in), MSG_DONTWAIT);
		uint8_t *to;

		if (got < (ssize_t)sizeof(in.f))
			break;
		to = place_of(ctx->comm, in.f.mr, in.f.offset, in.f.size);
		if (!to || (size_t)got != sizeof(in.f) + in.f.size) {
			ctx->comm->net->log(NCCL_EP_NET_WARN, "dgram: dropped a malformed put");
			continue;
		}
		bytes_store(to, in.data, in.f.size);
		if (in.f.flags & NCCL_EP_NET_IMM)
			imms[n++] = in.f.imm;
	}
	*count = n;
	return 0;
}

static const ncclEpNetHot_v1_t hot = {
	.iput = dgram_iput,
	.iflush = dgram_iflush,
	.test = dgram_test,
	.progress = dgram_progress,
};

extern const ncclEpNet_v1_t ncclEpNetPlugin_v1;
__attribute__((visibility("default"))) const ncclEpNet_v1_t ncclEpNetPlugin_v1 = {
	.version = NCCL_EP_NET_VERSION,
	.size = sizeof(ncclEpNet_v1_t),
	.name = "dgram",
	.hot = &hot,
	.init = dgram_init,
	.finalize = dgram_finalize,
	.devices = dgram_devices,
	.getProperties = dgram_getProperties,
	.listen = dgram_listen,
	.connect = dgram_connect,
	.closeListen = dgram_closeListen,
	.closeComm = dgram_closeComm,
	.createContext = dgram_createContext,
	.destroyContext = dgram_destroyContext,
	.regMr = dgram_regMr,
	.shareMr = dgram_shareMr,
	.deregMr = dgram_deregMr,
	.queryLastError = dgram_queryLastError,
};
