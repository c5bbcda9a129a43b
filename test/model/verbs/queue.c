/* SPDX-License-Identifier: Apache-2.0 */
/* Work queues and completions. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nic.h"

#define OWNED_NS 8000000ull

void nic_event(struct ib_context *context, unsigned type, void *element)
{
	struct ib_event event = { .element.qp = element, .type = type };

	if (write(((struct nic_context *)context)->events, &event, sizeof(event)) < 0)
		return; /* full: a NIC drops events too */
}

void nic_complete(struct nic_qp *qp, struct ib_cq *c, const struct ib_wc *wc)
{
	struct nic_cq *cq = (struct nic_cq *)c;

	if (cq->tail - cq->head == cq->max) {
		if (!cq->overrun)
			nic_event(c->context, IB_EVENT_CQ_ERR, c);
		cq->overrun = true;
		return;
	}
	cq->ring[cq->tail % cq->max] = *wc;
	cq->ring[cq->tail % cq->max].qp_num = qp->qp.qp_num;
	/* R2: pairs with A2 in nic_poll_cq. */
	__atomic_store_n(&cq->tail, cq->tail + 1, __ATOMIC_RELEASE);
}

static void send_end(struct nic_qp *qp, unsigned status)
{
	struct nic_send *send = &qp->ring[qp->head % qp->max];
	struct ib_wc wc = { .wr_id = send->wr_id, .status = status, .byte_len = send->length };

	/* ibv_poll_cq(3): after an error work requests complete whether they were signaled or not. */
	if (status || send->flags & IB_SEND_SIGNALED || qp->sig_all)
		nic_complete(qp, qp->qp.send_cq, &wc);
	free(send->copy);
	send->copy = NULL;
	qp->head++;
	if ((int32_t)(qp->next - qp->head) < 0) {
		qp->next = qp->head;
		qp->offset = 0;
	}
}

void nic_qp_error(struct nic_qp *qp)
{
	struct ib_wc wc = { .status = IB_WC_WR_FLUSH_ERR };

	qp->qp.state = IB_QPS_ERR;
	while (qp->head != qp->tail)
		send_end(qp, IB_WC_WR_FLUSH_ERR);
	/* Receives of an SRQ belong to its other queue pairs. */
	while (!qp->rq->shared && qp->rq->head != qp->rq->tail) {
		wc.wr_id = qp->rq->ring[qp->rq->head++ % qp->rq->max].wr_id;
		nic_complete(qp, qp->qp.recv_cq, &wc);
	}
}

void nic_sends_end(struct nic_qp *qp, uint32_t done, unsigned status)
{
	if (qp->qp.state == IB_QPS_ERR)
		return;
	while (qp->head != done && qp->head != qp->tail)
		send_end(qp, IB_WC_SUCCESS);
	if (!status)
		return;
	if (qp->head != qp->tail)
		send_end(qp, status);
	nic_qp_error(qp);
}

static int send_fill(struct nic_qp *qp, const struct ib_send_wr *wr, struct nic_send *send)
{
	const struct ib_sge *sge = wr->num_sge ? wr->sge : NULL;
	bool ud = qp->qp.type == IB_QPT_UD;

	if (wr->num_sge > 1 || (ud ? wr->opcode != IB_WR_SEND : wr->opcode == IB_WR_SEND))
		return EINVAL;
	*send = (struct nic_send){
		.wr_id = wr->wr_id,
		.opcode = wr->opcode,
		.flags = wr->flags,
		.imm = wr->imm,
		.remote = ud ? 0 : wr->to.rdma.addr,
		.rkey = ud ? 0 : wr->to.rdma.rkey,
		.qpn = ud ? wr->to.ud.qpn : qp->dest,
		.qkey = ud ? wr->to.ud.qkey : 0,
		.length = sge ? sge->length : 0,
		.lkey = sge ? sge->lkey : 0,
		.bytes = sge ? (uint8_t *)(uintptr_t)sge->addr : NULL,
	};
	if (!(wr->flags & IB_SEND_INLINE) || !send->length)
		return 0;
	if (send->length > qp->max_inline)
		return EINVAL;
	send->copy = malloc(send->length);
	if (!send->copy)
		return ENOMEM;
	memcpy(send->copy, send->bytes, send->length);
	send->bytes = send->copy;
	return 0;
}

int nic_post_send(struct ib_qp *q, struct ib_send_wr *wr, struct ib_send_wr **bad)
{
	struct nic_qp *qp = (struct nic_qp *)q;
	struct ib_wc wc = { .status = IB_WC_WR_FLUSH_ERR };
	int rc = 0;

	pthread_mutex_lock(&nic.lock);
	for (; wr; wr = wr->next) {
		if (q->state == IB_QPS_ERR) {
			wc.wr_id = wr->wr_id;
			nic_complete(qp, q->send_cq, &wc);
			continue;
		}
		rc = q->state != IB_QPS_RTS	      ? EINVAL
		     : qp->tail - qp->head == qp->max ? ENOMEM
						      : send_fill(qp, wr, &qp->ring[qp->tail % qp->max]);
		if (rc)
			break;
		qp->tail++;
	}
	if (rc)
		*bad = wr;
	nic_wake();
	pthread_mutex_unlock(&nic.lock);
	return rc;
}

/* An entry that was used before may still be the device's: see ionic in device.c. */
static bool receive_refused(struct nic_rq *rq)
{
	if (!nic.profile->recv_again || rq->tail < rq->max)
		return false;
	if (nic_now() < rq->until)
		return true;
	if (nic_random(8))
		return false;
	rq->until = nic_now() + OWNED_NS; /* a caller that asks again and again does not prolong it */
	return true;
}

static int receives_post(struct nic_rq *rq, struct ib_recv_wr *wr, struct ib_recv_wr **bad)
{
	bool refused = receive_refused(rq);

	for (; wr; wr = wr->next) {
		if (refused) {
			*bad = wr;
			return -EAGAIN;
		}
		if (rq->tail - rq->head == rq->max || wr->num_sge > 1) {
			*bad = wr;
			return ENOMEM;
		}
		ep_model_nic.bare += !wr->num_sge;
		rq->ring[rq->tail++ % rq->max] = (struct nic_recv){
			.wr_id = wr->wr_id,
			.addr = wr->num_sge ? wr->sge->addr : 0,
			.length = wr->num_sge ? wr->sge->length : 0,
			.lkey = wr->num_sge ? wr->sge->lkey : 0,
			.sges = wr->num_sge,
		};
	}
	return 0;
}

int nic_post_recv(struct ib_qp *q, struct ib_recv_wr *wr, struct ib_recv_wr **bad)
{
	struct nic_qp *qp = (struct nic_qp *)q;
	struct ib_wc wc = { .status = IB_WC_WR_FLUSH_ERR };
	int rc = EINVAL;

	pthread_mutex_lock(&nic.lock);
	*bad = wr;
	if (q->state == IB_QPS_ERR) /* ibv_post_recv(3): flushed */
		for (rc = 0; wr; wr = wr->next) {
			wc.wr_id = wr->wr_id;
			nic_complete(qp, q->recv_cq, &wc);
		}
	else if (q->state >= IB_QPS_INIT && !qp->rq->shared)
		rc = receives_post(qp->rq, wr, bad);
	nic_wake();
	pthread_mutex_unlock(&nic.lock);
	return rc;
}

int nic_post_srq_recv(struct ib_srq *srq, struct ib_recv_wr *wr, struct ib_recv_wr **bad)
{
	int rc;

	pthread_mutex_lock(&nic.lock);
	rc = receives_post(&((struct nic_srq *)srq)->rq, wr, bad);
	nic_wake();
	pthread_mutex_unlock(&nic.lock);
	return rc;
}

/* Polling moves packets too: with fewer cores than threads the agent's turn may be milliseconds away. */
int nic_poll_cq(struct ib_cq *c, int n, struct ib_wc *wc)
{
	struct nic_cq *cq = (struct nic_cq *)c;
	int got = 0;

	/* A2: pairs with R2 in nic_complete; head is the poller's own. */
	if (__atomic_load_n(&cq->tail, __ATOMIC_ACQUIRE) == cq->head) {
		if (pthread_mutex_trylock(&nic.lock))
			return 0;
		nic_step();
	} else {
		pthread_mutex_lock(&nic.lock);
	}
	while (got < n && cq->head != cq->tail)
		wc[got++] = cq->ring[cq->head++ % cq->max];
	pthread_mutex_unlock(&nic.lock);
	return got;
}
