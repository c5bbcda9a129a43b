/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors for other processes of this host, each by one question over an abstract UNIX socket. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "plugin/boot_mesh.h"
#include "util/clock.h"
#include "util/error.h"

/* The name is as hard to guess as the token, but it can be read in /proc/net/unix: the handshake keeps others out. */
static socklen_t unix_name(const struct ep_fd_token *token, struct sockaddr_un *out)
{
	int n = 0;

	*out = (struct sockaddr_un){ .sun_family = AF_UNIX };
	n += snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "anyep-");
	for (size_t i = 0; i < sizeof(token->bytes); i++)
		n += snprintf(out->sun_path + 1 + n, sizeof(out->sun_path) - 1 - (size_t)n, "%02x", token->bytes[i]);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int ep_fd_listen(struct ep_boot *b)
{
	struct sockaddr_un name;
	socklen_t len;
	int fd, rc = ep_random(b->token.bytes, sizeof(b->token.bytes));

	if (rc)
		return EP_FAIL(EP_BOOT, -rc, "rank %u gets no random bytes: %s", b->rank, strerror(-rc));
	len = unix_name(&b->token, &name);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd >= 0 && !bind(fd, (struct sockaddr *)&name, len) && !listen(fd, 4096)) {
		rc = ep_loop_listen(&b->loop, ep_sock_own(fd), EP_TO_FD);
	} else {
		rc = -errno;
		ep_sock_close(fd);
	}
	return rc ? EP_FAIL(EP_BOOT, -rc, "rank %u cannot open its local socket: %s", b->rank, strerror(-rc)) : 0;
}

static int send_fd(int sock, const struct ep_frame *f, int fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { (void *)f, sizeof(*f) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf };
	struct cmsghdr *cmsg;
	ssize_t put;

	msg.msg_controllen = sizeof(control.buf);
	cmsg = CMSG_FIRSTHDR(&msg);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	do
		put = sendmsg(sock, &msg, MSG_NOSIGNAL);
	while (put < 0 && errno == EINTR);
	return put < 0 ? -errno : put == sizeof(*f) ? 0 : -EPROTO;
}

static struct ep_fd_offer **find(struct ep_boot *b, uint64_t key)
{
	struct ep_fd_offer **at = &b->offers;

	while (*at && (*at)->key != key)
		at = &(*at)->next;
	return at;
}

int ep_fd_frame(struct ep_boot *b, struct ep_conn *c, const struct ep_frame *f)
{
	struct ep_frame answer = { .type = EP_F_FD_PUT, .seq = f->seq };
	struct ep_fd_offer *offer = *find(b, f->seq);

	if (offer)
		return send_fd(c->fd, &answer, offer->fd); /* the client closes */
	answer.err = ENOENT;
	return ep_loop_post(&b->loop, c, &answer, NULL);
}

void ep_fd_free(struct ep_boot *b)
{
	while (b->offers) {
		struct ep_fd_offer *o = b->offers;

		b->offers = o->next;
		close(o->fd);
		free(o);
	}
}

int ep_boot_fd_offer(struct ep_boot *b, uint64_t key, int fd)
{
	struct ep_fd_offer *o = malloc(sizeof(*o));
	int rc = 0;

	if (!o)
		return EP_FAIL(EP_BOOT, ENOMEM, "no memory to offer a file descriptor");
	*o = (struct ep_fd_offer){ .key = key, .fd = fcntl(fd, F_DUPFD_CLOEXEC, 0) };
	if (o->fd < 0) {
		rc = EP_FAIL(EP_BOOT, errno, "file descriptor %d cannot be duplicated: %s", fd, strerror(errno));
		free(o);
		return rc;
	}
	pthread_mutex_lock(&b->lock);
	if (*find(b, key)) {
		rc = EP_FAIL(EP_BOOT, EEXIST, "rank %u offers key %#llx already", b->rank, (unsigned long long)key);
	} else {
		o->next = b->offers;
		b->offers = o;
	}
	pthread_mutex_unlock(&b->lock);
	if (rc) {
		close(o->fd);
		free(o);
	}
	return rc;
}

void ep_boot_fd_withdraw(struct ep_boot *b, uint64_t key)
{
	struct ep_fd_offer **at, *o;

	pthread_mutex_lock(&b->lock);
	at = find(b, key);
	o = *at;
	if (o)
		*at = o->next;
	pthread_mutex_unlock(&b->lock);
	if (o)
		close(o->fd);
	free(o);
}

void ep_boot_fd_token(struct ep_boot *b, struct ep_fd_token *out)
{
	*out = b->token;
}

static int unix_connect(const struct ep_fd_token *owner, uint64_t deadline)
{
	const struct timespec nap = { .tv_nsec = 1000000 };
	struct sockaddr_un name;
	socklen_t len = unix_name(owner, &name);
	int rc, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	/* EAGAIN is a full backlog; there is nothing to poll for. */
	while ((rc = connect(fd, (struct sockaddr *)&name, len) ? -errno : 0) == -EAGAIN || rc == -EINTR) {
		if (ep_now_ns() >= deadline) {
			rc = -ETIMEDOUT;
			break;
		}
		nanosleep(&nap, NULL);
	}
	if (!rc)
		return ep_sock_own(fd);
	close(fd);
	return rc;
}

static int prove_ourselves(struct ep_boot *b, int sock, uint64_t deadline)
{
	struct ep_shake shake = { .purpose = EP_TO_FD, .from = b->rank };
	struct ep_greet greet;
	struct ep_claim claim;
	struct ep_proof proof;
	int rc;

	rc = ep_sock_recv_all(sock, &greet, sizeof(greet), deadline);
	if (!rc)
		rc = ep_shake_claim(&shake, b->secret, &greet, &claim);
	if (!rc)
		rc = ep_sock_send_all(sock, &claim, sizeof(claim), deadline);
	if (!rc)
		rc = ep_sock_recv_all(sock, &proof, sizeof(proof), deadline);
	return rc ? rc : ep_shake_confirm(&shake, b->secret, &proof);
}

/* The answer and the descriptor come in one message; a second descriptor would be an attack or a bug, and is closed. */
static int recv_fd(int sock, struct ep_frame *f, uint64_t deadline)
{
	union {
		char buf[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { f, sizeof(*f) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf };
	int rc, found = -1, count = 0;
	ssize_t got;

	msg.msg_controllen = sizeof(control.buf);
	do {
		rc = ep_sock_wait(sock, POLLIN, deadline);
		if (rc)
			return rc;
		got = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	} while (got < 0 && (errno == EINTR || errno == EAGAIN));
	if (got < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (count++)
				close(fd);
			else
				found = fd;
		}
	}
	if (got == sizeof(*f) && !ep_frame_check(f, EP_TO_FD, false) && count == !f->err)
		return f->err ? -f->err : found;
	if (count)
		close(found);
	return got ? -EPROTO : -ECONNRESET;
}

int ep_boot_fd_fetch(struct ep_boot *b, const struct ep_fd_token *owner, uint64_t key, int *fd)
{
	struct ep_frame f = { .type = EP_F_FD_GET, .seq = key };
	uint64_t deadline = ep_deadline_ms(b->timeout_ms);
	int rc, sock = unix_connect(owner, deadline);

	/* Not logged as a failure: asking is how one finds out who shares a host. */
	if (sock == -ECONNREFUSED)
		return sock;
	if (sock < 0)
		return EP_FAIL(EP_BOOT, -sock, "rank %u cannot ask for a file descriptor: %s", b->rank,
			       strerror(-sock));
	rc = prove_ourselves(b, sock, deadline);
	if (!rc)
		rc = ep_sock_send_all(sock, &f, sizeof(f), deadline);
	if (!rc)
		rc = recv_fd(sock, &f, deadline);
	ep_sock_close(sock);
	if (rc < 0)
		return EP_FAIL(EP_BOOT, -rc, "rank %u did not get file descriptor %#llx from its owner: %s", b->rank,
			       (unsigned long long)key, strerror(-rc));
	*fd = rc;
	return 0;
}
