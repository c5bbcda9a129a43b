/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP sockets: close-on-exec, non-blocking, no SIGPIPE, EINTR handled, every wait with a deadline, closed in forked
 * children (see ep_sock_own). Calls return a value >= 0 or a negative errno and set no last error: only the caller
 * knows whose connection it was.
 */
#ifndef EP_UTIL_SOCK_H
#define EP_UTIL_SOCK_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#define EP_SOCK_TEXT 96

union ep_sockaddr {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/*
 * Addresses other hosts can reach this one at, port 0: at most max, global before link-local, by NCCL_EP_SOCKET_IFNAME
 * and NCCL_EP_SOCKET_FAMILY or the best guess. Returns how many (> 0); why gets the reason for the log. Sets the last
 * error on failure, as the user can fix it by these variables.
 */
int ep_sock_pick(union ep_sockaddr *out, int max, char *why, size_t size);

/* Matches an interface with a list in NCCL's syntax: "eth,ib" prefixes, "=eth0" exact names, "^docker" all but. */
bool ep_sock_if_match(const char *list, const char *name);

/* Listens on the same port at each of n addresses; *port 0: any. fds gets n descriptors. */
int ep_sock_listen(const union ep_sockaddr *addr, int n, uint16_t *port, int *fds);
int ep_sock_accept(int fd, union ep_sockaddr *peer);

/* Starts a non-blocking connect; once the socket is writable, ep_sock_dialled returns its result. */
int ep_sock_dial(const union ep_sockaddr *addr);
int ep_sock_dialled(int fd);

/* TCP_NODELAY, and a keepalive probe three times in lost_ms. */
void ep_sock_tune(int fd, int lost_ms);

/* Whether the peer's host has acknowledged nothing for lost_ms. (For a stopped process its kernel still does.) */
bool ep_sock_silent(int fd, int lost_ms);

/* Bytes transferred, -EAGAIN, another error, or (recv) 0 at end of file. */
ssize_t ep_sock_recv(int fd, void *buf, size_t n);
ssize_t ep_sock_send(int fd, const struct iovec *iov, int n);

/* All n bytes or an error: -ETIMEDOUT at the deadline, -ECONNRESET at end of file. */
int ep_sock_recv_all(int fd, void *buf, size_t n, uint64_t deadline);
int ep_sock_send_all(int fd, const void *buf, size_t n, uint64_t deadline);
int ep_sock_wait(int fd, short events, uint64_t deadline);

/*
 * Marks a descriptor to be closed in forked children. Otherwise a data loader's worker that outlives its killed parent
 * keeps the parent's connections open, and the death goes unnoticed. Returns fd.
 */
int ep_sock_own(int fd);

/* Shuts the connection down too, in case a child of a concurrent fork still holds it. Negative fds are ignored. */
void ep_sock_close(int fd);

/* "10.0.0.1:4711", "[fe80::1%eth0]:4711", or "a local socket". Returns buf. */
const char *ep_sock_text(const union ep_sockaddr *addr, char *buf, size_t size);

#endif
