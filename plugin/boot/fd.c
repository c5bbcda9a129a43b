/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "plugin/boot/endpoint.h"
#include "util/clock.h"
#include "util/error.h"

/* The name can be read in /proc/net/unix: what keeps others out is the handshake. */
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
		return EP_FAIL(EP_BOOT, -rc, "rank %u cannot get random bytes: %s", b->rank, strerror(-rc));
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

/* Reply, note and descriptor in one sendmsg: always fits the nearly empty socket buffer. */
static int send_offer(int sock, const struct ep_frame *f, const struct ep_fd_offer *o)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov[] = { { (void *)f, sizeof(*f) }, { (void *)o->note, o->bytes } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	struct cmsghdr *cmsg;
	ssize_t put;

	if (o->fd >= 0) {
		msg.msg_control = control.buf;
		msg.msg_controllen = sizeof(control.buf);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &o->fd, sizeof(int));
	}
	do
		put = sendmsg(sock, &msg, MSG_NOSIGNAL);
	while (put < 0 && errno == EINTR);
	return put < 0 ? -errno : (size_t)put == sizeof(*f) + o->bytes ? 0 : -EPROTO;
}

static struct ep_fd_offer **find(struct ep_boot *b, uint64_t key, bool note)
{
	struct ep_fd_offer **at = &b->offers;

	while (*at && ((*at)->key != key || !(*at)->bytes == note))
		at = &(*at)->next;
	return at;
}

int ep_fd_frame(struct ep_boot *b, struct ep_conn *c, const struct ep_frame *f)
{
	struct ep_frame reply = { .type = EP_F_FD_PUT, .seq = f->seq };
	struct ep_fd_offer *offer = *find(b, f->seq, f->index == 1);

	if (offer) {
		reply.bytes = offer->bytes;
		return send_offer(c->fd, &reply, offer); /* the client closes */
	}
	reply.err = ENOENT;
	return ep_loop_post(&b->loop, c, &reply, NULL);
}

static void offer_free(struct ep_fd_offer *o)
{
	if (o && o->fd >= 0)
		close(o->fd);
	free(o);
}

void ep_fd_free(struct ep_boot *b)
{
	while (b->offers) {
		struct ep_fd_offer *o = b->offers;

		b->offers = o->next;
		offer_free(o);
	}
}

static int offer(struct ep_boot *b, uint64_t key, const void *note, size_t n, int fd)
{
	struct ep_fd_offer *o = EP_CALLOC(EP_BOOT, 1, sizeof(*o) + n, "the offer of a file descriptor");
	int rc = 0;

	if (!o)
		return -ENOMEM;
	*o = (struct ep_fd_offer){ .key = key, .bytes = (uint32_t)n, .fd = -1 };
	if (n)
		memcpy(o->note, note, n);
	/* The descriptor is optional only with a note. */
	if ((fd >= 0 || !n) && (o->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0) {
		rc = EP_FAIL(EP_BOOT, errno, "file descriptor %d cannot be duplicated: %s", fd, strerror(errno));
		offer_free(o);
		return rc;
	}
	pthread_mutex_lock(&b->lock);
	if (*find(b, key, n > 0)) {
		rc = EP_FAIL(EP_BOOT, EEXIST, "rank %u already offers key %#llx", b->rank, (unsigned long long)key);
	} else {
		o->next = b->offers;
		b->offers = o;
	}
	pthread_mutex_unlock(&b->lock);
	if (rc)
		offer_free(o);
	return rc;
}

int ep_boot_fd_offer(struct ep_boot *b, uint64_t key, int fd)
{
	return offer(b, key, NULL, 0, fd);
}

int ep_boot_note_offer(struct ep_boot *b, uint64_t key, const void *note, size_t n, int fd)
{
	if (!n || n > EP_BOOT_NOTE)
		return EP_FAIL(EP_BOOT, EP_EINTERNAL, "invalid note size: %zu bytes, at most %d", n, EP_BOOT_NOTE);
	return offer(b, key, note, n, fd);
}

static void withdraw(struct ep_boot *b, uint64_t key, bool note)
{
	struct ep_fd_offer **at, *o;

	pthread_mutex_lock(&b->lock);
	at = find(b, key, note);
	o = *at;
	if (o)
		*at = o->next;
	pthread_mutex_unlock(&b->lock);
	offer_free(o);
}

void ep_boot_fd_withdraw(struct ep_boot *b, uint64_t key)
{
	withdraw(b, key, false);
}

void ep_boot_note_withdraw(struct ep_boot *b, uint64_t key)
{
	withdraw(b, key, true);
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
	/* EAGAIN: the backlog is full, and there is nothing to poll for. */
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

static int authenticate(struct ep_boot *b, int sock, uint64_t deadline)
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

/* The descriptor is attached to the first byte of the reply; further ones are an attack or a bug, and are closed. */
static int recv_reply(int sock, struct ep_frame *f, uint64_t deadline, int *fd)
{
	union {
		char buf[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { f, sizeof(*f) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf };
	int rc, count = 0;
	ssize_t got;

	*fd = -1;
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
			int one;

			memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(one));
			if (count++)
				close(one);
			else
				*fd = one;
		}
	}
	if (got != sizeof(*f) || ep_frame_check(f, EP_TO_FD, false) || count > !f->err)
		return got ? -EPROTO : -ECONNRESET;
	return f->err ? -ep_frame_err(f) : 0;
}

struct request {
	const struct ep_fd_token *owner;
	uint64_t key, deadline;
	void *note;
	size_t n; /* of the note; 0: a descriptor alone */
};

/* Sets no last error. *fd is the descriptor, or -1. */
static int fetch(struct ep_boot *b, const struct request *q, int *fd)
{
	struct ep_frame f = { .type = EP_F_FD_GET, .index = q->n > 0, .seq = q->key };
	int rc, got = -1, sock = unix_connect(q->owner, q->deadline);

	if (sock < 0)
		return sock;
	rc = authenticate(b, sock, q->deadline);
	if (!rc)
		rc = ep_sock_send_all(sock, &f, sizeof(f), q->deadline);
	if (!rc)
		rc = recv_reply(sock, &f, q->deadline, &got);
	if (!rc && f.bytes != q->n)
		rc = -EPROTO;
	if (!rc && q->n)
		rc = ep_sock_recv_all(sock, q->note, q->n, q->deadline);
	if (!rc && got < 0 && !q->n)
		rc = -EPROTO;
	ep_sock_close(sock);
	if (!rc)
		*fd = got;
	else if (got >= 0)
		close(got);
	return rc;
}

int ep_boot_fd_fetch(struct ep_boot *b, const struct ep_fd_token *owner, uint64_t key, int *fd)
{
	struct request q = { .owner = owner, .key = key };
	int rc;

	pthread_mutex_lock(&b->lock);
	q.deadline = ep_endpoint_deadline(b);
	pthread_mutex_unlock(&b->lock);
	rc = fetch(b, &q, fd);

	/* Not an error: this is how ranks find out who shares a host. */
	if (!rc || rc == -ECONNREFUSED)
		return rc;
	return EP_FAIL(EP_BOOT, -rc, "rank %u cannot fetch file descriptor %#llx: %s", b->rank, (unsigned long long)key,
		       strerror(-rc));
}

int ep_boot_note_fetch(struct ep_boot *b, const struct ep_fd_token *owner, uint64_t key, uint64_t deadline, void *note,
		       size_t n, int *fd)
{
	uint8_t got[EP_BOOT_NOTE];
	int rc;

	if (!n || n > sizeof(got))
		return -EINVAL;
	rc = fetch(b, &(struct request){ owner, key, deadline, got, n }, fd);
	if (!rc)
		memcpy(note, got, n);
	return rc;
}
