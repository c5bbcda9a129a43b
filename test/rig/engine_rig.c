/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/gx/gx.h"
#include "kernels/gx/ring.h"
#include "test/net/net_spread.h"
#include "util/clock.h"
#include "util/error.h"

/* A request of the probe: its share in flight, and the net's request. */
struct probe_request {
	struct probe_request *next, **here; /* in the probe's list */
	void *inner;
	uint64_t bytes, puts; /* including the quiet puts before it */
	uint32_t since, slow; /* calls of progress */
	int peer;
	bool held;
};

/* Quiet puts by peer, until a request covers them. */
struct probe_conn {
	uint64_t bytes, puts;
};

/* Credits between ports are told from puts by their destination (proxy/port.h). */
static bool put_is_credit(const ncclEpNetPut_v1_t *put)
{
	uint64_t dst = 0;

	if (put->flags & NCCL_EP_NET_IMM && put->flags & NCCL_EP_NET_INLINE && put->size == 16)
		memcpy(&dst, put->src, sizeof(dst));
	return dst == UINT64_MAX;
}

static int ring_of(const struct eng_rank *me, int peer)
{
	return peer / me->rig->o.ports % me->rig->o.rings;
}

static void probe_count(struct eng_probe *p, const ncclEpNetPut_v1_t *put)
{
	int ring = ring_of(p->rank, put->peer);

	p->ring_puts[ring]++;
	p->ring_max[ring] = p->ring_puts[ring] > p->ring_max[ring] ? p->ring_puts[ring] : p->ring_max[ring];
	p->bytes += put->size;
	p->puts++;
	p->bytes_max = p->bytes > p->bytes_max ? p->bytes : p->bytes_max;
	p->puts_max = p->puts > p->puts_max ? p->puts : p->puts_max;
	p->bytes_top = put->size > p->bytes_top ? put->size : p->bytes_top;
}

static int probe_iput(void *ctx, const ncclEpNetPut_v1_t *put, void **request)
{
	struct eng_probe *p = *(struct eng_probe **)ctx;
	struct probe_conn *conn = (struct probe_conn *)((void **)ctx + 1) + put->peer;
	uint32_t stall = __atomic_exchange_n(&p->stall_ms, 0, __ATOMIC_RELAXED);
	struct probe_request *r;
	uint32_t hold = 1;
	void *inner;
	int rc;

	if (stall)
		usleep(stall * 1000);
	*request = NULL;
	if (__atomic_load_n(&p->room, __ATOMIC_ACQUIRE) == 1)
		return __atomic_load_n(&p->refusal, __ATOMIC_RELAXED);
	rc = p->inner->iput(p->ctx, put, &inner);
	*request = inner;
	if (rc || !inner)
		return rc;
	p->iputs++;
	if (p->room)
		__atomic_store_n(&p->room, p->room - 1, __ATOMIC_RELEASE);
	p->quiet += (put->flags & NCCL_EP_NET_QUIET) != 0;
	p->more += (put->flags & NCCL_EP_NET_MORE) != 0;
	if (!put_is_credit(put)) {
		probe_count(p, put);
		conn->bytes += put->size;
		conn->puts++;
	}
	if (inner == NCCL_EP_NET_QUIET_REQUEST)
		return 0;
	r = malloc(sizeof(*r));
	*r = (struct probe_request){ .next = p->open, .here = &p->open, .inner = inner, .bytes = conn->bytes };
	r->puts = conn->puts;
	r->peer = put->peer;
	r->since = p->calls;
	r->slow = __atomic_load_n(&p->slow, __ATOMIC_RELAXED);
	r->slow *= __atomic_load_n(&p->late, __ATOMIC_RELAXED) == (uint32_t)put->peer + 1 ? 10 : 1;
	if (r->next)
		r->next->here = &r->next;
	p->open = r;
	r->held = __atomic_compare_exchange_n(&p->hold, &hold, 2, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	*conn = (struct probe_conn){ 0 };
	*request = r;
	return 0;
}

/* One at a time: what a port promises itself. */
static int probe_iflush(void *ctx, void *mr, void **request)
{
	struct eng_probe *p = *(struct eng_probe **)ctx;
	int rc = __atomic_load_n(&p->flush_rc, __ATOMIC_ACQUIRE);

	*request = NULL;
	if (rc)
		ep_last_error_set(p->text ? p->text : "");
	if (rc || p->flush)
		return rc ? rc : -EBUSY;
	if (__atomic_load_n(&p->flushing, __ATOMIC_ACQUIRE) == 2)
		return 0;
	rc = p->inner->iflush(p->ctx, mr, &p->flush);
	if (rc || !p->flush)
		return rc;
	if (__atomic_load_n(&p->hold_next_flush, __ATOMIC_ACQUIRE))
		__atomic_store_n(&p->flushing, 1, __ATOMIC_RELEASE);
	__atomic_fetch_add(&p->flushes, 1, __ATOMIC_RELEASE);
	*request = &p->flush;
	return 0;
}

static int probe_flush_test(struct eng_probe *p, int *done)
{
	int rc;

	*done = 0;
	if (__atomic_load_n(&p->flushing, __ATOMIC_ACQUIRE))
		return 0;
	rc = p->inner->test(p->ctx, p->flush, done);
	if (*done)
		p->flush = NULL;
	if (rc || !*done)
		return rc;
	rc = __atomic_load_n(&p->flushed_rc, __ATOMIC_ACQUIRE);
	if (rc)
		ep_last_error_set(p->text ? p->text : "");
	return rc;
}

static int probe_test(void *ctx, void *request, int *done)
{
	struct eng_probe *p = *(struct eng_probe **)ctx;
	struct probe_request *r = request;
	int rc;

	*done = 0;
	if (request == &p->flush)
		return probe_flush_test(p, done);
	if (__atomic_load_n(&p->dead, __ATOMIC_RELAXED) == (uint32_t)r->peer + 1)
		return 0;
	if (p->calls - r->since < r->slow || (r->held && __atomic_load_n(&p->hold, __ATOMIC_RELAXED)))
		return 0;
	rc = p->inner->test(p->ctx, r->inner, done);
	if (*done) {
		p->bytes -= r->bytes;
		p->puts -= r->puts;
		p->ring_puts[ring_of(p->rank, r->peer)] -= r->puts;
		p->done_at[r->peer] = p->calls;
		*r->here = r->next;
		if (r->next)
			r->next->here = r->here;
		free(r);
	}
	return rc;
}

static int probe_progress(void *ctx, uint32_t *imms, int max, int *count)
{
	struct eng_probe *p = *(struct eng_probe **)ctx;

	int rc = __atomic_load_n(&p->progress_rc, __ATOMIC_ACQUIRE);

	__atomic_fetch_add(&p->calls, 1, __ATOMIC_RELAXED);
	if (!rc)
		return p->inner->progress(p->ctx, imms, max, count);
	*count = 0;
	ep_last_error_set(p->text ? p->text : "");
	return rc;
}

static const ncclEpNetHot_v1_t probe_hot = {
	.iput = probe_iput, .iflush = probe_iflush, .test = probe_test, .progress = probe_progress
};

static void peer_failed(void *arg, int peer, int err, const char *why)
{
	struct eng_rank *me = arg;

	snprintf(me->peer_why[peer], sizeof(me->peer_why[peer]), "%s", why);
	__atomic_store_n(&me->peer_err[peer], err, __ATOMIC_RELAXED);
	__atomic_fetch_add(&me->peer_failed[peer], 1, __ATOMIC_RELEASE);
}

static int peer_error(void *arg, int peer, const char **why)
{
	struct eng_rank *me = arg;

	if (!__atomic_load_n(&me->net_lost[peer], __ATOMIC_ACQUIRE))
		return me->net->ops.queryLastError(me->comm, peer, why);
	*why = me->net_why;
	return -EP_EREMOTE;
}

static void failed(void *arg, int err, const char *why)
{
	struct eng_rank *me = arg;

	snprintf(me->failed_why, sizeof(me->failed_why), "%s", why);
	__atomic_store_n(&me->failed_err, err, __ATOMIC_RELAXED);
	__atomic_fetch_add(&me->failed, 1, __ATOMIC_RELEASE);
}

static void *pages(size_t n)
{
	void *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);

	return p ? memset(p, 0, n) : NULL;
}

static bool is_peer(const struct eng_opts *o, int a, int b)
{
	return !o->peers || o->peers(a, b);
}

/* Peers of `rank` below `end`. */
static uint32_t peers_below(const struct eng_opts *o, int rank, int end)
{
	uint32_t n = 0;

	for (int r = 0; r < end; r++)
		n += is_peer(o, rank, r);
	return n;
}

uint32_t eng_seats(const struct eng_rig *rig)
{
	uint32_t most = 0, n;

	for (int r = 0; r < rig->o.ranks; r++) {
		n = peers_below(&rig->o, r, rig->o.ranks);
		most = n > most ? n : most;
	}
	return most;
}

static int port_open(struct eng_rank *me, int index)
{
	const struct eng_opts *o = &me->rig->o;
	struct eng_port *p = &me->port[index];
	struct ep_ring *ring[ENG_RINGS];
	struct ep_port_peer peer[ENG_RANKS];
	struct ep_port_opts opts = {
		.hot = &probe_hot,
		.ordered = me->props.ordered,
		.max_inline = me->props.maxInline < o->max_inline ? me->props.maxInline : o->max_inline,
		.max_put = o->max_put && o->max_put < me->props.maxPutSize ? o->max_put : me->props.maxPutSize,
		.flow = o->flow,
		.rank = me->rank,
		.nranks = o->ranks,
		.peer = peer,
		.seats = eng_seats(me->rig),
		.window = o->window,
		.regions = &me->regions,
		.mail = 1 + (uint32_t)index,
		.ring = ring,
		.rings = o->rings,
		.rung = !o->no_bell,
		.open = o->open,
		.open_ns = o->open_ns,
		.flush = o->flush ? me->regions.region[0].mr : NULL,
		.peer_failed = peer_failed,
		.peer_error = peer_error,
		.failed = failed,
		.arg = me,
		.start = o->start,
	};
	void **ctx = calloc(1, sizeof(void *) + (size_t)o->ranks * sizeof(struct probe_conn));
	int rc = me->net->ops.createContext(me->comm, index, &p->probe.ctx);

	if (rc)
		return rc;
	for (int r = 0; r < o->ranks; r++)
		if (is_peer(o, me->rank, r))
			peer[opts.peers++] = (struct ep_port_peer){ r, peers_below(o, r, me->rank) };
	p->probe.inner = &me->net->hot;
	p->probe.rank = me;
	*ctx = &p->probe;
	opts.ctx = p->ctx = ctx;
	if (o->bare) {
		opts.hot = p->probe.inner;
		opts.ctx = p->probe.ctx;
	}
	p->head = pages(ENG_RINGS * sizeof(*p->head));
	rc = ep_engine_take((me->rank * o->ports + index) % o->engines, NULL, &p->engine);
	for (int i = 0; !rc && i < o->rings; i++) {
		ring[i] = &p->ring[i];
		p->pinned[i] = pages(ep_cmd_pinned_size(o->entries));
		rc = ep_ring_init(&p->ring[i], p->pinned[i], o->entries, o->ring_start);
		p->head[i].claim = p->head[i].seen = o->ring_start;
		p->dev[i] = ep_ring_for_device(&p->ring[i], p->pinned[i], &p->head[i]);
		p->dev[i].bell = o->no_bell ? NULL : ep_engine_bell(p->engine);
	}
	rc = rc ? rc : ep_port_open(&opts, &p->port);
	return rc || o->detached ? rc : ep_engine_attach(p->engine, p->port);
}

/* All ranks register in the same order: region 0, then the mail of each port. */
static int regions_open(struct eng_rig *rig)
{
	size_t mail = ep_port_mail_size(eng_seats(rig), rig->o.window);
	static uint8_t keys[ENG_RANKS][NCCL_EP_NET_KEY_SIZE];

	for (int i = 0; i <= rig->o.ports; i++) {
		for (int r = 0; r < rig->o.ranks; r++) {
			struct eng_rank *me = &rig->rank[r];
			size_t n = i ? mail : rig->o.bytes;
			ncclEpNetMem_v1_t mem = { .ptr = pages(n), .size = n, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
			struct ep_region *region = &me->regions.region[i];

			*region = (struct ep_region){ .host = mem.ptr, .size = n };
			if (me->net->ops.regMr(me->comm, &mem, keys[r], &region->mr))
				return -1;
			*(i ? &me->port[i - 1].mail : (void **)&me->mem) = mem.ptr;
			me->regions.count = (uint32_t)i + 1;
		}
		for (int r = 0; r < rig->o.ranks; r++)
			if (rig->rank[r].net->ops.shareMr(rig->rank[r].comm, rig->rank[r].regions.region[i].mr, keys))
				return -1;
	}
	return 0;
}

static int ranks_open(struct eng_rig *rig)
{
	static uint8_t handles[ENG_RANKS][NCCL_EP_NET_HANDLE_SIZE];
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);
	void *listener[ENG_RANKS];

	for (int r = 0; r < rig->o.ranks; r++) {
		struct eng_rank *me = &rig->rank[r];
		int dev;

		*me = (struct eng_rank){ .rig = rig, .rank = r };
		if (ep_net_open(rig->o.spec, &me->net))
			return -1;
		dev = net_spread(me->net, r);
		if (me->net->ops.getProperties(me->net->net, dev, &me->props) ||
		    me->net->ops.listen(me->net->net, dev, rig->o.ranks, handles[r], &listener[r]))
			return -1;
	}
	/* In turn: a net may wait for its peers' answers. */
	for (int r = 0, left = rig->o.ranks; left; r = (r + 1) % rig->o.ranks) {
		struct eng_rank *me = &rig->rank[r];

		if (me->comm)
			continue;
		if (me->net->ops.connect(listener[r], handles, rig->o.ranks, r, &me->comm) || ep_now_ns() > end)
			return -1;
		left -= me->comm != NULL;
	}
	for (int r = 0; r < rig->o.ranks; r++)
		if (rig->rank[r].net->ops.closeListen(listener[r]))
			return -1;
	return regions_open(rig);
}

struct eng_rig *eng_open(const struct eng_opts *opts)
{
	struct eng_rig *rig = calloc(1, sizeof(*rig));
	int rc;

	rig->o = *opts;
	rig->o.ports = opts->ports ? opts->ports : 1;
	rig->o.rings = opts->rings ? opts->rings : 1;
	rig->o.engines = opts->engines ? opts->engines : 1;
	rig->o.entries = opts->entries ? opts->entries : 1024;
	rig->o.window = opts->window ? opts->window : 256;
	rc = ranks_open(rig);
	for (int r = 0; !rc && r < opts->ranks; r++)
		for (int i = 0; !rc && i < rig->o.ports; i++)
			rc = port_open(&rig->rank[r], i);
	if (!rc)
		return rig;
	fprintf(stderr, "engine_rig: %s: %s\n", opts->spec, ep_last_error());
	exit(1);
}

static void port_close(struct eng_rank *me, struct eng_port *p)
{
	ep_engine_detach(p->engine, p->port, ep_deadline_ms(ENG_WAIT_MS));
	ep_port_close(p->port);
	while (p->probe.open) { /* what was under way when the port stopped */
		struct probe_request *r = p->probe.open;

		p->probe.open = r->next;
		free(r);
	}
	ep_engine_give(p->engine);
	me->net->ops.destroyContext(p->probe.ctx);
	for (int i = 0; i < me->rig->o.rings; i++)
		free(p->pinned[i]);
	free(p->ctx);
	free(p->head);
}

void eng_close(struct eng_rig *rig)
{
	for (int r = 0; r < rig->o.ranks; r++)
		for (int i = 0; i < rig->o.ports; i++)
			port_close(&rig->rank[r], &rig->rank[r].port[i]);
	for (int r = 0; r < rig->o.ranks; r++) {
		struct eng_rank *me = &rig->rank[r];

		for (uint32_t i = 0; i < me->regions.count; i++) {
			me->net->ops.deregMr(me->comm, me->regions.region[i].mr);
			free(me->regions.region[i].host);
		}
	}
	for (int r = 0; r < rig->o.ranks; r++) {
		rig->rank[r].net->ops.closeComm(rig->rank[r].comm);
		ep_net_close(rig->rank[r].net);
	}
	free(rig);
}

struct eng_port *eng_port_to(struct eng_rank *me, int peer)
{
	return &me->port[(me->rank + peer) % me->rig->o.ports];
}

struct ep_cmd_ring *eng_ring_to(struct eng_rank *me, int peer)
{
	return &eng_port_to(me, peer)->dev[ring_of(me, peer)];
}

static const uint64_t never;

static struct gx_limit limit_of(void)
{
	return (struct gx_limit){ .deadline = ep_deadline_ms(ENG_WAIT_MS), .abort = &never };
}

int eng_push(struct eng_rank *me, int peer, struct ep_cmd cmd)
{
	struct gx_limit limit = limit_of();

	gx_fence_sys();
	return (int)gx_ring_push(eng_ring_to(me, peer), cmd, &limit);
}

int eng_push_all(struct eng_rank *me, int peer, const struct ep_cmd *cmd, uint32_t n)
{
	const struct ep_cmd_ring *ring = eng_ring_to(me, peer);
	struct gx_limit limit = limit_of();
	uint64_t at;
	int rc = (int)gx_ring_claim(ring, n, &limit, &at);

	gx_fence_sys();
	for (uint32_t i = 0; !rc && i < n; i++)
		gx_ring_store(ring, at + i, cmd[i]);
	gx_bell(ring->bell);
	return rc;
}

void eng_give_up(struct eng_rank *me, int peer)
{
	const struct ep_cmd_ring *ring = eng_ring_to(me, peer);

	gx_ring_give_up(ring, gx_dev_add_relaxed_u64(&ring->head->claim, 1), GX_TIMED_OUT);
	gx_bell(ring->bell);
}

int eng_put(struct eng_rank *me, int peer, uint64_t dst, uint64_t src, uint32_t n)
{
	return eng_push(me, peer, ep_cmd_put((uint32_t)peer, dst, src, n));
}

int eng_signal(struct eng_rank *me, int peer, uint64_t dst, uint64_t value)
{
	return eng_push(me, peer, ep_cmd_signal((uint32_t)peer, dst, value));
}

uint64_t eng_word(struct eng_rank *me, uint64_t at)
{
	return gx_ld_acquire_u64((uint64_t *)(me->mem + at));
}

bool eng_wait(struct eng_rank *me, uint64_t at, uint64_t value)
{
	uint64_t end = ep_deadline_ms(ENG_WAIT_MS);

	while (eng_word(me, at) < value) {
		if (ep_now_ns() > end)
			return false;
		usleep(20);
	}
	return true;
}

int eng_quiet(struct eng_rank *me)
{
	int rc = 0;

	for (int i = 0; i < me->rig->o.ports && !rc; i++)
		rc = ep_port_quiet(me->port[i].port, ep_deadline_ms(ENG_WAIT_MS));
	return rc;
}

struct ep_port_counts eng_counts(struct eng_rank *me)
{
	struct ep_port_counts sum = { 0 }, c;

	for (int i = 0; i < me->rig->o.ports; i++) {
		ep_port_counts(me->port[i].port, &c);
		sum.commands += c.commands;
		sum.joined += c.joined;
		sum.puts += c.puts;
		sum.bytes += c.bytes;
		sum.signals += c.signals;
		sum.credits += c.credits;
		sum.dropped += c.dropped;
	}
	return sum;
}

struct runner {
	struct eng_rank *rank;
	void (*run)(struct eng_rank *me);
	pthread_t thread;
};

static void *runner_main(void *arg)
{
	struct runner *r = arg;

	r->run(r->rank);
	return NULL;
}

void eng_run(struct eng_rig *rig, void (*run)(struct eng_rank *me))
{
	struct runner runner[ENG_RANKS];

	for (int r = 0; r < rig->o.ranks; r++) {
		runner[r] = (struct runner){ .rank = &rig->rank[r], .run = run };
		if (pthread_create(&runner[r].thread, NULL, runner_main, &runner[r]))
			exit(1);
	}
	for (int r = 0; r < rig->o.ranks; r++)
		pthread_join(runner[r].thread, NULL);
}

uint64_t eng_draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}
