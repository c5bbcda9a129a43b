/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is still there. Providers tell of a broken connection, some of them, and of a peer's death on the same host none
 * does; so processes of this host are watched, a rank that closes says so, and what moves nothing for
 * NCCL_EP_PEER_LOST_MS is lost.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "net/fabric.h"
#include "util/clock.h"
#include "util/error.h"

#define STEP_MAX 1000000000ull /* a look's on the clock: that we were stopped is no reason to lose peers */

int fab_peer_lost(struct fab_comm *comm, int peer, const char *what)
{
	struct fab_peer *p = &comm->peers[peer];
	int none = 0;

	if (!__atomic_compare_exchange_n(&p->failed, &none, -1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return -EP_EREMOTE;
	snprintf(p->why, sizeof(p->why), "fabric: rank %d %s", peer, what);
	/* R1: pairs with A1 in fab_queryLastError (fabric.c). */
	__atomic_store_n(&p->failed, EP_EREMOTE, __ATOMIC_RELEASE);
	if (comm->closing) /* who goes first is no news */
		return -EP_EREMOTE;
	return EP_FAIL(EP_NET, EP_EREMOTE, "%s", p->why);
}

bool fab_peer_failed(const struct fab_comm *comm, int peer)
{
	return __atomic_load_n(&comm->peers[peer].failed, __ATOMIC_RELAXED);
}

bool fab_peer_left(const struct fab_comm *comm, int peer)
{
	return __atomic_load_n(&comm->page[peer].bye, __ATOMIC_RELAXED);
}

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3ull;
	return h;
}

/* 0: unknown, and nobody's. */
uint64_t fab_host_id(void)
{
	uint64_t h = 0xcbf29ce484222325ull;
	struct stat ns;
	char boot[64];
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, boot, sizeof(boot));

	if (fd >= 0)
		close(fd);
	if (n <= 0 || stat("/proc/self/ns/pid", &ns))
		return 0;
	return mix(mix(h, boot, (size_t)n), &ns.st_ino, sizeof(ns.st_ino));
}

/* One descriptor per process. An old kernel has no pidfd: then a death is learnt of from the provider, or by time. */
void fab_peer_watch(struct fab_comm *comm, int peer, const struct fab_handle *handle)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = (uint32_t)peer };
	struct fab_peer *p = &comm->peers[peer];
	uint64_t host = fab_host_id();

	p->pidfd = -1;
	if (handle->host != host)
		return;
	if (handle->pid == getpid())
		comm->here++;
	if (handle->pid == getpid() || !host)
		return;
	p->pid = handle->pid;
	for (int r = 0; r < peer; r++)
		if (comm->peers[r].pid == p->pid)
			return;
	p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
	if (p->pidfd >= 0)
		epoll_ctl(comm->epoll, EPOLL_CTL_ADD, p->pidfd, &event);
}

static void deaths_look(struct fab_comm *comm)
{
	struct epoll_event events[16];
	int n = epoll_wait(comm->epoll, events, 16, 0);

	for (int i = 0; i < n; i++) {
		const struct fab_peer *gone = &comm->peers[events[i].data.u32];

		for (int r = 0; r < comm->nranks; r++)
			if (comm->peers[r].pid == gone->pid && !fab_peer_left(comm, r))
				fab_peer_lost(comm, r, "is gone: its process ended");
		epoll_ctl(comm->epoll, EPOLL_CTL_DEL, gone->pidfd, NULL);
	}
}

/* What is open at the provider may never come back: it must not take the room of others. */
void fab_lane_drop(struct fab_ctx *ctx, int peer)
{
	struct fab_lane *lane = &ctx->lanes[peer];

	if (lane->dropped)
		return;
	lane->dropped = true;
	ctx->live -= lane->open;
}

static void lane_look(struct fab_ctx *ctx, int peer)
{
	struct fab_lane *lane = &ctx->lanes[peer];
	struct fab_comm *comm = ctx->comm;
	char what[96];

	if (fab_peer_failed(comm, peer)) {
		fab_lane_drop(ctx, peer);
		return;
	}
	if (lane->open && fab_peer_left(comm, peer)) {
		fab_peer_lost(comm, peer, "has closed its side");
		return;
	}
	/* No room may be another peer's doing, who is lost first: twice as long while anything is on its way. */
	if ((lane->open && ctx->clock - lane->since > comm->lost_ns) ||
	    (lane->refused && ctx->clock - (lane->refused - 1) > (ctx->live ? 2 : 1) * comm->lost_ns)) {
		snprintf(what, sizeof(what), "has %s for %llu ms (NCCL_EP_PEER_LOST_MS)",
			 lane->open ? "acknowledged nothing" : "taken nothing",
			 (unsigned long long)(comm->lost_ns / 1000000));
		fab_peer_lost(comm, peer, what);
	}
}

void fab_peers_look(struct fab_ctx *ctx)
{
	uint64_t now = ep_now_ns(), step = now - ctx->looked;

	if (ctx->looked)
		ctx->clock += step < STEP_MAX ? step : STEP_MAX;
	ctx->looked = now;
	deaths_look(ctx->comm);
	for (int r = 0; r < ctx->comm->nranks; r++)
		lane_look(ctx, r);
}
