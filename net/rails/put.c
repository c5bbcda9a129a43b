/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot path of rails. Puts to a peer form bursts: while NCCL_EP_NET_MORE and _QUIET are set they stay on one rail
 * and share a doorbell, up to BURST bytes. The last put of a burst is not quiet on its rail, and the next burst uses
 * the next rail. So no quiet put is left uncovered on a rail that the caller's covering put does not use, and that put
 * completes when all of them have. A burst does not change its rail when that has no room: it waits.
 */
#include <stdlib.h>

#include "net/rails/rails.h"
#include "net/table.h"
#include "util/error.h"

#define BURST 32768u /* four rows of 7 KiB share a doorbell, and eight rows already use two rails */
#define SLAB 64

struct slab {
	struct rails_op ops[SLAB];
	struct rails_req reqs[SLAB];
};

static int slab_add(struct rails_ctx *ctx)
{
	void **slabs = realloc(ctx->slabs, (ctx->nslabs + 1) * sizeof(*slabs));
	struct slab *slab = slabs ? EP_CALLOC(EP_NET, 1, sizeof(*slab), "requests of a context") : NULL;

	if (!slabs)
		return EP_FAIL(EP_NET, ENOMEM, "rails: out of memory: requests of a context");
	ctx->slabs = slabs;
	if (!slab)
		return -ENOMEM;
	ctx->slabs[ctx->nslabs++] = slab;
	for (int i = 0; i < SLAB; i++) {
		slab->ops[i].next = ctx->free_ops;
		ctx->free_ops = &slab->ops[i];
		slab->reqs[i].next = ctx->free_reqs;
		ctx->free_reqs = &slab->reqs[i];
	}
	return 0;
}

/* Called before a put is given to a rail, so that op_take and req_take cannot fail afterwards. */
static int nodes_ready(struct rails_ctx *ctx)
{
	return ctx->free_ops && ctx->free_reqs ? 0 : slab_add(ctx);
}

static struct rails_op *op_take(struct rails_ctx *ctx, int rail, void *request)
{
	struct rails_op *op = ctx->free_ops;

	ctx->free_ops = op->next;
	*op = (struct rails_op){ .rail = rail, .request = request };
	return op;
}

static struct rails_req *req_take(struct rails_ctx *ctx, int peer, int rc)
{
	struct rails_req *req = ctx->free_reqs;

	ctx->free_reqs = req->next;
	*req = (struct rails_req){ .peer = peer, .rc = rc };
	return req;
}

/* Whether it is done; an error is stored in *rc, the first one only. */
static bool op_test(struct rails_ctx *ctx, struct rails_op *op, int *rc)
{
	int done = 0, one;

	if (op->mr) {
		one = ctx->hot->iflush(ctx->inner[op->rail], op->mr, &op->request);
		if (op->request)
			op->mr = NULL;
		done = one != 0;
	} else {
		one = ctx->hot->test(ctx->inner[op->rail], op->request, &done);
	}
	if (!done)
		return false;
	*rc = *rc ? *rc : one;
	return true;
}

/* Removes completed requests from the list; front: only from its head. */
static void ops_test(struct rails_ctx *ctx, struct rails_op **at, bool front, int *rc)
{
	while (*at) {
		struct rails_op *op = *at;

		if (op_test(ctx, op, rc)) {
			*at = op->next;
			op->next = ctx->free_ops;
			ctx->free_ops = op;
		} else if (front) {
			return;
		} else {
			at = &op->next;
		}
	}
}

/*
 * P3: one rail that fails ends the peer on all of them; what the other rails have in flight may arrive, as on any
 * unordered net. A put that was invalid fails alone.
 */
static void conn_fail(struct rails_conn *conn, int rc)
{
	if (rc && rc != -EP_EARG && !conn->failed)
		conn->failed = rc;
}

/* Keeps the list short when the caller puts quiet ones for long. */
static void conn_reap(struct rails_ctx *ctx, struct rails_conn *conn)
{
	ops_test(ctx, &conn->first, true, &conn->quiet_rc);
	if (!conn->first)
		conn->end = &conn->first;
	conn_fail(conn, conn->quiet_rc);
}

static void *inner_mr(void *mr, int rail)
{
	return mr ? ((struct rails_mr *)mr)->inner[rail] : NULL;
}

static int rail_give(struct rails_ctx *ctx, int rail, const ncclEpNetPut_v1_t *put, void **request)
{
	ncclEpNetPut_v1_t inner = *put;

	inner.srcMr = put->flags & NCCL_EP_NET_INLINE ? NULL : inner_mr(put->srcMr, rail);
	inner.dstMr = inner_mr(put->dstMr, rail);
	*request = NULL;
	return ctx->hot->iput(ctx->inner[rail], &inner, request);
}

/* On the current rail or, at the start of a burst, on the next one that has room. */
static int conn_give(struct rails_ctx *ctx, struct rails_conn *conn, const ncclEpNetPut_v1_t *put, void **request)
{
	int rc = rail_give(ctx, conn->rail, put, request);

	for (int i = 1; i < ctx->n && !rc && !*request && !conn->open; i++) {
		int rail = (conn->rail + i) % ctx->n;

		rc = rail_give(ctx, rail, put, request);
		if (*request)
			conn->rail = rail;
	}
	return rc;
}

static int rails_iput(void *c, const ncclEpNetPut_v1_t *put, void **request)
{
	const uint32_t more = NCCL_EP_NET_QUIET | NCCL_EP_NET_MORE;
	struct rails_ctx *ctx = c;
	struct rails_conn *conn;
	ncclEpNetPut_v1_t inner = *put;
	struct rails_req *req;
	bool last;
	int rc;

	*request = NULL;
	if (__builtin_expect((unsigned)put->peer >= (unsigned)ctx->comm->nranks, 0))
		return EP_FAIL(EP_NET, EP_EARG, "rails: no rank %d; there are %d", put->peer, ctx->comm->nranks);
	conn = &ctx->conns[put->peer];
	if (__builtin_expect(conn->failed, 0))
		return conn->failed;
	rc = nodes_ready(ctx);
	if (rc)
		return rc;
	last = (put->flags & more) != more || put->size >= BURST - conn->bytes;
	if (last)
		inner.flags &= ~more;
	rc = conn_give(ctx, conn, &inner, request);
	if (rc)
		conn_fail(conn, rc);
	if (rc || !*request)
		return rc;
	conn->open = !last;
	conn->bytes = last ? 0 : conn->bytes + put->size;
	if (!last)
		return 0;
	*conn->end = op_take(ctx, conn->rail, *request);
	conn->end = &(*conn->end)->next;
	conn->rail = conn->rail + 1 < ctx->n ? conn->rail + 1 : 0;
	if (put->flags & NCCL_EP_NET_QUIET) {
		*request = NCCL_EP_NET_QUIET_REQUEST;
		conn_reap(ctx, conn);
		return 0;
	}
	req = req_take(ctx, put->peer, conn->quiet_rc);
	req->first = conn->first;
	conn->quiet_rc = 0;
	conn->first = NULL;
	conn->end = &conn->first;
	*request = req;
	return 0;
}

/* Flushes every rail. */
static int rails_iflush(void *c, void *m, void **request)
{
	struct rails_ctx *ctx = c;
	struct rails_mr *mr = m;
	struct rails_req *req;
	int rc;

	*request = NULL;
	rc = nodes_ready(ctx);
	if (rc)
		return rc;
	req = req_take(ctx, -1, 0);
	for (int k = 0; k < ctx->n; k++) {
		struct rails_op *op;

		if (nodes_ready(ctx)) {
			req->rc = -ENOMEM;
			break;
		}
		op = op_take(ctx, k, NULL);
		op->mr = mr->inner[k];
		op->next = req->first;
		req->first = op;
	}
	ops_test(ctx, &req->first, false, &req->rc);
	*request = req;
	return 0;
}

static int rails_test(void *c, void *request, int *done)
{
	struct rails_ctx *ctx = c;
	struct rails_req *req = request;
	int rc;

	*done = 0;
	ops_test(ctx, &req->first, false, &req->rc);
	if (req->first)
		return 0;
	rc = req->rc;
	if (req->peer >= 0)
		conn_fail(&ctx->conns[req->peer], rc);
	req->next = ctx->free_reqs;
	ctx->free_reqs = req;
	*done = 1;
	return rc;
}

/* All rails, even when max is reached: a rail without progress stalls its peers. */
static int rails_progress(void *c, uint32_t *imms, int max, int *count)
{
	struct rails_ctx *ctx = c;
	int n = 0, got, rc = 0, one;

	for (int i = 0; i < ctx->n; i++) {
		int rail = (ctx->turn + i) % ctx->n;

		got = 0;
		one = ctx->hot->progress(ctx->inner[rail], n < max ? imms + n : NULL, max - n, &got);
		n += got;
		rc = rc ? rc : one;
	}
	ctx->turn = ctx->turn + 1 < ctx->n ? ctx->turn + 1 : 0;
	*count = n;
	return rc;
}

const ncclEpNetHot_v1_t rails_hot = { EP_NET_HOT_OPS(rails) };
