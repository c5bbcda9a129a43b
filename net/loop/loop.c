/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one host as if a network were between them: a put is a copy by the thread that drives the context, into
 * memory that this net has mapped itself. Nothing is queued but immediates, so requests are complete when they are
 * made. Options:
 *   unordered=1  it promises no order (it keeps it all the same), for layers that must not need it
 *   devices=N    so many devices, all alike, as if they were NICs beside each other
 */
#include "net/loop/loop.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "net/table.h"
#include "util/error.h"

#define DEVICES_MAX 16

struct loop_net {
	uint64_t unordered, devices;
	char name[DEVICES_MAX][16], path[DEVICES_MAX][32];
};

struct loop_listener {
	struct loop_header *page; /* NULL once a comm has it */
	int fd;
};

static int loop_init(const ncclEpNetInit_v1_t *args, void **net)
{
	struct loop_net *loop = calloc(1, sizeof(*loop));
	int rc;

	if (!loop)
		return EP_FAIL(EP_NET, ENOMEM, "loop: no memory");
	const struct ep_net_option options[] = {
		{ "unordered", &loop->unordered, 1, NULL },
		{ "devices", &loop->devices, DEVICES_MAX, NULL },
	};

	loop->devices = 1;
	rc = ep_net_options("loop", args->options, options, sizeof(options) / sizeof(options[0]));
	if (rc) {
		free(loop);
		return rc;
	}
	for (int i = 0; i < DEVICES_MAX; i++) {
		snprintf(loop->name[i], sizeof(loop->name[i]), "loop%d", i);
		snprintf(loop->path[i], sizeof(loop->path[i]), "/sys/devices/loop/%d", i);
	}
	*net = loop;
	return 0;
}

static int loop_finalize(void *net)
{
	free(net);
	return 0;
}

static int loop_devices(void *net, int *count)
{
	const struct loop_net *loop = net;

	*count = (int)loop->devices;
	return 0;
}

static int loop_getProperties(void *net, int dev, ncclEpNetProperties_v1_t *props)
{
	const struct loop_net *loop = net;

	if (dev < 0 || (uint64_t)dev >= loop->devices)
		return EP_FAIL(EP_NET, EP_EARG, "loop: no device %d of %d", dev, (int)loop->devices);
	*props = (ncclEpNetProperties_v1_t){
		.name = loop->devices > 1 ? loop->name[dev] : "loop",
		.pciPath = loop->devices > 1 ? loop->path[dev] : NULL,
		.ordered = !loop->unordered,
		.signals = NCCL_EP_NET_SIGNAL_WEAK | (loop->unordered ? 0 : NCCL_EP_NET_SIGNAL_STRONG),
		.memKinds = NCCL_EP_NET_MEM_HOST,
		.immBits = 32,
		.maxInline = 4096,
		.maxContexts = LOOP_CONTEXTS,
		.gets = 1,
		.flushes = 1,
		.maxPutSize = SIZE_MAX,
		.maxRegSize = SIZE_MAX,
	};
	return 0;
}

static int loop_listen(void *net, int dev, int nranks, void *handle, void **listener)
{
	const struct loop_net *loop = net;
	struct loop_handle mine;
	struct loop_listener *l;
	int rc;

	if (dev < 0 || (uint64_t)dev >= loop->devices || nranks < 1 || nranks > 1 << 20)
		return EP_FAIL(EP_NET, EP_EARG, "loop: device %d, %d ranks", dev, nranks);
	l = calloc(1, sizeof(*l));
	if (!l)
		return EP_FAIL(EP_NET, ENOMEM, "loop: no memory");
	rc = loop_page_make(nranks, &mine, &l->page, &l->fd);
	if (rc) {
		free(l);
		return rc;
	}
	memset(handle, 0, NCCL_EP_NET_HANDLE_SIZE);
	memcpy(handle, &mine, sizeof(mine));
	*listener = l;
	return 0;
}

static int loop_closeListen(void *listener)
{
	struct loop_listener *l = listener;

	if (l->page) {
		loop_page_leave(l->page);
		close(l->fd);
	}
	free(l);
	return 0;
}

/*
 * One descriptor per process, not per rank: a process of 32 ranks would use up a limit of 1024 otherwise. An old kernel
 * has no pidfd: then a death is learnt of from the bootstrap only.
 */
static void peer_watch(struct loop_comm *comm, int peer, int pid)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = (uint32_t)peer };
	struct loop_peer *p = &comm->peers[peer];

	p->pid = pid;
	p->pidfd = -1;
	if (!p->views[0].mapped)
		return;
	for (int r = 0; r < peer; r++)
		if (comm->peers[r].pid == pid)
			return;
	p->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (p->pidfd >= 0)
		epoll_ctl(comm->epoll, EPOLL_CTL_ADD, p->pidfd, &event);
}

static void comm_free(struct loop_comm *comm, int opened)
{
	for (int r = 0; r < opened; r++) {
		loop_page_close(comm->peers[r].header, comm->peers[r].views);
		if (comm->peers[r].pidfd >= 0)
			close(comm->peers[r].pidfd);
	}
	close(comm->epoll);
	free(comm->peers);
	free(comm);
}

static int loop_connect(void *listener, const void *handles, int nranks, int rank, void **out)
{
	struct loop_listener *l = listener;
	struct loop_comm *comm;
	struct loop_handle h;
	int r, rc;

	if (!l->page || nranks < 1 || (uint32_t)nranks != l->page->nranks || rank < 0 || rank >= nranks)
		return EP_FAIL(EP_NET, EP_EARG, "loop: rank %d of %d does not fit this listener", rank, nranks);
	comm = calloc(1, sizeof(*comm));
	if (!comm)
		return EP_FAIL(EP_NET, ENOMEM, "loop: no memory for %d ranks", nranks);
	comm->rank = rank;
	comm->nranks = nranks;
	comm->peers = calloc((size_t)nranks, sizeof(*comm->peers));
	comm->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!comm->peers || comm->epoll < 0) {
		rc = EP_FAIL(EP_NET, comm->peers ? errno : ENOMEM, "loop: no memory for %d ranks", nranks);
		free(comm->peers);
		free(comm);
		return rc;
	}
	for (r = 0; r < nranks; r++) {
		struct loop_peer *peer = &comm->peers[r];

		memcpy(&h, (const uint8_t *)handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE, sizeof(h));
		rc = h.nranks == (uint32_t)nranks
			     ? loop_page_open(&h, r, rank, &peer->header, peer->views)
			     : EP_FAIL(EP_NET, EP_EREMOTE, "loop: rank %d has another number of ranks", r);
		if (rc)
			goto free_comm;
		peer_watch(comm, r, h.object.pid);
	}
	comm->page = l->page;
	comm->page_fd = l->fd;
	l->page = NULL;
	*out = comm;
	return 0;

free_comm:
	comm_free(comm, r);
	return rc;
}

static int loop_closeComm(void *c)
{
	struct loop_comm *comm = c;
	struct loop_header *page = comm->page;

	/* R1: pairs with A1 in peer_ok (loop_put.c): who sees it does not touch this rank's memory any more. */
	__atomic_store_n(&page->closed, 1, __ATOMIC_RELEASE);
	close(comm->page_fd);
	comm_free(comm, comm->nranks);
	loop_page_leave(page);
	return 0;
}

static int loop_createContext(void *c, int index, void **out)
{
	struct loop_comm *comm = c;
	struct loop_ctx *ctx;

	if (index < 0 || index >= LOOP_CONTEXTS)
		return EP_FAIL(EP_NET, EP_EARG, "loop: context %d of %d", index, LOOP_CONTEXTS);
	ctx = calloc(1, sizeof(*ctx) + (size_t)comm->nranks * sizeof(ctx->lanes[0]));
	if (!ctx)
		return EP_FAIL(EP_NET, ENOMEM, "loop: no memory for a context");
	ctx->comm = comm;
	for (int r = 0; r < comm->nranks; r++) {
		struct loop_lane *lane = &ctx->lanes[r];

		lane->to = (struct loop_ring *)comm->peers[r].views[1].base + index;
		lane->from = loop_rings(comm->page, r) + index;
		/* A context may be made anew: it goes on where the last one of this index stopped. */
		lane->tail = __atomic_load_n(&lane->to->tail, __ATOMIC_RELAXED);
		lane->head_seen = __atomic_load_n(&lane->to->head, __ATOMIC_RELAXED);
		lane->head = __atomic_load_n(&lane->from->head, __ATOMIC_RELAXED);
	}
	*out = ctx;
	return 0;
}

static int loop_destroyContext(void *ctx)
{
	free(ctx);
	return 0;
}

static int loop_regMr(void *c, const ncclEpNetMem_v1_t *mem, void *key, void **out)
{
	struct loop_comm *comm = c;
	struct loop_object object;
	struct loop_mr *mr;
	int fd = -1, rc;

	if (mem->kind != NCCL_EP_NET_MEM_HOST)
		return EP_FAIL(EP_NET, EP_EUSAGE,
			       "loop: a processor copies, so only host memory can be registered; "
			       "stage device memory through it");
	if (!mem->ptr || !mem->size || (uintptr_t)mem->ptr + mem->size < mem->size)
		return EP_FAIL(EP_NET, EP_EARG, "loop: %zu bytes at %p cannot be registered", mem->size, mem->ptr);
	if (mem->fd >= 0) {
		/* The caller may close its own. */
		fd = fcntl(mem->fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			return EP_FAIL(EP_NET, EP_EARG, "loop: descriptor %d: %s", mem->fd, strerror(errno));
	}
	rc = loop_object_make(mem->ptr, mem->size, fd, mem->offset, &object);
	if (rc)
		goto close_fd;
	mr = calloc(1, sizeof(*mr) + (size_t)comm->nranks * sizeof(mr->views[0]));
	if (!mr) {
		rc = EP_FAIL(EP_NET, ENOMEM, "loop: no memory for a registration");
		goto close_fd;
	}
	*mr = (struct loop_mr){ .base = mem->ptr, .size = mem->size, .fd = fd, .nranks = comm->nranks };
	memset(key, 0, NCCL_EP_NET_KEY_SIZE);
	memcpy(key, &object, sizeof(object));
	*out = mr;
	return 0;

close_fd:
	if (fd >= 0)
		close(fd);
	return rc;
}

static void mr_unshare(struct loop_mr *mr)
{
	for (int r = 0; r < mr->nranks; r++)
		loop_view_close(&mr->views[r]);
}

static int loop_shareMr(void *c, void *m, const void *keys)
{
	struct loop_comm *comm = c;
	struct loop_object object;
	struct loop_mr *mr = m;
	int rc = 0;

	if (mr->shared)
		return EP_FAIL(EP_NET, EP_EUSAGE, "loop: this registration is shared already");
	for (int r = 0; r < comm->nranks && !rc; r++) {
		memcpy(&object, (const uint8_t *)keys + (size_t)r * NCCL_EP_NET_KEY_SIZE, sizeof(object));
		if (object.size != mr->size)
			rc = EP_FAIL(EP_NET, EP_EREMOTE, "loop: rank %d registered %llu bytes, rank %d %zu", r,
				     (unsigned long long)object.size, comm->rank, mr->size);
		else
			rc = loop_object_open(&object, r, !comm->peers[r].views[0].mapped, &mr->views[r]);
	}
	if (rc)
		mr_unshare(mr);
	mr->shared = !rc;
	return rc;
}

static int loop_deregMr(void *comm, void *m)
{
	struct loop_mr *mr = m;

	(void)comm;
	mr_unshare(mr);
	if (mr->fd >= 0)
		close(mr->fd);
	free(mr);
	return 0;
}

static int loop_queryLastError(void *c, int peer, const char **sentence)
{
	struct loop_comm *comm = c;
	int failed;

	if (peer < 0 || peer >= comm->nranks)
		return EP_FAIL(EP_NET, EP_EARG, "loop: rank %d of %d", peer, comm->nranks);
	/* A2: pairs with R2 in peer_lost (loop_put.c): the sentence is complete. */
	failed = __atomic_load_n(&comm->peers[peer].failed, __ATOMIC_ACQUIRE);
	*sentence = failed > 0 ? comm->peers[peer].why : "";
	return failed > 0 ? -failed : 0;
}

const ncclEpNet_v1_t ep_net_loop = {
	.version = NCCL_EP_NET_VERSION,
	.size = sizeof(ncclEpNet_v1_t),
	.name = "loop",
	.hot = &loop_hot,
	.init = loop_init,
	.finalize = loop_finalize,
	.devices = loop_devices,
	.getProperties = loop_getProperties,
	.listen = loop_listen,
	.connect = loop_connect,
	.closeListen = loop_closeListen,
	.closeComm = loop_closeComm,
	.createContext = loop_createContext,
	.destroyContext = loop_destroyContext,
	.regMr = loop_regMr,
	.shareMr = loop_shareMr,
	.deregMr = loop_deregMr,
	.queryLastError = loop_queryLastError,
};
