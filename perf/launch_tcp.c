/* SPDX-License-Identifier: Apache-2.0 */
#include "perf/launch_tcp.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "plugin/boot/mac.h"
#include "util/clock.h"
#include "util/param.h"
#include "util/sock.h"

#define MAGIC "AnyEPln1"
#define NONCE 16
#define MAC 16
#define ADDRESSES 8
#define GREET_MS 2000 /* a stranger that says nothing delays the others by this */
#define RETRY_US 50000
#define LOST_MS 30000

struct launch_tcp {
	int rank, ranks;
	uint8_t key[EP_MAC_KEY];
	char where[EP_SOCK_TEXT + LAUNCH_HOST]; /* rank 0, for messages */
	int fds[];				/* rank 0: of every rank, else [0]; -1: none */
};

/* First from the rank that connects. */
struct hello {
	char magic[8];
	uint32_t rank, ranks;
	uint8_t nonce[NONCE];
};

/* What both sides hash; who keeps one side's proof from being the other's. */
struct proof {
	char who[4];
	uint32_t rank, ranks;
	uint8_t rank_nonce[NONCE], root_nonce[NONCE];
};

struct answer {
	uint8_t nonce[NONCE], mac[MAC];
};

struct gather_head {
	uint64_t bytes;
};

static uint64_t limit(void)
{
	return ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS));
}

static double limit_seconds(void)
{
	return 1e-3 * (double)ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS);
}

static int proof_make(const struct launch_tcp *tcp, const struct hello *hello, const uint8_t *root_nonce,
		      const char *who, uint8_t *mac)
{
	struct proof proof = { .rank = hello->rank, .ranks = hello->ranks };

	memcpy(proof.who, who, sizeof(proof.who));
	memcpy(proof.rank_nonce, hello->nonce, NONCE);
	memcpy(proof.root_nonce, root_nonce, NONCE);
	return ep_mac(mac, MAC, tcp->key, &proof, sizeof(proof));
}

static int random_fill(uint8_t *out)
{
	return getrandom(out, NONCE, 0) == NONCE ? 0 : -EIO;
}

/* ---- rank 0 ---- */

/* 0, or an errno if the other side is no rank of ours. */
static int greet(struct launch_tcp *tcp, int fd, uint64_t deadline)
{
	struct hello hello;
	struct answer answer;
	uint8_t want[MAC], got[MAC];
	uint8_t fine = 1;
	int rc = ep_sock_recv_all(fd, &hello, sizeof(hello), deadline);

	if (rc)
		return rc;
	if (memcmp(hello.magic, MAGIC, sizeof(hello.magic)) || hello.ranks != (uint32_t)tcp->ranks || !hello.rank ||
	    hello.rank >= hello.ranks || tcp->fds[hello.rank] >= 0)
		return -EPROTO;
	if (random_fill(answer.nonce) || proof_make(tcp, &hello, answer.nonce, "root", answer.mac) ||
	    proof_make(tcp, &hello, answer.nonce, "rank", want))
		return -EIO;
	rc = ep_sock_send_all(fd, &answer, sizeof(answer), deadline);
	if (!rc)
		rc = ep_sock_recv_all(fd, got, sizeof(got), deadline);
	if (!rc && ep_mac_differ(got, want, MAC))
		rc = -EACCES;
	if (!rc)
		rc = ep_sock_send_all(fd, &fine, 1, deadline);
	if (!rc)
		tcp->fds[hello.rank] = fd;
	return rc;
}

static void missing_text(const struct launch_tcp *tcp, int turned_away, char *text, size_t size)
{
	int first = 1, missing = 0;

	for (int r = tcp->ranks - 1; r > 0; r--)
		if (tcp->fds[r] < 0) {
			first = r;
			missing++;
		}
	snprintf(text, size,
		 "rank 0: %d of %d ranks did not connect within %.0f s, the first is rank %d%s; check that its host "
		 "reaches %s",
		 missing, tcp->ranks, limit_seconds(), first,
		 turned_away ? " (others were turned away: NCCL_EP_TOKEN or the number of ranks differs)" : "",
		 tcp->where);
}

static int accept_all(struct launch_tcp *tcp, const int *listeners, int n, char *text, size_t size)
{
	struct pollfd polls[2] = { { .fd = listeners[0], .events = POLLIN }, { .fd = -1, .events = POLLIN } };
	uint64_t deadline = limit();
	int turned_away = 0;

	if (n > 1)
		polls[1].fd = listeners[1];
	for (int here = 1; here < tcp->ranks;) {
		if (poll(polls, (nfds_t)n, ep_left_ms(deadline)) <= 0 && ep_now_ns() >= deadline) {
			missing_text(tcp, turned_away, text, size);
			return -1;
		}
		for (int i = 0; i < n; i++) {
			union ep_sockaddr peer;
			int fd = polls[i].revents & POLLIN ? ep_sock_accept(listeners[i], &peer) : -1;

			if (fd < 0)
				continue;
			ep_sock_tune(fd, LOST_MS);
			if (!greet(tcp, fd, ep_deadline_ms(GREET_MS))) {
				here++;
				continue;
			}
			turned_away++;
			ep_sock_close(fd);
		}
	}
	return 0;
}

/* At every address: which of them the others reach is not known here, as a name may be 127.0.1.1 on its own host. */
static int root_open(struct launch_tcp *tcp, uint16_t port, char *text, size_t size)
{
	union ep_sockaddr any[2] = { { .v4 = { .sin_family = AF_INET } }, { .v6 = { .sin6_family = AF_INET6 } } };
	int fds[2] = { -1, -1 }, n = 2, rc = ep_sock_listen(any, n, &port, fds);

	if (rc == -EAFNOSUPPORT || rc == -EADDRNOTAVAIL) {
		n = 1;
		rc = ep_sock_listen(any, n, &port, fds);
	}
	if (rc) {
		snprintf(text, size, "rank 0: cannot listen at port %u: %s; set NCCL_EP_PORT to a free one", port,
			 strerror(-rc));
		return -1;
	}
	rc = accept_all(tcp, fds, n, text, size);
	for (int i = 0; i < n; i++)
		ep_sock_close(fds[i]);
	return rc;
}

/* ---- the others ---- */

static int introduce(struct launch_tcp *tcp, int fd, uint64_t deadline)
{
	struct hello hello = { .magic = MAGIC, .rank = (uint32_t)tcp->rank, .ranks = (uint32_t)tcp->ranks };
	struct answer answer;
	uint8_t want[MAC], mine[MAC], fine;
	int rc;

	if (random_fill(hello.nonce))
		return -EIO;
	rc = ep_sock_send_all(fd, &hello, sizeof(hello), deadline);
	if (!rc)
		rc = ep_sock_recv_all(fd, &answer, sizeof(answer), deadline);
	if (rc)
		return rc;
	if (proof_make(tcp, &hello, answer.nonce, "root", want) || proof_make(tcp, &hello, answer.nonce, "rank", mine))
		return -EIO;
	if (ep_mac_differ(answer.mac, want, MAC))
		return -EACCES;
	rc = ep_sock_send_all(fd, mine, sizeof(mine), deadline);
	return rc ? rc : ep_sock_recv_all(fd, &fine, 1, deadline);
}

static int try_address(struct launch_tcp *tcp, const struct addrinfo *at, uint64_t deadline)
{
	union ep_sockaddr addr = { 0 };
	int fd, rc;

	if (at->ai_addrlen > sizeof(addr))
		return -EAFNOSUPPORT;
	memcpy(&addr, at->ai_addr, at->ai_addrlen);
	fd = ep_sock_dial(&addr);
	if (fd < 0)
		return fd;
	rc = ep_sock_wait(fd, POLLOUT, deadline);
	rc = rc < 0 ? rc : ep_sock_dialled(fd);
	if (rc >= 0) {
		ep_sock_tune(fd, LOST_MS);
		rc = introduce(tcp, fd, deadline);
	}
	if (rc < 0)
		ep_sock_close(fd);
	else
		tcp->fds[0] = fd;
	return rc < 0 ? rc : 0;
}

/* Rank 0 may start later, and the name may appear later: all but another token is tried again. */
static int leaf_open(struct launch_tcp *tcp, const struct launch_env *env, char *text, size_t size)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM }, *list;
	uint64_t deadline = limit();
	const char *why = "";
	char port[8];
	int rc;

	snprintf(port, sizeof(port), "%u", env->port);
	do {
		rc = getaddrinfo(env->host, port, &hints, &list);
		if (rc) {
			why = gai_strerror(rc);
			usleep(RETRY_US);
			continue;
		}
		rc = -EADDRNOTAVAIL;
		for (const struct addrinfo *at = list; at && rc && rc != -EACCES; at = at->ai_next)
			rc = try_address(tcp, at, deadline);
		freeaddrinfo(list);
		if (!rc)
			return 0;
		if (rc == -EACCES) {
			snprintf(text, size,
				 "rank %d: NCCL_EP_TOKEN is not that of rank 0 at %s: set the same everywhere",
				 tcp->rank, tcp->where);
			return -1;
		}
		why = strerror(-rc);
		usleep(RETRY_US);
	} while (ep_now_ns() < deadline);
	snprintf(text, size,
		 "rank %d: no connection to rank 0 at %s within %.0f s: %s; check MASTER_ADDR, NCCL_EP_PORT and "
		 "NCCL_EP_TOKEN",
		 tcp->rank, tcp->where, limit_seconds(), why);
	return -1;
}

/* ---- */

int launch_tcp_open(const struct launch_env *env, struct launch_tcp **out, char *text, size_t size)
{
	static const uint8_t zero[EP_MAC_KEY];
	const char *token = getenv("NCCL_EP_TOKEN") ? getenv("NCCL_EP_TOKEN") : "";
	struct launch_tcp *tcp;

	if (!env->host[0]) {
		snprintf(text, size, "rank %d: %s does not say where rank 0 is: set MASTER_ADDR to its host", env->rank,
			 env->name);
		return -1;
	}
	tcp = calloc(1, sizeof(*tcp) + (size_t)env->ranks * sizeof(tcp->fds[0]));
	if (!tcp || ep_mac(tcp->key, sizeof(tcp->key), zero, token, strlen(token))) {
		snprintf(text, size, "rank %d: %s", env->rank,
			 tcp ? "no keyed BLAKE2b: install libsodium or OpenSSL 3" : "out of memory");
		free(tcp);
		return -1;
	}
	tcp->rank = env->rank;
	tcp->ranks = env->ranks;
	for (int r = 0; r < env->ranks; r++)
		tcp->fds[r] = -1;
	snprintf(tcp->where, sizeof(tcp->where), "%s:%u", env->host, env->port);
	if (env->rank ? leaf_open(tcp, env, text, size) : root_open(tcp, env->port, text, size)) {
		launch_tcp_close(tcp);
		return -1;
	}
	*out = tcp;
	return 0;
}

void launch_tcp_close(struct launch_tcp *tcp)
{
	for (int r = 0; r < tcp->ranks; r++)
		ep_sock_close(tcp->fds[r]);
	ep_wipe(tcp->key, sizeof(tcp->key));
	free(tcp);
}

static int lost(const struct launch_tcp *tcp, int peer, int rc, char *text, size_t size)
{
	snprintf(text, size, "rank %d: lost rank %d while ranks exchanged data: %s", tcp->rank, peer, strerror(-rc));
	return -1;
}

static int root_gather(struct launch_tcp *tcp, size_t bytes, uint8_t *all, char *text, size_t size)
{
	struct gather_head head;
	uint64_t deadline = limit();
	int rc;

	for (int r = 1; r < tcp->ranks; r++) {
		rc = ep_sock_recv_all(tcp->fds[r], &head, sizeof(head), deadline);
		if (!rc && head.bytes != bytes)
			rc = -EPROTO;
		if (!rc)
			rc = ep_sock_recv_all(tcp->fds[r], all + (size_t)r * bytes, bytes, deadline);
		if (rc)
			return lost(tcp, r, rc, text, size);
	}
	for (int r = 1; r < tcp->ranks; r++) {
		rc = ep_sock_send_all(tcp->fds[r], all, (size_t)tcp->ranks * bytes, deadline);
		if (rc)
			return lost(tcp, r, rc, text, size);
	}
	return 0;
}

int launch_tcp_gather(struct launch_tcp *tcp, const void *mine, size_t bytes, void *all, char *text, size_t size)
{
	struct gather_head head = { .bytes = bytes };
	uint64_t deadline = limit();
	int rc;

	if (tcp->rank == 0) {
		memmove(all, mine, bytes);
		return root_gather(tcp, bytes, all, text, size);
	}
	rc = ep_sock_send_all(tcp->fds[0], &head, sizeof(head), deadline);
	if (!rc)
		rc = ep_sock_send_all(tcp->fds[0], mine, bytes, deadline);
	if (!rc)
		rc = ep_sock_recv_all(tcp->fds[0], all, (size_t)tcp->ranks * bytes, deadline);
	return rc ? lost(tcp, 0, rc, text, size) : 0;
}
