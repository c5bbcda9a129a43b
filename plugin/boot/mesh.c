/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/mesh.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/boot/fd.h"
#include "plugin/boot/id.h"
#include "plugin/boot/notice.h"
#include "plugin/boot/silence.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/text.h"

#define GRACE_MS 400	 /* for the root to report who is missing */
#define LEAVE_MS 2000	 /* for neighbours to read that we leave */
#define LEAVE_BAD_MS 200 /* the same after a failure: a neighbour that stands still is often the reason */
#define STARVED_MS 1000

void ep_mesh_give_up(struct ep_boot *b, int err, struct ep_blame blame, const char *why)
{
	struct ep_frame f = { .type = EP_F_GONE, .rank = b->rank, .index = 1, .err = (uint16_t)err };
	char message[EP_WHY_MAX];

	/* Evidence against another rank speaks for itself: who noticed first does not matter. */
	if (blame.rank != (int)b->rank && blame.evidence > EP_EV_MISSING)
		snprintf(message, sizeof(message), "%s", why);
	else
		snprintf(message, sizeof(message), "rank %u gave up: %s", b->rank, why);
	f.seq = (uint64_t)blame.evidence;
	f.total = blame.rank < 0 ? EP_NO_RANK : (uint64_t)blame.rank;
	ep_endpoint_blame(b, err, blame, message);
	ep_notice_gone(b, &f, message, NULL);
}

void ep_mesh_quit(struct ep_boot *b, int err, const char *why)
{
	ep_mesh_give_up(b, err, (struct ep_blame){ (int)b->rank, EP_EV_CERTAIN }, why);
}

/* ---- joining ---- */

/* The address that reaches the root works: others shall try it first. */
static void prefer_route(struct ep_boot *b)
{
	union ep_sockaddr mine;
	struct ep_boot_addr addr, *list = b->self.addr;
	socklen_t len = sizeof(mine);

	if (getsockname(b->root->fd, &mine.any, &len))
		return;
	ep_boot_addr_set(&addr, &mine);
	for (int i = 1; i < b->self.naddr; i++) {
		if (list[i].family != addr.family || memcmp(list[i].ip, addr.ip, sizeof(addr.ip)))
			continue;
		addr = list[i];
		memmove(list + 1, list, (size_t)i * sizeof(*list));
		list[0] = addr;
	}
}

static void say_hello(struct ep_boot *b)
{
	struct ep_frame f = { .type = EP_F_HELLO, .bytes = sizeof(struct ep_hello), .rank = b->rank };
	struct ep_hello h = { .nranks = b->nranks, .survive = b->survive };

	prefer_route(b);
	h.cookie = ep_boot_cookie(b->secret);
	h.left_ms = (uint32_t)ep_left_ms(b->deadline);
	h.self = b->self;
	if (ep_loop_post(&b->loop, b->root, &f, &h))
		ep_endpoint_fail(b, ENOMEM, b->rank, "rank %u: out of memory sending to the bootstrap root", b->rank);
}

static void check_done(struct ep_boot *b)
{
	struct ep_frame f = { .type = EP_F_DONE, .rank = b->late.rank, .total = b->late.ms };

	if (b->phase != EP_MEETING || !b->have_table || b->said_done || b->edges_up < b->edges || b->err)
		return;
	b->said_done = true;
	if (ep_loop_post(&b->loop, b->root, &f, NULL))
		ep_endpoint_fail(b, ENOMEM, b->rank, "rank %u: out of memory sending to the bootstrap root", b->rank);
}

static int on_table(struct ep_boot *b, const struct ep_frame *f, const uint8_t *body)
{
	int rc = 0;

	if (b->have_table || f->bytes % sizeof(struct ep_peer))
		return -EPROTO;
	b->have_table = true;
	b->late.from = ep_now_ns();
	for (uint32_t at = 0; at < f->bytes && !rc; at += sizeof(struct ep_peer)) {
		struct ep_peer p;

		memcpy(&p, body + at, sizeof(p));
		if (p.rank >= b->nranks || !ep_peer_ok(&p, p.rank) || !ep_mesh_dials(b->rank, p.rank, b->nranks))
			return -EPROTO;
		rc = ep_endpoint_dial(b, &p, b->deadline);
	}
	check_done(b);
	return rc;
}

/* Once all ranks are connected, or if the root stays silent, a closed connection is a death. */
static void bury_suspects(struct ep_boot *b)
{
	char why[EP_WHY_MAX];

	for (uint32_t r = 0; r < b->nranks && b->suspect_at; r++) {
		struct ep_frame f = { .type = EP_F_GONE, .rank = r };

		if (b->state[r] != EP_RANK_SUSPECT)
			continue;
		snprintf(why, sizeof(why), "rank %u died (its connection to rank %u closed during bootstrap)", r,
			 b->rank);
		ep_notice_gone(b, &f, why, NULL);
	}
	b->suspect_at = 0;
}

static int root_frame(struct ep_boot *b, const struct ep_frame *f, const uint8_t *body)
{
	struct ep_conn *root = b->root;
	char why[EP_WHY_MAX];

	switch (f->type) {
	case EP_F_HOST:
		if (f->rank >= b->nranks)
			return -EPROTO;
		b->host = f->rank;
		return 0;
	case EP_F_TABLE:
		return on_table(b, f, body);
	case EP_F_GO:
		if (!b->said_done)
			return -EPROTO;
		ep_silence_met(b, f);
		b->root = NULL;
		ep_loop_finish(&b->loop, root);
		if (!b->err)
			b->phase = EP_RUNNING;
		bury_suspects(b);
		pthread_cond_broadcast(&b->cond);
		return 0;
	default:		/* EP_F_FAIL */
		b->root = NULL; /* it knows */
		ep_loop_finish(&b->loop, root);
		ep_endpoint_fail(b, ep_frame_err(f), f->rank, "%s", ep_text_take(why, sizeof(why), body, f->bytes));
		return 0;
	}
}

static void root_lost(struct ep_boot *b, struct ep_conn *c, int err)
{
	char at[EP_SOCK_TEXT];

	b->root = NULL;
	ep_sock_text(&c->at, at, sizeof(at));
	if (c->was_ready && b->host != EP_NO_RANK)
		ep_endpoint_fail(b, EP_EREMOTE, b->host,
				 "rank %u, whose process is the bootstrap root, died during bootstrap (%s: %s)",
				 b->host, at, err ? strerror(-err) : "connection closed");
	else if (c->was_ready)
		ep_endpoint_fail(b, EP_EREMOTE, EP_NO_RANK,
				 "the bootstrap root, the process that created the id, died during bootstrap (%s: %s)",
				 at, err ? strerror(-err) : "connection closed");
	else if (err == -ECONNREFUSED)
		ep_endpoint_fail(b, EP_EREMOTE, EP_NO_RANK,
				 "rank %u: no bootstrap root at %s: the process that created the id (often rank 0) "
				 "has exited, or all ranks have connected already",
				 b->rank, at);
	else if (err == -EACCES || err == -EADDRNOTAVAIL)
		ep_endpoint_fail(b, EP_EARG, b->rank,
				 "the bootstrap root at %s refused rank %u: the id belongs to another job", at,
				 b->rank);
	else if (err == -EMFILE || err == -ENFILE || err == -ENOMEM)
		ep_endpoint_fail(b, -err, b->rank, "rank %u cannot connect to the bootstrap root: %s", b->rank,
				 strerror(-err));
	else
		ep_endpoint_fail(b, EP_ETIMEOUT, EP_NO_RANK,
				 "rank %u cannot reach the bootstrap root at %s (%s): check the network, and "
				 "NCCL_EP_SOCKET_IFNAME in the process that created the id",
				 b->rank, at, strerror(-err));
}

/* ---- edges ---- */

static int emit(void *ctx, void *user, struct ep_blob *blob)
{
	struct ep_boot *b = ctx;

	return ep_loop_send(&b->loop, user, blob);
}

static void edge_up(struct ep_boot *b, struct ep_conn *c)
{
	b->edges_up++;
	if (b->state[c->peer] == EP_RANK_SUSPECT)
		b->state[c->peer] = EP_RANK_ALIVE;
	c->heard = ep_now_ns();
	ep_silence_edge(b, c);
	/* An edge of a running mesh is a repair: the peer may lack every notice. */
	ep_notice_tell(b, c);
	ep_silence_tell(b, c);
	c->edge = ep_gather_edge_add(&b->gather, c->peer, c);
	if (c->edge < 0)
		ep_endpoint_fail(b, ENOMEM, b->rank, "rank %u: out of memory for a connection", b->rank);
	check_done(b);
}

static int edge_frame(struct ep_boot *b, struct ep_conn *c, const struct ep_frame *f, const uint8_t *body)
{
	const struct ep_frame pong = { .type = EP_F_PONG };
	struct ep_blob *blob;
	char why[EP_WHY_MAX + 1];
	int rc;

	ep_silence_heard(b, c);
	switch (f->type) {
	case EP_F_PING:
		return ep_loop_post(&b->loop, c, &pong, NULL);
	case EP_F_PONG:
		return 0;
	case EP_F_SILENT:
		return ep_silence_take(b, f, c);
	case EP_F_BLOCK:
		if (b->err)
			return 0; /* in no collective any more: with survive the others leave this rank behind */
		blob = ep_blob_new(f, body);
		rc = blob ? ep_gather_take(&b->gather, c->edge, blob) : -ENOMEM;
		ep_blob_put(blob);
		if (rc == -EMSGSIZE) {
			snprintf(why, sizeof(why),
				 "rank %u gathers %llu bytes, rank %u another number (collective %llu)",
				 b->gather.culprit, (unsigned long long)f->total, b->rank, (unsigned long long)f->seq);
			ep_mesh_quit(b, EP_EUSAGE, why);
			return 0;
		}
		if (ep_gather_done(&b->gather))
			pthread_cond_broadcast(&b->cond);
		if (f->seq >= b->left_first)
			ep_notice_check_left(b);
		return rc;
	case EP_F_GONE:
		if (f->rank >= b->nranks)
			return -EPROTO;
		ep_notice_gone(b, f, ep_text_take(why, sizeof(why), body, f->bytes), c);
		return 0;
	case EP_F_PARTED:
		if (f->rank >= b->nranks || f->seq >= b->nranks)
			return -EPROTO;
		ep_notice_parted(b, f, ep_text_take(why, sizeof(why), body, f->bytes), c);
		return 0;
	case EP_F_LEFT:
		/* No rank completes a collective that this one has not begun, see gather.h. */
		if (f->rank >= b->nranks || f->rank == b->rank || (f->seq > b->gather.seq + 1 && !b->err))
			return -EPROTO;
		ep_notice_spread_left(b, f->rank, f->seq, c);
		return 0;
	default: /* EP_F_BYE: the peer waits for us to close */
		if (f->seq > b->gather.seq + 1 && !b->err)
			return -EPROTO;
		ep_gather_edge_drop(&b->gather, c->edge);
		ep_loop_drop(&b->loop, c);
		ep_notice_left(b, c->peer, f->seq);
		return 0;
	}
}

static void edge_lost(struct ep_boot *b, struct ep_conn *c, int err)
{
	struct ep_frame f = { .type = EP_F_GONE, .rank = c->peer };
	char why[EP_WHY_MAX], at[EP_SOCK_TEXT];

	ep_sock_text(&c->at, at, sizeof(at));
	if (c->was_ready) {
		if (c->edge >= 0)
			ep_gather_edge_drop(&b->gather, c->edge);
		if (err == -ENOMEM) {
			ep_mesh_quit(b, ENOMEM, "out of memory");
			return;
		}
		if (b->state[c->peer] >= EP_RANK_LEFT)
			return;
		if (b->phase == EP_MEETING && err != -EPROTO) {
			/* A rank that heard of a failure before us may just leave, even during a handshake. That is no
			 * death and must not be reported as the reason, which the root knows. */
			b->edges_up--;
			b->state[c->peer] = EP_RANK_SUSPECT;
			b->suspect_at = b->suspect_at ? b->suspect_at : ep_now_ns();
			return;
		}
		snprintf(why, sizeof(why),
			 err == -EPROTO ? "rank %u violated the bootstrap protocol (seen by rank %u at %s: %s)"
					: "rank %u died (seen by rank %u, connection to %s: %s)",
			 c->peer, b->rank, at, err ? strerror(-err) : "closed");
		ep_notice_gone(b, &f, why, NULL);
		return;
	}
	if (b->phase == EP_MEETING) {
		ep_endpoint_fail(b, err == -ETIMEDOUT ? EP_ETIMEOUT : EP_EREMOTE, c->peer,
				 "rank %u cannot connect to rank %u at %s: %s", b->rank, c->peer, at, strerror(-err));
		return;
	}
	/* A repair failed. If refused, the process is gone, and perhaps no other live rank knows. */
	EP_INFO(EP_BOOT, "rank %u cannot connect to rank %u at %s: %s", b->rank, c->peer, at, strerror(-err));
	if (!b->busy)
		return; /* no collective waits for it, and it may just be leaving; the next one tries again */
	if (err == -ECONNREFUSED) {
		snprintf(why, sizeof(why), "rank %u is dead (rank %u: connection to %s refused)", c->peer, b->rank, at);
		ep_notice_gone(b, &f, why, NULL);
	} else if (b->state[c->peer] == EP_RANK_ALIVE) {
		b->state[c->peer] = EP_RANK_UNREACHABLE;
	}
	ep_endpoint_repair(b);
}

/* ---- operations of the loop ---- */

static bool on_admit(void *ctx, struct ep_conn *c)
{
	struct ep_boot *b = ctx;
	uint32_t from = c->shake.from;

	if (c->purpose == EP_TO_FD)
		return true;
	if (from >= b->nranks || from == b->rank || c->shake.to != b->rank || b->state[from] >= EP_RANK_LEFT)
		return false;
	/* After EP_F_DONE a new connection is a repair of the mesh. A second edge does no harm. */
	if (b->phase == EP_RUNNING || (b->phase == EP_MEETING && b->said_done))
		return b->survive;
	for (struct ep_conn *e = b->loop.conns; e; e = e->next)
		if (e->purpose == EP_TO_RANK && e->state == EP_CONN_READY && e->peer == from)
			return false;
	return b->phase == EP_MEETING && ep_mesh_dials(from, b->rank, b->nranks);
}

static void say_bye(struct ep_boot *b, struct ep_conn *c)
{
	struct ep_frame bye = { .type = EP_F_BYE, .seq = b->gather.seq };

	if (ep_loop_post(&b->loop, c, &bye, NULL))
		ep_loop_drop(&b->loop, c);
	else
		ep_loop_finish(&b->loop, c);
}

/* The peer may be ready already, and takes a connection that closes without a word for a death. */
static bool half_up(const struct ep_conn *c)
{
	return c->purpose == EP_TO_RANK && c->state == EP_CONN_SHAKE;
}

static void on_ready(void *ctx, struct ep_conn *c)
{
	struct ep_boot *b = ctx;

	if (c->purpose == EP_TO_ROOT)
		say_hello(b);
	else if (c->purpose == EP_TO_RANK && b->phase == EP_LEAVING)
		say_bye(b, c);
	else if (c->purpose == EP_TO_RANK)
		edge_up(b, c);
	else
		ep_loop_arm(&b->loop, c, ep_deadline_ms(LEAVE_MS)); /* one request, one reply */
}

static int on_frame(void *ctx, struct ep_conn *c, const struct ep_frame *f, const uint8_t *body)
{
	struct ep_boot *b = ctx;

	if (c->purpose == EP_TO_ROOT)
		return root_frame(b, f, body);
	if (c->purpose == EP_TO_RANK)
		return edge_frame(b, c, f, body);
	return ep_fd_frame(b, c, f);
}

static void on_lost(void *ctx, struct ep_conn *c, int err)
{
	struct ep_boot *b = ctx;

	if (c->purpose == EP_TO_ROOT)
		root_lost(b, c, err);
	else if (c->purpose == EP_TO_RANK)
		edge_lost(b, c, err);
}

static const struct ep_loop_ops mesh_ops = { .admit = on_admit, .ready = on_ready, .frame = on_frame, .lost = on_lost };

/* ---- start, tick, leave ---- */

static int listen_all(struct ep_boot *b)
{
	union ep_sockaddr addr[EP_BOOT_ADDRS];
	char why[256], first[EP_SOCK_TEXT];
	int n, rc, fds[EP_BOOT_ADDRS];

	n = ep_sock_pick(addr, EP_BOOT_ADDRS, why, sizeof(why));
	if (n < 0)
		return n;
	for (int i = 0; i < n; i++)
		if (addr[i].any.sa_family == AF_INET6 && addr[i].v6.sin6_scope_id)
			b->scope = addr[i].v6.sin6_scope_id;
	if (b->nranks == 1)
		return 0;
	rc = ep_sock_listen(addr, n, &b->self.port, fds);
	if (rc)
		return EP_FAIL(EP_BOOT, -rc, "rank %u cannot listen on %s: %s", b->rank, why, strerror(-rc));
	b->self.naddr = (uint8_t)n;
	for (int i = 0; i < n; i++) {
		ep_boot_addr_set(&b->self.addr[i], &addr[i]);
		if (rc)
			ep_sock_close(fds[i]);
		else
			rc = ep_loop_listen(&b->loop, fds[i], EP_TO_RANK);
	}
	if (rc)
		return EP_FAIL(EP_BOOT, -rc, "rank %u cannot listen on %s: %s", b->rank, why, strerror(-rc));
	ep_boot_addr_get(&b->self.addr[0], b->self.port, &addr[0]);
	EP_INFO(EP_BOOT, "rank %u of %u listens on %s and %d more addresses (interface %s)", b->rank, b->nranks,
		ep_sock_text(&addr[0], first, sizeof(first)), n - 1, why);
	return 0;
}

int ep_mesh_start(struct ep_boot *b, const struct ep_boot_id *id)
{
	struct ep_shake who = { .purpose = EP_TO_ROOT, .from = b->rank, .to = EP_NO_RANK };
	struct ep_dial d = { .port = id->port, .naddr = id->naddr, .give_up = b->deadline };
	int rc;

	rc = ep_loop_init(&b->loop, &mesh_ops, b, b->secret);
	if (rc)
		return EP_FAIL(EP_BOOT, -rc, "rank %u cannot create its event loop: %s", b->rank, strerror(-rc));
	snprintf(b->loop.what, sizeof(b->loop.what), "rank %u", b->rank);
	rc = ep_gather_init(&b->gather, b->rank, b->nranks, b->survive);
	if (rc) {
		EP_FAIL(EP_BOOT, -rc, "rank %u: out of memory for the blocks of %u ranks", b->rank, b->nranks);
		goto free_loop;
	}
	b->gather.emit = emit;
	b->gather.ctx = b;
	for (uint32_t step = 1; step < b->nranks; step *= 2) {
		b->edges += ep_mesh_dials(b->rank, (b->rank + step) % b->nranks, b->nranks);
		b->edges += ep_mesh_dials((b->rank + b->nranks - step) % b->nranks, b->rank, b->nranks);
	}
	rc = listen_all(b);
	if (rc)
		goto free_gather;
	rc = ep_fd_listen(b);
	if (rc)
		goto free_gather;
	memcpy(d.addr, id->addr, sizeof(d.addr));
	ep_endpoint_scope(b, &d);
	b->root = ep_loop_dial(&b->loop, &who, &d);
	if (b->root)
		return 0;
	rc = EP_FAIL(EP_BOOT, ENOMEM, "rank %u: out of memory for a connection", b->rank);
free_gather:
	ep_gather_free(&b->gather);
free_loop:
	ep_loop_free(&b->loop);
	return rc;
}

static void meeting_over(struct ep_boot *b, uint64_t now)
{
	char at[EP_SOCK_TEXT];

	for (struct ep_conn *c = b->loop.conns; c && b->have_table; c = c->next) {
		if (c->purpose != EP_TO_RANK || c->server || c->state > EP_CONN_SHAKE || c->state == EP_CONN_LISTEN)
			continue;
		ep_endpoint_fail(b, EP_ETIMEOUT, c->peer, "rank %u could not connect to rank %u at %s in time: %s",
				 b->rank, c->peer, ep_sock_text(&c->at, at, sizeof(at)),
				 strerror(c->dial.err ? -c->dial.err : ETIMEDOUT));
		return;
	}
	if (now < b->deadline + GRACE_MS * 1000000ull)
		return;
	if (b->host != EP_NO_RANK)
		ep_endpoint_fail(b, EP_ETIMEOUT, b->host,
				 "rank %u, whose process is the bootstrap root, does not answer rank %u after %d ms",
				 b->host, b->rank, b->timeout_ms);
	else
		ep_endpoint_fail(b, EP_ETIMEOUT, EP_NO_RANK, "rank %u: no reply from the bootstrap root after %d ms",
				 b->rank, b->timeout_ms);
}

/* Nobody else has failed for a while: the rank that the net lost has not just left. Returns when to call it again. */
static uint64_t accuse_lost(struct ep_boot *b, uint64_t now)
{
	uint64_t at = b->lost_at;

	if (!at || now < at)
		return at ? at : UINT64_MAX;
	b->lost_at = 0;
	if (!b->failed.evidence)
		ep_mesh_give_up(b, EP_EREMOTE, (struct ep_blame){ b->lost_rank, EP_EV_LOST }, b->lost_why);
	return UINT64_MAX;
}

uint64_t ep_mesh_tick(struct ep_boot *b)
{
	uint64_t now = ep_now_ns();

	if (b->loop.starved_since && now - b->loop.starved_since > STARVED_MS * 1000000ull && b->phase == EP_MEETING)
		ep_endpoint_fail(b, EMFILE, b->rank, "rank %u is out of file descriptors: raise the limit (ulimit -n)",
				 b->rank);
	if (b->loop.starved_since)
		return ep_deadline_ms(STARVED_MS / 4);
	if (b->phase == EP_LEAVING)
		return b->deadline;
	if (b->phase == EP_RUNNING) {
		uint64_t silence = ep_silence_tick(b, now), lost = accuse_lost(b, now);

		return silence < lost ? silence : lost;
	}
	if (b->err)
		return UINT64_MAX;
	if (b->suspect_at && now - b->suspect_at > GRACE_MS * 1000000ull)
		bury_suspects(b);
	if (now < b->deadline)
		return b->suspect_at ? b->suspect_at + GRACE_MS * 1000000ull : b->deadline;
	meeting_over(b, now);
	return now + 100 * 1000000ull;
}

int ep_mesh_begin(struct ep_boot *b, const void *mine, size_t n)
{
	char why[EP_WHY_MAX];
	int rc;

	if (b->gather.seq >= b->end_seq) {
		ep_notice_ended(b);
		return -b->err;
	}
	rc = ep_gather_begin(&b->gather, mine, n);
	if (rc == -EMSGSIZE) {
		snprintf(why, sizeof(why), "rank %u gathers %zu bytes, rank %u another number (collective %llu)",
			 b->rank, n, b->gather.culprit, (unsigned long long)b->gather.seq);
		ep_mesh_quit(b, EP_EUSAGE, why);
	} else if (rc) {
		ep_mesh_quit(b, -rc, "out of memory");
	} else {
		ep_notice_check_left(b);
		ep_endpoint_repair(b);
	}
	return rc;
}

void ep_mesh_leave(struct ep_boot *b)
{
	bool running = b->phase == EP_RUNNING;
	int ms = b->timeout_ms / 2 < LEAVE_MS ? b->timeout_ms / 2 : LEAVE_MS;

	b->phase = EP_LEAVING;
	b->root = NULL;
	b->deadline = ep_deadline_ms(b->err ? LEAVE_BAD_MS : ms);
	for (struct ep_conn *c = b->loop.conns, *next; c; c = next) {
		next = c->next;
		if (c->purpose == EP_TO_RANK && c->state == EP_CONN_READY)
			say_bye(b, c);
		else if (c->purpose == EP_TO_FD)
			ep_loop_drop(&b->loop, c);
		else if (!running || !half_up(c))
			ep_loop_finish(&b->loop, c);
	}
}

bool ep_mesh_left(struct ep_boot *b)
{
	if (ep_now_ns() >= b->deadline)
		return true;
	for (struct ep_conn *c = b->loop.conns; c; c = c->next)
		if (c->state == EP_CONN_FINISH || half_up(c))
			return false;
	return true;
}
