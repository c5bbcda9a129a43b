/* SPDX-License-Identifier: Apache-2.0 */
#include "net/watch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/error.h"

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3ull;
	return h;
}

uint64_t ep_watch_host(void)
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	struct stat ns;
	char boot[64];
	ssize_t n = fd < 0 ? -1 : read(fd, boot, sizeof(boot));

	if (fd >= 0)
		close(fd);
	if (n <= 0 || stat("/proc/self/ns/pid", &ns))
		return 0;
	return mix(mix(0xcbf29ce484222325ull, boot, (size_t)n), &ns.st_ino, sizeof(ns.st_ino));
}

int ep_watch_open(struct ep_watch *watch, int nranks)
{
	*watch = (struct ep_watch){ .host = ep_watch_host(), .epoll = -1, .nranks = nranks };
	watch->rank = EP_CALLOC(EP_NET, (size_t)nranks, sizeof(*watch->rank), "watching processes");
	if (!watch->rank)
		return -ENOMEM;
	watch->epoll = epoll_create1(EPOLL_CLOEXEC);
	return watch->epoll < 0 ? EP_FAIL(EP_NET, errno, "epoll_create1: %s", strerror(errno)) : 0;
}

void ep_watch_close(struct ep_watch *watch)
{
	for (int r = 0; watch->rank && r < watch->nranks; r++)
		if (watch->rank[r].fd > 0)
			close(watch->rank[r].fd);
	if (watch->rank && watch->epoll >= 0)
		close(watch->epoll);
	free(watch->rank);
	watch->rank = NULL;
}

/*
 * One descriptor per process, not per rank: 32 ranks in a process would exhaust a limit of 1024. Kernels before 5.3
 * have no pidfd: there only the bootstrap or a timeout reports that a process ended.
 */
void ep_watch_add(struct ep_watch *watch, int rank, int pid)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = (uint32_t)rank };
	struct ep_watched *w = &watch->rank[rank];

	if (pid <= 0 || pid == getpid())
		return;
	*w = (struct ep_watched){ .pid = pid, .fd = -1 };
	for (int r = 0; r < rank; r++)
		if (watch->rank[r].pid == pid)
			return;
	w->fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (w->fd >= 0)
		epoll_ctl(watch->epoll, EPOLL_CTL_ADD, w->fd, &event);
}

void ep_watch_add_on(struct ep_watch *watch, int rank, uint64_t host, int pid)
{
	if (host && host == watch->host)
		ep_watch_add(watch, rank, pid);
}

void ep_watch_look(struct ep_watch *watch, void (*gone)(void *arg, int rank), void *arg)
{
	struct epoll_event events[16];
	int n = epoll_wait(watch->epoll, events, 16, 0);

	for (int i = 0; i < n; i++) {
		const struct ep_watched *w = &watch->rank[events[i].data.u32];

		/* Two threads may see the same event: the one that removes it reports it. */
		if (epoll_ctl(watch->epoll, EPOLL_CTL_DEL, w->fd, NULL))
			continue;
		for (int r = 0; r < watch->nranks; r++)
			if (watch->rank[r].pid == w->pid)
				gone(arg, r);
	}
}
