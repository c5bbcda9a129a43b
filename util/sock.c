/* SPDX-License-Identifier: Apache-2.0 */
#include "util/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util/clock.h"

/* One bit per descriptor: the fork handler needs no lock and no allocation. Descriptors above this are not closed in
 * children. */
#define OWNED_FDS 65536

static struct {
	pthread_once_t once;
	_Atomic uint64_t bits[OWNED_FDS / 64];
} owned = { .once = PTHREAD_ONCE_INIT };

static void close_in_child(void)
{
	for (int w = 0; w < OWNED_FDS / 64; w++) {
		uint64_t bits = atomic_exchange_explicit(&owned.bits[w], 0, memory_order_relaxed);

		for (; bits; bits &= bits - 1)
			close(w * 64 + __builtin_ctzll(bits));
	}
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, close_in_child);
}

int ep_sock_own(int fd)
{
	pthread_once(&owned.once, watch_forks);
	if (fd >= 0 && fd < OWNED_FDS)
		atomic_fetch_or_explicit(&owned.bits[fd / 64], 1ull << (fd % 64), memory_order_relaxed);
	return fd;
}

void ep_sock_close(int fd)
{
	if (fd < 0)
		return;
	/* Unmarked first: after close() another thread may reuse the number. */
	if (fd < OWNED_FDS)
		atomic_fetch_and_explicit(&owned.bits[fd / 64], ~(1ull << (fd % 64)), memory_order_relaxed);
	shutdown(fd, SHUT_RDWR);
	close(fd);
}

static socklen_t addr_len(const union ep_sockaddr *addr)
{
	return addr->any.sa_family == AF_INET ? sizeof(addr->v4) : sizeof(addr->v6);
}

static uint16_t *addr_port(union ep_sockaddr *addr)
{
	return addr->any.sa_family == AF_INET ? &addr->v4.sin_port : &addr->v6.sin6_port;
}

static int tcp_socket(const union ep_sockaddr *addr)
{
	int fd = socket(addr->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	return fd < 0 ? -errno : ep_sock_own(fd);
}

static int listen_one(const union ep_sockaddr *addr, uint16_t *port)
{
	union ep_sockaddr at = *addr;
	socklen_t len = sizeof(at);
	int one = 1, rc, fd = tcp_socket(addr);

	if (fd < 0)
		return fd;
	/* Or the v6 listener also takes v4 connections to the same port. */
	if (at.any.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	/* Closed connections of the run before must not keep a port that was asked for: they linger for a minute. */
	if (*port)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	*addr_port(&at) = htons(*port);
	if (bind(fd, &at.any, addr_len(&at)) || listen(fd, 4096) || getsockname(fd, &at.any, &len)) {
		rc = -errno;
		ep_sock_close(fd);
		return rc;
	}
	*port = ntohs(*addr_port(&at));
	return fd;
}

int ep_sock_listen(const union ep_sockaddr *addr, int n, uint16_t *port, int *fds)
{
	/* The kernel picks a port for the first address; if it is taken at another one, start over. */
	for (int tries = 0;; tries++) {
		uint16_t p = *port;
		int i;

		for (i = 0; i < n; i++) {
			fds[i] = listen_one(&addr[i], &p);
			if (fds[i] < 0)
				break;
		}
		if (i == n) {
			*port = p;
			return 0;
		}
		int rc = fds[i];

		while (i-- > 0)
			ep_sock_close(fds[i]);
		if (rc != -EADDRINUSE || *port || tries == 31)
			return rc;
	}
}

int ep_sock_accept(int fd, union ep_sockaddr *peer)
{
	/* Large enough for UNIX peers; only internet addresses are returned. */
	struct sockaddr_storage from = { 0 };
	socklen_t len = sizeof(from);
	int c;

	do
		c = accept4(fd, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
	while (c < 0 && (errno == EINTR || errno == ECONNABORTED));
	if (c < 0)
		return -errno;
	memset(peer, 0, sizeof(*peer));
	if (from.ss_family == AF_INET || from.ss_family == AF_INET6)
		memcpy(peer, &from, sizeof(*peer));
	return ep_sock_own(c);
}

int ep_sock_dial(const union ep_sockaddr *addr)
{
	int rc, fd = tcp_socket(addr);

	if (fd < 0)
		return fd;
	if (!connect(fd, &addr->any, addr_len(addr)) || errno == EINPROGRESS || errno == EINTR)
		return fd;
	rc = -errno;
	ep_sock_close(fd);
	return rc;
}

int ep_sock_dialled(int fd)
{
	union ep_sockaddr me = { 0 }, peer = { 0 };
	socklen_t me_len = sizeof(me), peer_len = sizeof(peer), len = sizeof(int);
	int err = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len))
		return -errno;
	if (err)
		return -err;
	if (getsockname(fd, &me.any, &me_len) || getpeername(fd, &peer.any, &peer_len))
		return -errno;
	/* An ephemeral port without a listener can become our own source port: TCP then connects to itself. */
	if (me_len == peer_len && !memcmp(&me, &peer, me_len))
		return -ECONNREFUSED;
	return 0;
}

void ep_sock_tune(int fd, int lost_ms)
{
	int one = 1, every = lost_ms / 3000, count = 100;

	every = every < 1 ? 1 : every;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/* The probes only solicit acknowledgements for ep_sock_silent. Not TCP_USER_TIMEOUT: it also ends connections
	 * to a stopped process whose window is full, which is not dead. */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &every, sizeof(every));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

bool ep_sock_silent(int fd, int lost_ms)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return false;
	return info.tcpi_last_ack_recv > (unsigned)lost_ms;
}

ssize_t ep_sock_recv(int fd, void *buf, size_t n)
{
	ssize_t got;

	do
		got = recv(fd, buf, n, 0);
	while (got < 0 && errno == EINTR);
	return got < 0 ? -errno : got;
}

ssize_t ep_sock_send(int fd, const struct iovec *iov, int n)
{
	struct msghdr msg = { .msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n };
	ssize_t put;

	do
		put = sendmsg(fd, &msg, MSG_NOSIGNAL);
	while (put < 0 && errno == EINTR);
	return put < 0 ? -errno : put;
}

int ep_sock_wait(int fd, short events, uint64_t deadline)
{
	struct pollfd p = { .fd = fd, .events = events };

	for (;;) {
		int rc = poll(&p, 1, ep_left_ms(deadline));

		if (rc > 0)
			return 0;
		if (rc < 0 && errno != EINTR)
			return -errno;
		if (!rc && ep_now_ns() >= deadline)
			return -ETIMEDOUT;
	}
}

int ep_sock_recv_all(int fd, void *buf, size_t n, uint64_t deadline)
{
	for (size_t at = 0; at < n;) {
		ssize_t got = ep_sock_recv(fd, (char *)buf + at, n - at);

		if (got > 0)
			at += (size_t)got;
		else if (got == 0)
			return -ECONNRESET;
		else if (got != -EAGAIN)
			return (int)got;
		else if ((got = ep_sock_wait(fd, POLLIN, deadline)))
			return (int)got;
	}
	return 0;
}

int ep_sock_send_all(int fd, const void *buf, size_t n, uint64_t deadline)
{
	for (size_t at = 0; at < n;) {
		struct iovec iov = { .iov_base = (char *)buf + at, .iov_len = n - at };
		ssize_t put = ep_sock_send(fd, &iov, 1);

		if (put >= 0)
			at += (size_t)put;
		else if (put != -EAGAIN)
			return (int)put;
		else if ((put = ep_sock_wait(fd, POLLOUT, deadline)))
			return (int)put;
	}
	return 0;
}

const char *ep_sock_text(const union ep_sockaddr *addr, char *buf, size_t size)
{
	char ip[INET6_ADDRSTRLEN] = "?", zone[IF_NAMESIZE + 1] = "", name[IF_NAMESIZE];

	switch (addr->any.sa_family) {
	case AF_INET:
		inet_ntop(AF_INET, &addr->v4.sin_addr, ip, sizeof(ip));
		snprintf(buf, size, "%s:%d", ip, ntohs(addr->v4.sin_port));
		break;
	case AF_INET6:
		inet_ntop(AF_INET6, &addr->v6.sin6_addr, ip, sizeof(ip));
		if (addr->v6.sin6_scope_id && if_indextoname(addr->v6.sin6_scope_id, name))
			snprintf(zone, sizeof(zone), "%%%s", name);
		snprintf(buf, size, "[%s%s]:%d", ip, zone, ntohs(addr->v6.sin6_port));
		break;
	default:
		snprintf(buf, size, "a local socket");
	}
	return buf;
}
