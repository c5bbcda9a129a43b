/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connects queue pairs by UD datagrams: a handle has no room for the numbers of all peers' queue pairs.
 *
 * Each side creates its queue pairs once, no matter which side asks first, so simultaneous hellos are no special case.
 * A hello carries the sender's queue pair numbers and its state: `got` (it has yours and accepts your packets), `done`
 * (it knows that you have its own). The receiver of a hello takes the numbers and answers unless the sender is done. A
 * rank posts puts once the peer has said `got`. Datagrams may be lost: a rank repeats its hello until then.
 */
#include <stdlib.h>
#include <string.h>

#include "net/verbs/verbs.h"
#include "util/error.h"

#define MAGIC 0x56424e31u
#define SIZE 256u  /* of a buffer */
#define HEADER 40u /* GRH in front of a received datagram */
#define ASK_NS 20000000ull
#define ASK_MAX_NS 500000000ull

enum note_kind { NOTE_HELLO = 1, NOTE_BYE };

struct note {
	uint32_t magic;
	uint8_t kind, got, done, count;
	uint32_t from, context;
	uint64_t mine, yours; /* nonces: a datagram for an earlier owner of the queue pair number is dropped */
	uint32_t qpn[VB_QPS], psn[VB_QPS];
};
_Static_assert(sizeof(struct note) + HEADER <= SIZE, "must fit in a buffer");

static uint8_t *buffer(const struct vb_ud *ud, uint32_t i)
{
	return ud->bytes + (size_t)i * SIZE;
}

static int receive_post(struct vb_ctx *ctx, uint32_t i)
{
	struct vb_ud *ud = &ctx->ud;
	struct ib_sge sge = { .addr = (uintptr_t)buffer(ud, i), .length = SIZE, .lkey = ud->mr->lkey };
	struct ib_recv_wr wr = { .wr_id = VB_ID(VB_ID_NOTE_IN, i), .sge = &sge, .num_sge = 1 }, *bad;

	return ctx->ops->post_recv(ud->qp, &wr, &bad);
}

static int ud_start(struct vb_ctx *ctx)
{
	struct vb_comm *comm = ctx->comm;
	struct ib_qp_attr attr = {
		.state = IB_QPS_INIT,
		.pkey_index = comm->path.pkey,
		.port = comm->dev->port,
		.qkey = comm->qkey,
	};
	int rc = vb_api()->modify_qp(ctx->ud.qp, &attr, IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY);

	for (uint32_t i = 0; !rc && i < ctx->ud.receives; i++)
		rc = receive_post(ctx, i);
	attr.state = IB_QPS_RTR;
	rc = rc ? rc : vb_api()->modify_qp(ctx->ud.qp, &attr, IB_QP_STATE);
	attr.state = IB_QPS_RTS;
	rc = rc ? rc : vb_api()->modify_qp(ctx->ud.qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN);
	return rc ? vb_fail(comm->dev, rc < 0 ? errno : rc, "activating the UD queue pair") : 0;
}

int vb_ud_open(struct vb_ctx *ctx)
{
	struct vb_comm *comm = ctx->comm;
	struct vb_ud *ud = &ctx->ud;
	struct ib_qp_init init = {
		.send_cq = ctx->cq,
		.recv_cq = ctx->cq,
		.cap = { .max_send_wr = VB_NOTES_OUT, .max_send_sge = 1, .max_recv_sge = 1 },
		.type = IB_QPT_UD,
	};
	size_t bytes = (size_t)(comm->notes + VB_NOTES_OUT) * SIZE;

	ud->receives = init.cap.max_recv_wr = comm->notes;
	ud->bytes = ep_base_pages("verbs", bytes);
	ud->missing = EP_CALLOC(EP_NET, comm->notes, sizeof(*ud->missing), "datagrams");
	if (!ud->bytes || !ud->missing)
		return -ENOMEM;
	errno = EIO;
	ud->mr = vb_api()->reg_mr(comm->pd, ud->bytes, bytes, IB_ACCESS_LOCAL_WRITE);
	if (!ud->mr)
		return vb_fail(comm->dev, errno, "registering the buffers of datagrams");
	ud->qp = vb_api()->create_qp(comm->pd, &init);
	if (!ud->qp)
		return vb_fail(comm->dev, errno, "creating the UD queue pair");
	return ud_start(ctx);
}

void vb_ud_close(struct vb_ctx *ctx)
{
	if (ctx->ud.qp)
		vb_api()->destroy_qp(ctx->ud.qp);
	if (ctx->ud.mr)
		vb_api()->dereg_mr(ctx->ud.mr);
	free(ctx->ud.missing);
	free(ctx->ud.bytes);
}

/* The kernel may resolve the peer's address here, which takes a while if the peer is down. */
static int conn_address(struct vb_conn *conn)
{
	struct vb_comm *comm = conn->ctx->comm;
	struct ib_ah_attr attr = vb_route(comm, conn->peer);

	if (conn->ah)
		return 0;
	errno = EIO;
	conn->ah = vb_api()->create_ah(comm->pd, &attr);
	if (conn->ah)
		return 0;
	return vb_peer_lost(comm, conn->peer, "unreachable: %s; check routes and addresses of its NIC",
			    strerror(errno));
}

/* Without room, or if the NIC refuses it, the datagram counts as lost. */
static int note_send(struct vb_conn *conn, enum note_kind kind)
{
	struct vb_ctx *ctx = conn->ctx;
	struct vb_comm *comm = ctx->comm;
	const struct vb_handle *to = &comm->peers[conn->peer].handle;
	struct vb_ud *ud = &ctx->ud;
	uint32_t i = ud->receives + ud->sent % VB_NOTES_OUT;
	struct note *note = (struct note *)buffer(ud, i);
	struct ib_sge sge = { .addr = (uintptr_t)note, .length = sizeof(*note), .lkey = ud->mr->lkey };
	struct ib_send_wr *bad, wr = {
		.wr_id = VB_ID(VB_ID_NOTE_OUT, 0),
		.sge = &sge,
		.num_sge = 1,
		.opcode = IB_WR_SEND,
		.flags = IB_SEND_SIGNALED,
		.to.ud = { .qpn = to->ud_qpn[ctx->index], .qkey = to->qkey },
	};
	int rc = conn_address(conn);

	if (rc || ud->sent - ud->gone == VB_NOTES_OUT)
		return rc;
	wr.to.ud.ah = conn->ah;
	*note = (struct note){
		.magic = MAGIC,
		.kind = (uint8_t)kind,
		.got = conn->have,
		.done = conn->ready,
		.count = conn->count,
		.from = (uint32_t)comm->base.rank,
		.context = (uint32_t)ctx->index,
		.mine = comm->nonce,
		.yours = to->nonce,
	};
	for (int k = 0; k < conn->count; k++) {
		note->qpn[k] = conn->qp[k].qp->qp_num;
		note->psn[k] = conn->qp[k].psn;
	}
	ud->sent += !ctx->ops->post_send(ud->qp, &wr, &bad);
	return 0;
}

int vb_hello_send(struct vb_conn *conn)
{
	conn->ask_gap = conn->ask_gap ? 2 * conn->ask_gap : ASK_NS;
	conn->ask_gap = conn->ask_gap < ASK_MAX_NS ? conn->ask_gap : ASK_MAX_NS;
	conn->ask_next = conn->ctx->clock + conn->ask_gap;
	return note_send(conn, NOTE_HELLO);
}

/* To this rank itself: each queue pair is connected to itself. */
static int conn_aim_home(struct vb_conn *conn)
{
	uint32_t qpn[VB_QPS], psn[VB_QPS];
	int rc;

	for (int k = 0; k < conn->count; k++) {
		qpn[k] = conn->qp[k].qp->qp_num;
		psn[k] = conn->qp[k].psn;
	}
	rc = vb_conn_aim(conn, qpn, psn);
	conn->ready = !rc;
	return rc;
}

int vb_conn_want(struct vb_conn *conn)
{
	struct vb_ctx *ctx = conn->ctx;
	int rc;

	if (conn->asking)
		return 0;
	rc = vb_conn_open(conn);
	if (rc)
		return rc;
	if (conn->peer == ctx->comm->base.rank)
		return conn_aim_home(conn);
	conn->asking = true;
	conn->asked = ctx->clock;
	conn->next_asking = ctx->asking;
	ctx->asking = conn;
	return vb_hello_send(conn);
}

void vb_bye_send(struct vb_conn *conn)
{
	note_send(conn, NOTE_BYE);
}

static void hello_take(struct vb_conn *conn, const struct note *note)
{
	struct vb_comm *comm = conn->ctx->comm;

	if (ep_base_is_lost(&comm->base, conn->peer) || vb_conn_open(conn))
		return;
	if (note->count != conn->count) {
		vb_peer_lost(comm, conn->peer, "it has %u queue pairs for rank %d, which has %u for it", note->count,
			     comm->base.rank, conn->count);
		return;
	}
	if (!conn->have && vb_conn_aim(conn, note->qpn, note->psn))
		return;
	conn->ready |= note->got;
	if (!note->done)
		note_send(conn, NOTE_HELLO);
}

/* Trusted only with the nonces of both ranks, which only members of this comm know. */
static void note_judge(struct vb_ctx *ctx, const struct note *note)
{
	struct vb_comm *comm = ctx->comm;

	if (note->magic != MAGIC || note->from >= (uint32_t)comm->base.nranks ||
	    note->context != (uint32_t)ctx->index || note->yours != comm->nonce ||
	    note->mine != comm->peers[note->from].handle.nonce) {
		EP_TRACE(EP_NET, "verbs: dropped a datagram from an unknown sender");
		return;
	}
	if (note->kind == NOTE_HELLO)
		hello_take(&ctx->conns[note->from], note);
	else if (note->kind == NOTE_BYE)
		__atomic_store_n(&comm->peers[note->from].left, true, __ATOMIC_RELAXED);
}

/* A NIC may refuse it for the moment, see recv.c. */
static void note_return(struct vb_ctx *ctx, uint32_t index)
{
	ctx->ud.missing[index] = receive_post(ctx, index) != 0;
	ctx->again |= ctx->ud.missing[index];
}

void vb_notes_again(struct vb_ctx *ctx)
{
	for (uint32_t i = 0; i < ctx->ud.receives; i++)
		if (ctx->ud.missing[i])
			note_return(ctx, i);
}

void vb_note_take(struct vb_ctx *ctx, uint32_t index, uint32_t bytes)
{
	struct note note;

	if (index >= ctx->ud.receives)
		return;
	if (bytes == sizeof(note) + HEADER) {
		memcpy(&note, buffer(&ctx->ud, index) + HEADER, sizeof(note));
		note_judge(ctx, &note);
	}
	note_return(ctx, index);
}
