/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets the way the library wants them: close-on-exec, non-blocking, no SIGPIPE, EINTR handled, every wait with a
 * deadline, and closed in forked children (see ep_sock_own). Calls return a value >= 0 or a negative errno; they leave
 * no sentence, because only the caller knows whose connection it was.
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
 * Addresses this host should be reached at, port 0: at most max, global ones before link-local ones, by
 * NCCL_EP_SOCKET_IFNAME and NCCL_EP_SOCKET_FAMILY or the best guess. Returns how many (> 0); why gets the reason in
 * words for the log. A failure leaves its sentence: the remedy is a variable of the user's.
 */
int ep_sock_pick(union ep_sockaddr *out, int max, char *why, size_t size);

/* Whether an interface is in a list as NCCL writes it: "eth,ib" prefixes, "=eth0" exact names, "^docker" all but. */
bool ep_sock_if_match(const char *list, const char *name);

/* Listens on one port at each of n addresses; *port is 0 for any. fds gets n descriptors. */
int ep_sock_listen(const union ep_sockaddr *addr, int n, uint16_t *port, int *fds);
int ep_sock_accept(int fd, union ep_sockaddr *peer);

/* Starts to connect; the socket becomes writable when ep_sock_dialled can tell how it went. */
int ep_sock_dial(const union ep_sockaddr *addr);
int ep_sock_dialled(int fd);

/* No delay for small frames, and a probe of the peer's host three times in lost_ms. */
void ep_sock_tune(int fd, int lost_ms);

/* True when the peer's host (not the process: a stopped one's kernel answers) has acknowledged nothing for lost_ms. */
bool ep_sock_silent(int fd, int lost_ms);

/* Bytes moved, -EAGAIN, another error, or (recv) 0 at the peer's end. */
ssize_t ep_sock_recv(int fd, void *buf, size_t n);
ssize_t ep_sock_send(int fd, const struct iovec *iov, int n);

/* All n bytes or an error: -ETIMEDOUT at the deadline, -ECONNRESET at the peer's end. */
int ep_sock_recv_all(int fd, void *buf, size_t n, uint64_t deadline);
int ep_sock_send_all(int fd, const void *buf, size_t n, uint64_t deadline);
int ep_sock_wait(int fd, short events, uint64_t deadline);

/*
 * Marks a descriptor as one that a forked child closes at once. A data loader's worker that outlives its killed parent
 * would otherwise keep the parent's connections open, and nobody would learn of the death. Returns fd.
 */
int ep_sock_own(int fd);

/* Also ends a connection whose descriptor a child of a racing fork still holds; negative fds are ignored. */
void ep_sock_close(int fd);

/* "10.0.0.1:4711", "[fe80::1%eth0]:4711", or "a local socket". Returns buf. */
const char *ep_sock_text(const union ep_sockaddr *addr, char *buf, size_t size);

#endif
