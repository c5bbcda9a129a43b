/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection for any net: NCCL_EP_NET="faulty(loop):reorder=8,fail=100".
 *   seed=S     of the random numbers: the same calls on a context hit the same puts, independent of timing
 *   reorder=N  up to N puts are held back and sent in random order
 *   delay=N    a put is held back for a random number of calls of progress, at most N
 *   dup=M      M of a million puts arrive twice, with their immediate
 *   fail=M     M of a million puts complete with -EIO; half of these are not even sent. Later ones to that peer on that
 *              context fail too and are not sent (P3 of nccl_ep_net.h)
 *   drop=R     rank R is lost: puts to it fail, and its own arrive without their immediates
 *   stall=MS   one put per context blocks for MS milliseconds
 *   mute=1     puts neither arrive nor complete
 *   to=R       mute applies to puts to rank R only
 *   puts=N     flow control: N puts in flight for LL and for HT
 *   after=N    fail, drop, mute and stall begin after N puts on a context
 *   refuse=N   the N-th registration of a comm fails, counted from 1
 *   connect=0  connect fails
 *   rank=R     fail, stall, mute, refuse and connect apply to rank R only
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/option.h"
#include "net/table.h"
#include "util/clock.h"
#include "util/error.h"

#define SLOTS 256
#define INLINE_MAX 64u
#define MILLION 1000000u

struct faults {
	uint64_t seed, reorder, delay, fail, dup, drop, stall, mute, after, refuse, connect, rank, to, puts;
};

struct faulty_net {
	struct faults faults;
	const ncclEpNet_v1_t *inner;
	void *net;
};

struct faulty_listener {
	struct faulty_net *net;
	void *inner;
};

struct faulty_comm {
	struct faulty_net *net;
	void *inner;
	int rank, nranks;
	bool struck; /* by the faults that `rank` restricts */
	uint64_t registrations;
	int dropped; /* drop has begun on some context; atomic */
	char why[64];
};

enum slot_state { SLOT_FREE, SLOT_HELD, SLOT_SENT, SLOT_DONE };

struct slot {
	enum slot_state state;
	ncclEpNetPut_v1_t put;
	uint64_t serial, due; /* due: a count of calls of progress */
	void *request[2];     /* of the inner net; NULL: done, or not yet sent */
	int copies, sent;
	bool quiet, flush;
	int rc, fate; /* its result, and the injected result */
	uint8_t data[INLINE_MAX];
};

/* The state of one peer. */
struct conn {
	int quiet_rc;	  /* result of quiet puts, for the request that covers them */
	uint64_t blocked; /* the round in which nothing more can be sent to it */
	int failed;	  /* result of the first put that failed, or 0: later ones are not sent */
	uint64_t last;	  /* its serial */
	int open;	  /* slots of its puts */
};

struct faulty_ctx {
	struct faulty_comm *comm;
	const ncclEpNetHot_v1_t *hot;
	void *inner;
	uint64_t fates, luck; /* random states: faults of puts, and their order, which depends on the inner net */
	uint64_t serial, tick, puts, rounds;
	int nheld, held[SLOTS]; /* slots in the order of their puts */
	int open;		/* slots in use */
	struct slot slots[SLOTS];
	struct conn conns[];
};

static uint64_t draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static int faulty_init(const ncclEpNetInit_v1_t *args, void **out)
{
	struct faulty_net *net = EP_CALLOC(EP_NET, 1, sizeof(*net), "transport faulty");
	struct faults *f = net ? &net->faults : NULL;
	int rc;

	if (!net)
		return -ENOMEM;
	const struct ep_net_option options[] = {
		{ "seed", &f->seed, UINT64_MAX },
		{ "reorder", &f->reorder, SLOTS / 2 },
		{ "delay", &f->delay, 1u << 20 },
		{ "fail", &f->fail, MILLION },
		{ "dup", &f->dup, MILLION },
		{ "drop", &f->drop, INT32_MAX },
		{ "mute", &f->mute, 1 },
		{ "stall", &f->stall, 1u << 20 },
		{ "after", &f->after, UINT64_MAX },
		{ "refuse", &f->refuse, INT32_MAX },
		{ "rank", &f->rank, INT32_MAX },
		{ "connect", &f->connect, 1 },
		{ "to", &f->to, INT32_MAX },
		{ "puts", &f->puts, 1u << 20 },
	};

	f->drop = f->rank = f->to = UINT64_MAX;
	f->connect = 1;
	net->inner = args->inner;
	net->net = args->innerNet;
	rc = ep_net_options("faulty", args->options, options, sizeof(options) / sizeof(options[0]));
	if (rc)
		free(net);
	else
		*out = net;
	return rc;
}

static int faulty_finalize(void *net)
{
	free(net);
	return 0;
}

static int faulty_devices(void *n, int *count)
{
	struct faulty_net *net = n;

	return net->inner->devices(net->net, count);
}

static int faulty_getProperties(void *n, int dev, ncclEpNetProperties_v1_t *props)
{
	struct faulty_net *net = n;
	int rc = net->inner->getProperties(net->net, dev, props);

	if (rc)
		return rc;
	if (net->faults.reorder)
		props->ordered = 0;
	if (!props->maxPuts || props->maxPuts > SLOTS)
		props->maxPuts = SLOTS;
	if (props->maxInline > INLINE_MAX)
		props->maxInline = INLINE_MAX;
	if (net->faults.puts)
		props->lowLatency.maxPuts = props->throughput.maxPuts = (uint32_t)net->faults.puts;
	return 0;
}

static int faulty_listen(void *n, int dev, int nranks, void *handle, void **out)
{
	struct faulty_listener *listener = EP_CALLOC(EP_NET, 1, sizeof(*listener), "a listener");
	struct faulty_net *net = n;
	int rc;

	if (!listener)
		return -ENOMEM;
	listener->net = net;
	rc = net->inner->listen(net->net, dev, nranks, handle, &listener->inner);
	if (rc)
		free(listener);
	else
		*out = listener;
	return rc;
}

static int faulty_connect(void *l, const void *handles, int nranks, int rank, void **out)
{
	struct faulty_listener *listener = l;
	struct faulty_comm *comm = EP_CALLOC(EP_NET, 1, sizeof(*comm), "a comm");
	int rc;

	if (!comm)
		return -ENOMEM;
	comm->net = listener->net;
	comm->rank = rank;
	comm->nranks = nranks;
	comm->struck = comm->net->faults.rank == UINT64_MAX || comm->net->faults.rank == (uint64_t)rank;
	snprintf(comm->why, sizeof(comm->why),
		 "faulty: rank %d is lost: injected by drop=", (int)comm->net->faults.drop);
	if (comm->struck && !comm->net->faults.connect)
		rc = EP_FAIL(EP_NET, EP_EREMOTE, "faulty: rank %d: connect failed: injected by connect=0", rank);
	else
		rc = comm->net->inner->connect(listener->inner, handles, nranks, rank, &comm->inner);
	if (rc || !comm->inner) { /* or not yet: the caller tries again */
		free(comm);
		return rc;
	}
	*out = comm;
	return 0;
}

static int faulty_closeListen(void *l)
{
	struct faulty_listener *listener = l;
	int rc = listener->net->inner->closeListen(listener->inner);

	free(listener);
	return rc;
}

static int faulty_closeComm(void *c)
{
	struct faulty_comm *comm = c;
	int rc = comm->net->inner->closeComm(comm->inner);

	free(comm);
	return rc;
}

static int faulty_createContext(void *c, int index, void **out)
{
	struct faulty_comm *comm = c;
	struct faulty_ctx *ctx =
		EP_CALLOC(EP_NET, 1, sizeof(*ctx) + (size_t)comm->nranks * sizeof(ctx->conns[0]), "a context");
	int rc;

	if (!ctx)
		return -ENOMEM;
	ctx->comm = comm;
	ctx->hot = comm->net->inner->hot;
	ctx->fates = comm->net->faults.seed ^ ((uint64_t)comm->rank << 32) ^ (uint64_t)index;
	ctx->luck = ~ctx->fates;
	rc = comm->net->inner->createContext(comm->inner, index, &ctx->inner);
	if (rc)
		free(ctx);
	else
		*out = ctx;
	return rc;
}

static int faulty_destroyContext(void *c)
{
	struct faulty_ctx *ctx = c;
	int rc = ctx->comm->net->inner->destroyContext(ctx->inner);

	free(ctx);
	return rc;
}

static int comm_refuse(struct faulty_comm *comm)
{
	if (++comm->registrations != comm->net->faults.refuse || !comm->struck)
		return 0;
	return EP_FAIL(EP_NET, ENOMEM, "faulty: registration %llu of rank %d failed: injected by refuse=",
		       (unsigned long long)comm->registrations, comm->rank);
}

static int faulty_regMr(void *c, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	struct faulty_comm *comm = c;
	int rc = comm_refuse(comm);

	return rc ? rc : comm->net->inner->regMr(comm->inner, mem, key, mr);
}

static int faulty_regMrDmaBuf(void *c, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	struct faulty_comm *comm = c;
	int rc = comm_refuse(comm);

	return rc ? rc : comm->net->inner->regMrDmaBuf(comm->inner, mem, key, mr);
}

static int faulty_shareMr(void *c, void *mr, const void *keys)
{
	struct faulty_comm *comm = c;

	return comm->net->inner->shareMr(comm->inner, mr, keys);
}

static int faulty_deregMr(void *c, void *mr)
{
	struct faulty_comm *comm = c;

	return comm->net->inner->deregMr(comm->inner, mr);
}

static int faulty_queryLastError(void *c, int peer, const char **message)
{
	struct faulty_comm *comm = c;

	if (peer >= 0 && (uint64_t)peer == comm->net->faults.drop &&
	    __atomic_load_n(&comm->dropped, __ATOMIC_RELAXED)) {
		*message = comm->why;
		return -EP_EREMOTE;
	}
	return comm->net->inner->queryLastError(comm->inner, peer, message);
}

static bool is_dropped(struct faulty_ctx *ctx, int peer)
{
	const struct faults *f = &ctx->comm->net->faults;

	if ((uint64_t)peer != f->drop || ctx->puts < f->after)
		return false;
	__atomic_store_n(&ctx->comm->dropped, 1, __ATOMIC_RELAXED);
	return true;
}

/*
 * P3: nothing that was put to this peer after a failed put arrives, also where the inner net fails only when a held put
 * is given to it. A put that was invalid fails alone.
 */
static void conn_fail(struct faulty_ctx *ctx, const struct slot *slot, int rc)
{
	struct conn *conn = &ctx->conns[slot->put.peer];

	if (!rc || rc == -EP_EARG || (conn->failed && conn->last < slot->serial))
		return;
	conn->failed = rc;
	conn->last = slot->serial;
}

/* Sends the copies. False: the inner net has no room. */
static bool slot_send(struct faulty_ctx *ctx, struct slot *slot)
{
	const struct conn *conn = &ctx->conns[slot->put.peer];

	if (conn->failed && slot->serial > conn->last)
		slot->rc = conn->failed;
	while (slot->sent < slot->copies && !slot->rc) {
		void **request = &slot->request[slot->sent];

		slot->rc = ctx->hot->iput(ctx->inner, &slot->put, request);
		if (!slot->rc && !*request)
			return false;
		slot->sent++;
		conn_fail(ctx, slot, slot->rc);
	}
	slot->state = SLOT_SENT;
	return true;
}

static void slot_poll(struct faulty_ctx *ctx, struct slot *slot)
{
	int done, rc;

	for (int i = 0; i < slot->sent; i++) {
		if (!slot->request[i])
			continue;
		rc = ctx->hot->test(ctx->inner, slot->request[i], &done);
		if (!done)
			return;
		slot->request[i] = NULL;
		slot->rc = slot->rc ? slot->rc : rc;
	}
	if (!slot->flush)
		conn_fail(ctx, slot, slot->rc);
	slot->rc = slot->rc ? slot->rc : slot->fate;
	slot->state = SLOT_DONE;
}

/*
 * Held puts that may be sent now, oldest first, at most as many as may overtake each other. A peer without room does
 * not block others; without reordering, a put that is not due blocks later ones to the same peer.
 */
static int held_choose(struct faulty_ctx *ctx, int *out)
{
	int window = (int)ctx->comm->net->faults.reorder + 1, n = 0;

	for (int k = 0; k < ctx->nheld && n < window; k++) {
		const struct slot *slot = &ctx->slots[ctx->held[k]];
		struct conn *conn = &ctx->conns[slot->put.peer];

		if (conn->blocked == ctx->rounds)
			continue;
		if (slot->due <= ctx->tick)
			out[n++] = k;
		else if (window == 1)
			conn->blocked = ctx->rounds;
	}
	return n;
}

static void held_send(struct faulty_ctx *ctx, int keep)
{
	int ready[SLOTS], n, k;

	ctx->rounds++;
	while (ctx->nheld > keep) {
		n = held_choose(ctx, ready);
		if (!n)
			return;
		k = ready[draw(&ctx->luck) % (uint64_t)n];
		if (!slot_send(ctx, &ctx->slots[ctx->held[k]])) {
			ctx->conns[ctx->slots[ctx->held[k]].put.peer].blocked = ctx->rounds;
			continue;
		}
		ctx->nheld--;
		memmove(&ctx->held[k], &ctx->held[k + 1], (size_t)(ctx->nheld - k) * sizeof(ctx->held[0]));
	}
}

/* A peer may take half of what is left, so that one whose puts do not complete leaves room to the others. */
static int slot_find(struct faulty_ctx *ctx, int taken)
{
	for (int i = 0; taken < SLOTS - ctx->open && i < SLOTS; i++)
		if (ctx->slots[i].state == SLOT_FREE)
			return i;
	return -1;
}

static void slot_free(struct faulty_ctx *ctx, struct slot *slot)
{
	slot->state = SLOT_FREE;
	ctx->open--;
	if (!slot->flush)
		ctx->conns[slot->put.peer].open--;
}

/* Breaks the rule that operations do not block: the purpose of this option. */
static void stall(uint64_t ms)
{
	struct timespec left = ep_timespec(ms * 1000000);

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

static bool is_muted(const struct faulty_ctx *ctx, int peer)
{
	const struct faults *f = &ctx->comm->net->faults;

	return f->mute && ctx->comm->struck && ctx->puts >= f->after &&
	       (f->to == UINT64_MAX || f->to == (uint64_t)peer);
}

/* Decides the faults of a put, always with three draws, so that no option shifts the random numbers of another. */
static void slot_doom(struct faulty_ctx *ctx, struct slot *slot)
{
	const struct faults *f = &ctx->comm->net->faults;
	uint64_t fail = draw(&ctx->fates), dup = draw(&ctx->fates), delay = draw(&ctx->fates);

	slot->copies = dup % MILLION < f->dup ? 2 : 1;
	slot->due = is_muted(ctx, slot->put.peer) ? UINT64_MAX : ctx->tick + delay % (f->delay + 1);
	if (fail % MILLION < f->fail && ctx->puts >= f->after && ctx->comm->struck) {
		slot->fate = -EIO;
		if (fail >> 32 & 1)
			slot->copies = 0;
	}
	if (is_dropped(ctx, slot->put.peer)) {
		slot->fate = -EP_EREMOTE;
		slot->copies = 0;
	}
	conn_fail(ctx, slot, slot->fate);
	if ((uint64_t)ctx->comm->rank == f->drop && ctx->puts >= f->after)
		slot->put.flags &= ~NCCL_EP_NET_IMM;
	if (f->stall && ctx->puts == f->after && ctx->comm->struck)
		stall(f->stall);
	ctx->puts++;
}

static int faulty_iput(void *c, const ncclEpNetPut_v1_t *put, void **request)
{
	struct faulty_ctx *ctx = c;
	struct slot *slot;
	int i;

	*request = NULL;
	if (put->peer < 0 || put->peer >= ctx->comm->nranks)
		return EP_FAIL(EP_NET, EP_EARG, "faulty: no rank %d; there are %d", put->peer, ctx->comm->nranks);
	if (put->flags & NCCL_EP_NET_INLINE && put->size > INLINE_MAX)
		return EP_FAIL(EP_NET, EP_EARG, "faulty: %llu bytes inline; the maximum is %u",
			       (unsigned long long)put->size, INLINE_MAX);
	i = slot_find(ctx, ctx->conns[put->peer].open);
	if (i < 0)
		return 0;
	ctx->open++;
	ctx->conns[put->peer].open++;
	slot = &ctx->slots[i];
	*slot = (struct slot){ .state = SLOT_HELD, .put = *put, .serial = ctx->serial++ };
	slot->quiet = put->flags & NCCL_EP_NET_QUIET;
	/* Every held put completes by itself, and the next one may not follow it. */
	slot->put.flags &= ~(NCCL_EP_NET_QUIET | NCCL_EP_NET_MORE);
	if (put->flags & NCCL_EP_NET_INLINE) {
		memcpy(slot->data, put->src, put->size);
		slot->put.src = slot->data;
	}
	slot_doom(ctx, slot);
	ctx->held[ctx->nheld++] = i;
	held_send(ctx, (int)ctx->comm->net->faults.reorder);
	*request = slot->quiet ? NCCL_EP_NET_QUIET_REQUEST : slot;
	return 0;
}

static int faulty_iflush(void *c, void *mr, void **request)
{
	struct faulty_ctx *ctx = c;
	int i = slot_find(ctx, 0), rc;
	struct slot *slot = &ctx->slots[i < 0 ? 0 : i];

	*request = NULL;
	if (i < 0)
		return 0;
	*slot = (struct slot){ .flush = true, .put.peer = -1, .copies = 1, .sent = 1 };
	rc = ctx->hot->iflush(ctx->inner, mr, &slot->request[0]);
	if (rc || !slot->request[0])
		return rc;
	slot->state = SLOT_SENT;
	ctx->open++;
	*request = slot;
	return 0;
}

/* Whether earlier quiet puts to the same peer are still in flight. */
static bool is_uncovered(const struct faulty_ctx *ctx, const struct slot *slot)
{
	for (int i = 0; i < SLOTS; i++) {
		const struct slot *s = &ctx->slots[i];

		if (s->state != SLOT_FREE && s->quiet && s->put.peer == slot->put.peer && s->serial < slot->serial)
			return true;
	}
	return false;
}

static int faulty_test(void *c, void *request, int *done)
{
	struct faulty_ctx *ctx = c;
	struct slot *slot = request;
	int rc;

	*done = 0;
	if (slot->state == SLOT_SENT)
		slot_poll(ctx, slot);
	if (slot->state != SLOT_DONE || (!slot->flush && is_uncovered(ctx, slot)))
		return 0;
	rc = slot->rc;
	if (!slot->flush) {
		rc = rc ? rc : ctx->conns[slot->put.peer].quiet_rc;
		ctx->conns[slot->put.peer].quiet_rc = 0;
	}
	slot_free(ctx, slot);
	*done = 1;
	return rc;
}

static void quiet_reap(struct faulty_ctx *ctx)
{
	for (int i = 0; i < SLOTS; i++) {
		struct slot *slot = &ctx->slots[i];

		if (!slot->quiet || slot->state != SLOT_SENT)
			continue;
		slot_poll(ctx, slot);
		if (slot->state != SLOT_DONE)
			continue;
		if (slot->rc)
			ctx->conns[slot->put.peer].quiet_rc = slot->rc;
		slot_free(ctx, slot);
	}
}

static int faulty_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct faulty_ctx *ctx = c;

	ctx->tick++;
	held_send(ctx, 0);
	quiet_reap(ctx);
	return ctx->hot->progress(ctx->inner, imms, max, count);
}

static const ncclEpNetHot_v1_t faulty_hot = { EP_NET_HOT_OPS(faulty) };

const ncclEpNet_v1_t ep_net_faulty = {
	EP_NET_OPS("faulty", faulty),
	.devices = faulty_devices,
	.regMrDmaBuf = faulty_regMrDmaBuf,
	.queryLastError = faulty_queryLastError,
};
