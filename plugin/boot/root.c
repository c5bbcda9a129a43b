/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap root: ranks register, receive the addresses to connect to, report when they are connected, and are told
 * to go when all are. Then it exits. On failure (a rank dies, gives up, contradicts the others or does not come) it
 * tells all ranks present, and for one timeout those that still come.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/boot/boot.h"
#include "plugin/boot/evloop.h"
#include "plugin/boot/id.h"
#include "plugin/boot/mac.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"
#include "util/text.h"

/* Timeouts to wait for the first rank: the id may sit in a file, or wait for a model to load. */
#define FIRST_RANK_TIMEOUTS 10
/* For a rank that cannot connect to report it itself, with the reason. */
#define GRACE_MS 300
#define STARVED_MS 1000
/* Turns of the loop are at most so long while ranks meet. One that ends so much later: the process stood still. */
#define TURN_MS 250
#define STILL_MS 500

struct member {
	struct ep_conn *conn;
	bool done, told;
	uint64_t deadline;
	uint64_t waited_ms, waits_ms; /* others for it to connect: the longest, and the sum */
	struct ep_peer peer;
};

struct ep_root {
	struct ep_root *next; /* in roots */
	struct ep_loop loop;
	struct ep_boot_id id;
	uint64_t cookie;
	int64_t timeout_ms;
	uint64_t end_at; /* exit then if no rank is waiting */
	uint64_t turn_end;
	uint32_t nranks; /* 0 until the first rank has come */
	uint32_t survive;
	struct member *member; /* [nranks] */
	uint32_t here, done, told;
	uint32_t host;	/* the rank in this process */
	uint32_t twice; /* a rank that came twice */
	bool met;
	uint64_t came_at; /* when a rank last came */
	struct {
		uint32_t rank; /* EP_NO_RANK: the host */
		uint64_t ms, at;
	} late;	 /* who let the others wait longest, and until when */
	int err; /* positive errno of the failure; 0: none */
	uint32_t culprit;
	char why[EP_WHY_MAX];
	struct {
		bool yes;
		int err;
		uint32_t rank;
		char why[EP_WHY_MAX];
	} abandoned; /* under the lock of roots */
};

/* Those of this process, for ep_boot_id_abandon: their threads are on their own. */
static struct {
	pthread_mutex_t lock;
	struct ep_root *first;
} roots = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void post(struct ep_root *r, struct ep_conn *c, struct ep_frame f, const char *text)
{
	f.bytes = text ? (uint32_t)strnlen(text, EP_WHY_MAX) : 0;
	/* Out of memory: the rank sees the connection close. */
	if (ep_loop_post(&r->loop, c, &f, text))
		ep_loop_drop(&r->loop, c);
}

static void tell_failure(struct ep_root *r, struct ep_conn *c)
{
	post(r, c, (struct ep_frame){ .type = EP_F_FAIL, .rank = r->culprit, .err = (uint16_t)r->err }, r->why);
	ep_loop_finish(&r->loop, c);
}

static void count_told(struct ep_root *r, uint32_t rank)
{
	if (rank < r->nranks && !r->member[rank].told) {
		r->member[rank].told = true;
		r->told++;
	}
}

/* This process stood still in the last turn: what the others did meanwhile, they did because of that. */
static bool stood_still(const struct ep_root *r, uint64_t now)
{
	return r->turn_end && now > r->turn_end + STILL_MS * 1000000ull;
}

static void came(struct ep_root *r, uint32_t rank)
{
	uint64_t now = ep_now_ns(), ms = r->came_at ? (now - r->came_at) / 1000000 : 0;

	if (ms > r->late.ms) {
		r->late.rank = stood_still(r, now) ? EP_NO_RANK : rank;
		r->late.ms = ms;
		r->late.at = now;
	}
	r->came_at = now;
}

/* Whom several waited for: one that stood still itself blames any other, alone. */
static void connected(struct ep_root *r)
{
	for (uint32_t i = 0; i < r->nranks; i++) {
		const struct member *m = &r->member[i];

		if (m->waited_ms <= r->late.ms || m->waits_ms - m->waited_ms < m->waited_ms / 2)
			continue;
		r->late.rank = i;
		r->late.ms = m->waited_ms;
		r->late.at = ep_now_ns();
	}
}

static void fail(struct ep_root *r, int err, uint32_t culprit, const char *why)
{
	uint64_t now = ep_now_ns();

	if (r->err || r->met)
		return;
	r->err = err;
	r->culprit = culprit;
	snprintf(r->why, sizeof(r->why), "%s", why);
	if (stood_still(r, now) && r->host != EP_NO_RANK) {
		r->culprit = r->host;
		snprintf(r->why, sizeof(r->why),
			 "rank %u, whose process is the bootstrap root, stood still for %llu ms: %.*s", r->host,
			 (unsigned long long)((now - r->turn_end) / 1000000), EP_WHY_MAX / 2, why);
	}
	EP_INFO(EP_BOOT, "bootstrap of %u ranks failed: %s", r->nranks, r->why);
	r->end_at = ep_deadline_ms(r->timeout_ms);
	for (uint32_t i = 0; i < r->nranks; i++) {
		struct member *m = &r->member[i];

		if (!m->conn)
			continue;
		tell_failure(r, m->conn);
		m->conn = NULL;
		count_told(r, i); /* once: a second connection as this rank may have counted */
	}
}

/* Refuses one rank; the others go on. */
static void refuse(struct ep_root *r, struct ep_conn *c, const char *why)
{
	post(r, c, (struct ep_frame){ .type = EP_F_FAIL, .rank = c->peer, .err = EP_EARG }, why);
	ep_loop_finish(&r->loop, c);
}

static void send_off(struct ep_root *r)
{
	struct ep_frame go = { .type = EP_F_GO };

	connected(r);
	go.rank = r->late.rank == EP_NO_RANK ? r->host : r->late.rank;
	go.seq = (ep_now_ns() - r->late.at) / 1000000;
	go.total = r->late.ms;
	r->met = true;
	for (uint32_t i = 0; i < r->nranks; i++) {
		post(r, r->member[i].conn, go, NULL);
		ep_loop_finish(&r->loop, r->member[i].conn);
		r->member[i].conn = NULL;
	}
}

/* Each rank gets only the addresses it needs: full tables for all would be 200 GB at 65536 ranks. */
static void send_tables(struct ep_root *r)
{
	struct ep_peer table[16];

	for (uint32_t i = 0; i < r->nranks; i++) {
		struct ep_frame f = { .type = EP_F_TABLE };
		int n = 0;

		for (uint32_t step = 1; step < r->nranks; step *= 2) {
			uint32_t to = (i + step) % r->nranks;

			if (ep_mesh_dials(i, to, r->nranks))
				table[n++] = r->member[to].peer;
		}
		f.bytes = (uint32_t)((size_t)n * sizeof(table[0]));
		if (ep_loop_post(&r->loop, r->member[i].conn, &f, table)) {
			fail(r, ENOMEM, r->host, "the bootstrap root is out of memory");
			return;
		}
	}
}

static void tell_host(struct ep_root *r, struct ep_conn *c)
{
	if (r->host != EP_NO_RANK && c)
		post(r, c, (struct ep_frame){ .type = EP_F_HOST, .rank = r->host }, NULL);
}

/* Checks the hello, and what must be the same on all ranks; false: the bootstrap has failed. */
static bool agree(struct ep_root *r, struct ep_conn *c, const struct ep_hello *h)
{
	char why[EP_WHY_MAX];

	if (!r->nranks && h->nranks && h->nranks <= EP_BOOT_MAX_RANKS) {
		r->member = calloc(h->nranks, sizeof(*r->member));
		if (r->member) {
			r->nranks = h->nranks;
			r->survive = h->survive;
		} else {
			fail(r, ENOMEM, r->host, "the bootstrap root is out of memory");
		}
	}
	if (!r->err && h->nranks != r->nranks) {
		snprintf(why, sizeof(why), "rank %u passed nranks = %u, others %u: it must be the same on all ranks",
			 c->peer, h->nranks, r->nranks);
		fail(r, EP_EARG, c->peer, why);
	} else if (!r->err && h->survive != r->survive) {
		snprintf(why, sizeof(why), "rank %u has enable_mask = %u, others %u: it must be the same on all ranks",
			 c->peer, h->survive, r->survive);
		fail(r, EP_EARG, c->peer, why);
	} else if (!r->err && r->nranks > 1 && !ep_peer_ok(&h->self, c->peer)) {
		snprintf(why, sizeof(why),
			 "rank %u violated the bootstrap protocol (seen by the root: invalid address)", c->peer);
		fail(r, EP_EREMOTE, c->peer, why);
	}
	return !r->err;
}

static void on_hello(struct ep_root *r, struct ep_conn *c, const struct ep_hello *h)
{
	uint32_t rank = c->peer;
	struct member *m;
	char why[EP_WHY_MAX];

	if (r->err || !agree(r, c, h)) {
		tell_failure(r, c);
		count_told(r, rank);
		return;
	}
	if (rank >= r->nranks || r->member[rank].conn || r->met) {
		snprintf(why, sizeof(why),
			 rank >= r->nranks ? "invalid rank %u of %u"
					   : "rank %u of %u is already connected: two processes use the same rank",
			 rank, r->nranks);
		if (rank < r->nranks)
			r->twice = rank;
		refuse(r, c, why);
		return;
	}
	m = &r->member[rank];
	m->conn = c;
	m->peer = h->self;
	m->deadline = ep_deadline_ms(h->left_ms);
	c->user = m;
	r->here++;
	came(r, rank);
	if (h->cookie == r->cookie && r->host == EP_NO_RANK) {
		r->host = rank;
		for (uint32_t i = 0; i < r->nranks; i++)
			if (i != rank)
				tell_host(r, r->member[i].conn);
	}
	tell_host(r, c);
	if (r->here == r->nranks)
		send_tables(r);
}

static int on_frame(void *ctx, struct ep_conn *c, const struct ep_frame *f, const uint8_t *body)
{
	struct ep_root *r = ctx;
	struct member *m = c->user, *blame;
	struct ep_hello hello;
	char why[EP_WHY_MAX];

	if ((f->type == EP_F_HELLO) != !m)
		return -EPROTO;
	switch (f->type) {
	case EP_F_HELLO:
		memcpy(&hello, body, sizeof(hello));
		on_hello(r, c, &hello);
		return 0;
	case EP_F_DONE:
		if (m->done || r->here < r->nranks || f->rank >= r->nranks)
			return -EPROTO;
		m->done = true;
		blame = &r->member[f->rank];
		blame->waits_ms += f->total;
		blame->waited_ms = f->total > blame->waited_ms ? f->total : blame->waited_ms;
		if (++r->done == r->nranks)
			send_off(r);
		return 0;
	default:		/* EP_F_FAIL, see ep_frame_check */
		m->conn = NULL; /* it knows */
		count_told(r, c->peer);
		fail(r, ep_frame_err(f), f->rank < r->nranks ? f->rank : EP_NO_RANK,
		     ep_text_take(why, sizeof(why), body, f->bytes));
		ep_loop_finish(&r->loop, c);
		return 0;
	}
}

static void on_lost(void *ctx, struct ep_conn *c, int err)
{
	struct ep_root *r = ctx;
	struct member *m = c->user;
	char why[EP_WHY_MAX];

	if (m)
		m->conn = NULL;
	count_told(r, c->peer);
	snprintf(why, sizeof(why), "rank %u died during bootstrap (its connection to the root: %s)", c->peer,
		 err ? strerror(-err) : "closed");
	fail(r, EP_EREMOTE, c->peer, why);
}

static bool on_admit(void *ctx, struct ep_conn *c)
{
	(void)ctx;
	return c->shake.from < EP_BOOT_MAX_RANKS && c->shake.to == EP_NO_RANK;
}

static void on_ready(void *ctx, struct ep_conn *c)
{
	(void)ctx;
	(void)c;
}

static const struct ep_loop_ops root_ops = { .admit = on_admit, .ready = on_ready, .frame = on_frame, .lost = on_lost };

/* "3, rank 5 and 7 more": the ranks that have not come or, if all have, are not connected. */
static void list_missing(const struct ep_root *r, char *buf, size_t size)
{
	bool met = r->here == r->nranks;
	uint32_t n = 0;
	size_t at = 0;

	for (uint32_t i = 0; i < r->nranks; i++) {
		if (met ? r->member[i].done : r->member[i].conn != NULL)
			continue;
		if (n++ < 8 && at < size)
			at += (size_t)snprintf(buf + at, size - at, "%s%u", n > 1 ? ", rank " : "", i);
	}
	if (n > 8 && at < size)
		snprintf(buf + at, size - at, " and %u more", n - 8);
}

/* Returns the first deadline of the waiting ranks; fails if it has passed. */
static uint64_t check_deadlines(struct ep_root *r)
{
	uint64_t first = UINT64_MAX, now = ep_now_ns();
	char why[EP_WHY_MAX], list[128] = "", twice[64] = "";

	for (uint32_t i = 0; i < r->nranks; i++)
		if (r->member[i].conn && r->member[i].deadline < first)
			first = r->member[i].deadline;
	if (first != UINT64_MAX && r->here == r->nranks)
		first += GRACE_MS * 1000000ull;
	if (r->loop.starved_since && now - r->loop.starved_since > STARVED_MS * 1000000ull)
		fail(r, EMFILE, r->host,
		     "the process of the bootstrap root is out of file descriptors: raise its limit (ulimit -n)");
	if (first > now || r->err)
		return first;
	list_missing(r, list, sizeof(list));
	if (r->twice != EP_NO_RANK)
		snprintf(twice, sizeof(twice), " (rank %u came twice)", r->twice);
	if (r->here < r->nranks)
		snprintf(why, sizeof(why), "%u of %u ranks did not come in time: rank %s%s", r->nranks - r->here,
			 r->nranks, list, twice);
	else
		snprintf(why, sizeof(why), "%u of %u ranks did not connect to the others in time: rank %s",
			 r->nranks - r->done, r->nranks, list);
	fail(r, EP_ETIMEOUT, EP_NO_RANK, why);
	return UINT64_MAX;
}

static bool over(const struct ep_root *r)
{
	bool told_all = r->err && r->nranks && r->told >= r->nranks;
	bool waiting = r->here && !r->err; /* the ranks' own deadlines apply */

	if (!r->met && !told_all && (waiting || ep_now_ns() < r->end_at))
		return false;
	for (const struct ep_conn *c = r->loop.conns; c; c = c->next)
		if (c->state == EP_CONN_FINISH)
			return false;
	return true;
}

static void roots_add(struct ep_root *r)
{
	pthread_mutex_lock(&roots.lock);
	r->next = roots.first;
	roots.first = r;
	pthread_mutex_unlock(&roots.lock);
}

static void roots_remove(struct ep_root *r)
{
	struct ep_root **at = &roots.first;

	pthread_mutex_lock(&roots.lock);
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	pthread_mutex_unlock(&roots.lock);
}

void ep_boot_id_abandon(const struct ep_boot_id *id, int rank, int err, const char *why)
{
	struct ep_root *r;

	pthread_mutex_lock(&roots.lock);
	for (r = roots.first; r && memcmp(r->id.secret, id->secret, sizeof(id->secret)); r = r->next)
		;
	if (r && !r->abandoned.yes) {
		r->abandoned.yes = true;
		r->abandoned.err = err;
		r->abandoned.rank = (uint32_t)rank;
		snprintf(r->abandoned.why, sizeof(r->abandoned.why), "rank %d gave up: %s", rank, why);
		ep_loop_wake(&r->loop);
	}
	pthread_mutex_unlock(&roots.lock);
}

/* True: nobody will come. Otherwise those who do are told. */
static bool deserted(struct ep_root *r)
{
	bool end;

	pthread_mutex_lock(&roots.lock);
	end = r->abandoned.yes && !r->abandoned.err;
	if (r->abandoned.yes && !end)
		fail(r, r->abandoned.err, r->abandoned.rank, r->abandoned.why);
	pthread_mutex_unlock(&roots.lock);
	return end;
}

static void *root_main(void *arg)
{
	struct ep_root *r = arg;

	pthread_setname_np(pthread_self(), "ep-boot-root");
	while (!deserted(r) && !over(r)) {
		uint64_t next = check_deadlines(r);

		/* Starvation raises no event, and past end_at only closing connections are waited for. */
		if (r->loop.starved_since || ep_now_ns() >= r->end_at)
			next = ep_deadline_ms(STARVED_MS / 4);
		else if (!r->here || r->err)
			next = r->end_at;
		r->turn_end = ep_deadline_ms(TURN_MS);
		if (!r->here || next < r->turn_end)
			r->turn_end = next;
		if (ep_loop_turn(&r->loop, r->turn_end, NULL))
			break;
	}
	if (!r->met && !r->err)
		snprintf(r->why, sizeof(r->why), "no rank came");
	EP_INFO(EP_BOOT, "bootstrap root of %u ranks exits: %s", r->nranks, r->met ? "all are connected" : r->why);
	roots_remove(r);
	ep_loop_free(&r->loop);
	free(r->member);
	ep_wipe(r->id.secret, sizeof(r->id.secret));
	free(r);
	return NULL;
}

/* Starts the root's thread, which owns the listening sockets, also on failure. */
static int root_start(const struct ep_boot_id *id, const int *listeners, int n)
{
	struct ep_root *r = calloc(1, sizeof(*r));
	int rc = r ? 0 : -ENOMEM, used = 0;

	if (rc)
		goto close_listeners;
	r->id = *id;
	r->host = EP_NO_RANK;
	r->twice = EP_NO_RANK;
	r->culprit = EP_NO_RANK;
	r->cookie = ep_boot_cookie(id->secret);
	r->timeout_ms = ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS);
	r->end_at = ep_deadline_ms(FIRST_RANK_TIMEOUTS * r->timeout_ms);
	rc = ep_loop_init(&r->loop, &root_ops, r, r->id.secret);
	if (rc)
		goto free_root;
	snprintf(r->loop.what, sizeof(r->loop.what), "the bootstrap root");
	while (used < n && !rc)
		rc = ep_loop_listen(&r->loop, listeners[used++], EP_TO_ROOT);
	if (!rc) {
		roots_add(r);
		rc = ep_boot_thread(NULL, root_main, r, true);
		if (!rc)
			return 0;
		roots_remove(r);
	}
	ep_loop_free(&r->loop);
free_root:
	free(r);
close_listeners:
	while (used < n)
		ep_sock_close(listeners[used++]);
	return EP_FAIL(EP_BOOT, -rc, "cannot start the bootstrap root: %s", strerror(-rc));
}

int ep_boot_id_create(struct ep_boot_id *out)
{
	union ep_sockaddr addr[EP_BOOT_ADDRS];
	struct ep_boot_id id;
	char why[256], first[EP_SOCK_TEXT];
	int n, rc, fds[EP_BOOT_ADDRS];

	rc = ep_mac_check();
	if (!rc)
		rc = ep_boot_id_init(&id);
	if (rc)
		return rc;
	n = ep_sock_pick(addr, EP_BOOT_ADDRS, why, sizeof(why));
	if (n < 0)
		return n;
	rc = ep_sock_listen(addr, n, &id.port, fds);
	if (rc)
		return EP_FAIL(EP_BOOT, -rc, "the bootstrap root cannot listen on %s: %s", why, strerror(-rc));
	id.naddr = (uint8_t)n;
	for (int i = 0; i < n; i++)
		ep_boot_addr_set(&id.addr[i], &addr[i]);
	ep_boot_addr_get(&id.addr[0], id.port, &addr[0]);
	EP_INFO(EP_BOOT, "bootstrap root at %s and %d more addresses (interface %s)",
		ep_sock_text(&addr[0], first, sizeof(first)), n - 1, why);
	rc = root_start(&id, fds, n);
	if (rc)
		return rc;
	*out = id;
	return 0;
}
