/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loopback transport: ranks of one host, without a NIC. A put is a memcpy by the calling thread into the peer's
 * memory, which is mapped here. Only immediates are queued, so requests are complete at once. Options:
 *   unordered=1  does not claim order (it keeps it all the same), to test layers that must not rely on it
 *   devices=N    N identical devices, to test several NICs (1)
 */
#include "net/loop/loop.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/option.h"
#include "net/table.h"
#include "util/error.h"

#define DEVICES_MAX 16

struct loop_net {
	struct ep_base_net base;
	uint64_t unordered;
	char name[DEVICES_MAX][16], path[DEVICES_MAX][32];
};

struct loop_listener {
	struct loop_header *page; /* NULL once a comm owns it */
	int fd, nranks;
};

static int loop_init(const ncclEpNetInit_v1_t *args, void **net)
{
	uint64_t unordered = 0, devices = 1;
	const struct ep_net_option options[] = {
		{ "unordered", &unordered, 1, NULL },
		{ "devices", &devices, DEVICES_MAX, NULL },
	};
	int rc = ep_net_options("loop", args->options, options, sizeof(options) / sizeof(options[0]));
	struct loop_net *loop;

	if (rc)
		return rc;
	loop = EP_CALLOC(EP_NET, 1, sizeof(*loop), "transport loop");
	if (!loop)
		return -ENOMEM;
	loop->base = (struct ep_base_net){ .name = "loop", .count = (int)devices };
	loop->unordered = unordered;
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

static int loop_getProperties(void *net, int dev, ncclEpNetProperties_v1_t *props)
{
	const struct loop_net *loop = net;
	bool many = loop->base.count > 1;
	int rc = ep_base_dev_check(&loop->base, dev);

	if (rc)
		return rc;
	*props = (ncclEpNetProperties_v1_t){
		.name = many ? loop->name[dev] : "loop",
		.pciPath = many ? loop->path[dev] : NULL,
		.numaNode = -1,
		.ordered = !loop->unordered,
		.memKinds = NCCL_EP_NET_MEM_HOST,
		.immBits = 32,
		.maxInline = 4096,
		.maxContexts = LOOP_CONTEXTS,
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
	int rc = ep_base_listen_check(&loop->base, dev, nranks);

	if (rc)
		return rc;
	l = EP_CALLOC(EP_NET, 1, sizeof(*l), "a listener");
	if (!l)
		return -ENOMEM;
	l->nranks = nranks;
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

static void comm_free(struct loop_comm *comm, int opened)
{
	for (int r = 0; r < opened; r++)
		if (comm->peers[r].header)
			loop_page_close(comm->peers[r].header, comm->peers[r].views);
	ep_watch_close(&comm->watch);
	ep_base_comm_close(&comm->base);
	free(comm->peers);
	free(comm);
}

static int peer_open(struct loop_comm *comm, int r, const void *handles)
{
	struct loop_peer *peer = &comm->peers[r];
	struct loop_handle h;
	int rc;

	if (ep_base_handle_blank(handles, r)) {
		ep_base_peer_absent(&comm->base, r);
		return 0;
	}
	memcpy(&h, ep_base_handle(handles, r), sizeof(h));
	if (h.nranks != (uint32_t)comm->base.nranks)
		return EP_FAIL(EP_NET, EP_EREMOTE, "loop: rank %d was created with %u ranks, rank %d with %d", r,
			       h.nranks, comm->base.rank, comm->base.nranks);
	rc = loop_page_open(&h, r, comm->base.rank, &peer->header, peer->views);
	if (rc)
		return rc;
	/* Opening its segment proved that the process is on this host and in this pid namespace. */
	peer->pid = h.object.pid;
	ep_watch_add(&comm->watch, r, h.object.pid);
	return 0;
}

/* A rank that sends the handle of another would have this one write to memory of the other, or to its own. */
static int handles_differ(const void *handles, int nranks)
{
	struct loop_handle a, b;

	for (int r = 1; r < nranks; r++) {
		if (ep_base_handle_blank(handles, r))
			continue;
		memcpy(&a, ep_base_handle(handles, r), sizeof(a));
		for (int q = 0; q < r; q++) {
			memcpy(&b, ep_base_handle(handles, q), sizeof(b));
			if (!memcmp(a.nonce, b.nonce, sizeof(a.nonce)))
				return EP_FAIL(EP_NET, EP_EREMOTE, "loop: ranks %d and %d sent the same handle", q, r);
		}
	}
	return 0;
}

static int comm_make(const void *handles, int nranks, int rank, struct loop_comm **out)
{
	struct loop_comm *comm = EP_CALLOC(EP_NET, 1, sizeof(*comm), "a comm");
	int rc, opened = 0;

	if (!comm)
		return -ENOMEM;
	rc = ep_base_comm_open(&comm->base, "loop", nranks);
	rc = rc ? rc : ep_watch_open(&comm->watch, nranks);
	comm->base.rank = rank;
	comm->peers = EP_CALLOC(EP_NET, (size_t)nranks, sizeof(*comm->peers), "the peers of a comm");
	rc = rc || comm->peers ? rc : -ENOMEM;
	while (!rc && opened < nranks) {
		rc = peer_open(comm, opened, handles);
		opened += !rc;
	}
	if (rc)
		comm_free(comm, opened);
	else
		*out = comm;
	return rc;
}

static int loop_connect(void *listener, const void *handles, int nranks, int rank, void **out)
{
	struct loop_listener *l = listener;
	struct loop_comm *comm = NULL;
	int rc = ep_base_connect_check("loop", l->page ? l->nranks : 0, nranks, rank);

	rc = rc ? rc : handles_differ(handles, nranks);
	rc = rc ? rc : comm_make(handles, nranks, rank, &comm);
	if (rc)
		return rc;
	comm->page = l->page;
	comm->page_fd = l->fd;
	l->page = NULL;
	*out = comm;
	return 0;
}

static int loop_closeComm(void *c)
{
	struct loop_comm *comm = c;
	struct loop_header *page = comm->page;

	/* R1: pairs with A1 in peer_check (put.c): a rank that sees it no longer touches this rank's memory. */
	__atomic_store_n(&page->closed, 1, __ATOMIC_RELEASE);
	close(comm->page_fd);
	comm_free(comm, comm->base.nranks);
	loop_page_leave(page);
	return 0;
}

static int loop_createContext(void *c, int index, void **out)
{
	struct loop_comm *comm = c;
	struct loop_ctx *ctx;

	if (index < 0 || index >= LOOP_CONTEXTS)
		return EP_FAIL(EP_NET, EP_EARG, "loop: no context %d; the maximum is %d", index, LOOP_CONTEXTS);
	ctx = EP_CALLOC(EP_NET, 1, sizeof(*ctx) + (size_t)comm->base.nranks * sizeof(ctx->conns[0]), "a context");
	if (!ctx)
		return -ENOMEM;
	ctx->comm = comm;
	ctx->first = -1;
	for (int r = comm->base.nranks - 1; r >= 0; r--) {
		struct loop_conn *conn = &ctx->conns[r];

		if (ep_base_is_absent(&comm->base, r))
			continue;
		conn->next = ctx->first;
		ctx->first = r;
		conn->to = (struct loop_ring *)comm->peers[r].views[1].base + index;
		conn->from = loop_rings(comm->page, r) + index;
		/* A context may be created again: it continues where the last one of this index stopped. */
		conn->tail = __atomic_load_n(&conn->to->tail, __ATOMIC_RELAXED);
		conn->head_seen = __atomic_load_n(&conn->to->head, __ATOMIC_RELAXED);
		conn->head = __atomic_load_n(&conn->from->head, __ATOMIC_RELAXED);
	}
	ctx->next = ctx->first;
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
			       "loop: only host memory can be registered; stage device memory through it");
	rc = ep_base_mem_check("loop", mem, false);
	if (rc)
		return rc;
	if (mem->fd >= 0) {
		/* The caller may close its descriptor. */
		fd = fcntl(mem->fd, F_DUPFD_CLOEXEC, 0);
		if (fd < 0)
			return EP_FAIL(EP_NET, EP_EARG, "loop: cannot duplicate descriptor %d: %s", mem->fd,
				       strerror(errno));
	}
	rc = loop_object_make(mem->ptr, mem->size, fd, mem->offset, &object);
	if (rc)
		goto close_fd;
	mr = EP_CALLOC(EP_NET, 1, sizeof(*mr) + (size_t)comm->base.nranks * sizeof(mr->views[0]), "a registration");
	if (!mr) {
		rc = -ENOMEM;
		goto close_fd;
	}
	mr->base = (struct ep_base_mr){ .base = mem->ptr, .size = mem->size, .kind = mem->kind };
	mr->fd = fd;
	mr->nranks = comm->base.nranks;
	mr->owner = comm->page;
	loop_mr_add(mr);
	ep_base_key_write(key, &object, sizeof(object));
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

static int key_take(struct ep_base_comm *c, struct ep_base_mr *m, int r, const void *key)
{
	struct loop_comm *comm = (struct loop_comm *)c;
	struct loop_mr *mr = (struct loop_mr *)m;
	struct loop_object object;

	memcpy(&object, key, sizeof(object));
	return loop_object_open(&object, r, &comm->peers[r], &mr->views[r]);
}

static int loop_shareMr(void *comm, void *mr, const void *keys)
{
	bool shared = ((struct ep_base_mr *)mr)->shared;
	int rc = ep_base_mr_share(comm, mr, keys, offsetof(struct loop_object, size), key_take);

	if (rc && !shared)
		mr_unshare(mr);
	return rc;
}

static int loop_deregMr(void *comm, void *m)
{
	struct loop_mr *mr = m;

	(void)comm;
	loop_mr_remove(mr);
	mr_unshare(mr);
	if (mr->fd >= 0)
		close(mr->fd);
	free(mr);
	return 0;
}

const ncclEpNet_v1_t ep_net_loop = {
	EP_NET_OPS("loop", loop),
	.devices = ep_base_devices,
	.queryLastError = ep_base_queryLastError,
};
