/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets between processes: one UNIX datagram socket per process, in the abstract namespace, so that nothing is left
 * when a process is killed. Datagrams are neither lost nor reordered; a full queue refuses them, and they are sent
 * later. One process sends to itself in the same way.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "nic.h"

#define MAGIC 0x4e494331u
#define HEADER 40u /* GRH in front of a received datagram, ibv_post_recv(3) */
#define PING_NS 50000000ull
#define BUDGET 64 /* packets per step */

static socklen_t address(uint32_t slot, struct sockaddr_un *a)
{
	int n;

	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	n = snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "ep-model-nic-%u-%u", (unsigned)getuid(), slot);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* 0, EAGAIN: later, or why it never arrives. */
static int packet_send(struct nic_qp *qp, uint32_t to, struct nic_packet *head, const void *bytes)
{
	struct sockaddr_un a;
	struct iovec part[2] = { { head, sizeof(*head) }, { (void *)(uintptr_t)bytes, bytes ? head->length : 0 } };
	struct msghdr msg = { .msg_name = &a, .msg_iov = part, .msg_iovlen = 2 };

	head->magic = MAGIC;
	head->to = to;
	head->from = qp->qp.qp_num;
	msg.msg_namelen = address(to / NIC_QPS, &a);
	if (sendmsg(nic.socket, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return 0;
	return errno == EAGAIN || errno == ENOBUFS || errno == EINTR ? EAGAIN : errno;
}

static void ack_send(struct nic_qp *qp, uint8_t status)
{
	struct nic_packet head = { .kind = NIC_ACK, .status = status, .done = qp->rx_done };

	qp->owes = packet_send(qp, qp->dest, &head, NULL) == EAGAIN;
	qp->owed = status;
}

/* To the sender of a packet for no queue pair. A NIC says nothing, and the sender's retries run out. */
static void stranger_refuse(const struct nic_packet *p)
{
	struct nic_qp nobody = { .qp.qp_num = p->to };
	struct nic_packet head = { .kind = NIC_ACK, .status = IB_WC_RETRY_EXC_ERR, .done = UINT32_MAX };

	if (p->kind == NIC_WRITE || p->kind == NIC_READ || p->kind == NIC_PING)
		packet_send(&nobody, p->from, &head, NULL);
}

static void responder_fail(struct nic_qp *qp, uint8_t status, unsigned event)
{
	ack_send(qp, status);
	nic_qp_error(qp);
	nic_event(qp->qp.context, event, qp);
}

/* An immediate takes a receive. All earlier writes of the queue pair are visible then, ibv_reg_mr(3). */
static bool imm_take(struct nic_qp *qp, const struct nic_packet *p)
{
	struct nic_recv *r = &qp->rq->ring[qp->rq->head++ % qp->rq->max];
	struct ib_wc wc = { .wr_id = r->wr_id, .opcode = 0x81, .flags = IB_WC_WITH_IMM, .imm = p->imm };

	nic_place_all(qp);
	/* bnxt_re_post_recv of rdma-core's providers/bnxt_re/verbs.c says that the hardware needs an SGE in every
	 * receive, and adds one; bnxt_re_build_srqe of the same file does not. */
	if (nic.profile->srq_sge && qp->rq->shared && !r->sges) {
		wc.status = IB_WC_LOC_QP_OP_ERR;
		nic_complete(qp, qp->qp.recv_cq, &wc);
		responder_fail(qp, IB_WC_REM_OP_ERR, IB_EVENT_QP_FATAL);
		return false;
	}
	nic_complete(qp, qp->qp.recv_cq, &wc);
	return true;
}

static void write_take(struct nic_qp *qp, const struct nic_packet *p, const uint8_t *bytes)
{
	const struct nic_mr *mr = p->length ? nic_mr_of(p->rkey, p->addr, p->length, IB_ACCESS_REMOTE_WRITE) : NULL;

	qp->rx_seq++;
	if (p->length && !mr) {
		responder_fail(qp, IB_WC_REM_ACCESS_ERR, IB_EVENT_QP_ACCESS_ERR);
		return;
	}
	if (mr)
		nic_place(qp, mr, p->addr, bytes, p->length);
	if (!p->last || (p->imm_valid && !imm_take(qp, p)))
		return;
	qp->rx_done++;
	ack_send(qp, 0);
}

/* One packet: the library reads a byte, to flush. A read pushes earlier writes. False: it must be tried again. */
static bool read_take(struct nic_qp *qp, const struct nic_packet *p)
{
	const struct nic_mr *mr = nic_mr_of(p->rkey, p->addr, p->length, IB_ACCESS_REMOTE_READ);
	struct nic_packet head = { .kind = NIC_READ_REPLY, .length = p->length };

	if (!mr || p->length > NIC_CHUNK) {
		responder_fail(qp, IB_WC_REM_ACCESS_ERR, IB_EVENT_QP_ACCESS_ERR);
		return true;
	}
	nic_place_all(qp);
	head.done = qp->rx_done + 1;
	if (packet_send(qp, qp->dest, &head, (const void *)(uintptr_t)p->addr) == EAGAIN)
		return false;
	qp->rx_seq++;
	qp->rx_done++;
	return true;
}

static void reply_take(struct nic_qp *qp, const struct nic_packet *p, const uint8_t *bytes)
{
	struct nic_send *send;

	if (qp->qp.state == IB_QPS_ERR)
		return;
	nic_sends_end(qp, p->done - 1, 0);
	send = &qp->ring[qp->head % qp->max];
	if (qp->head == qp->tail || send->opcode != IB_WR_RDMA_READ || send->length != p->length)
		return;
	memcpy(send->bytes, bytes, p->length);
	nic_sends_end(qp, p->done, 0);
}

static void ack_take(struct nic_qp *qp, const struct nic_packet *p)
{
	if (p->from != qp->dest)
		return;
	nic_sends_end(qp, p->done == UINT32_MAX ? qp->head : p->done, p->status);
}

static bool datagram_lost(struct nic_qp *qp, uint32_t from)
{
	uint32_t i = 0;

	while (i < NIC_HEARD - 1 && qp->heard[i].from && qp->heard[i].from != from)
		i++;
	qp->heard[i].from = from;
	qp->heard[i].count++;
	return qp->heard[i].count >= nic.loss && qp->heard[i].count <= nic.loss_end;
}

/* Without a receive, or with another Q_Key, it is dropped. */
static void datagram_take(struct nic_qp *qp, const struct nic_packet *p, const uint8_t *bytes)
{
	struct nic_recv *r;
	struct ib_wc wc = { .opcode = 0x80, .byte_len = p->length + HEADER, .src_qp = p->from };

	if (qp->qp.state < IB_QPS_RTR || qp->qp.state > IB_QPS_RTS || p->qkey != qp->qkey ||
	    qp->rq->head == qp->rq->tail)
		return;
	if (datagram_lost(qp, p->from))
		return;
	r = &qp->rq->ring[qp->rq->head++ % qp->rq->max];
	wc.wr_id = r->wr_id;
	if (wc.byte_len > r->length || !nic_mr_of(r->lkey, r->addr, r->length, IB_ACCESS_LOCAL_WRITE)) {
		wc.status = IB_WC_LOC_LEN_ERR;
	} else {
		memset((void *)(uintptr_t)r->addr, 0, HEADER);
		memcpy((uint8_t *)(uintptr_t)r->addr + HEADER, bytes, p->length);
	}
	nic_complete(qp, qp->qp.recv_cq, &wc);
}

/* A receiver without receives makes its sender wait (RNR); here the packet does. */
static bool must_wait(const struct nic_qp *qp, const struct nic_packet *p)
{
	return p->kind == NIC_WRITE && p->last && p->imm_valid && qp->rq->head == qp->rq->tail;
}

static void request_take(struct nic_qp *qp, const struct nic_packet *p, const uint8_t *bytes)
{
	struct nic_held *held;

	if (qp->held || must_wait(qp, p) || (p->kind == NIC_READ && !read_take(qp, p))) {
		held = malloc(sizeof(*held) + p->length);
		if (!held)
			return;
		held->next = NULL;
		held->head = *p;
		memcpy(held->bytes, bytes, p->kind == NIC_WRITE ? p->length : 0);
		*qp->held_end = held;
		qp->held_end = &held->next;
	} else if (p->kind == NIC_WRITE) {
		write_take(qp, p, bytes);
	}
}

static uint32_t seq_next(const struct nic_qp *qp)
{
	uint32_t n = qp->rx_seq;

	for (const struct nic_held *h = qp->held; h; h = h->next)
		n++;
	return n;
}

static void packet_take(const struct nic_packet *p, const uint8_t *bytes)
{
	struct nic_qp *qp = p->to / NIC_QPS == nic.slot ? nic.qps[p->to % NIC_QPS] : NULL;
	bool rc = p->kind != NIC_UD;

	if (!qp || qp->qp.qp_num != p->to || (qp->qp.type == IB_QPT_RC) != rc ||
	    (rc && (qp->qp.state < IB_QPS_RTR || qp->qp.state > IB_QPS_RTS || qp->dest != p->from))) {
		stranger_refuse(p);
		return;
	}
	switch (p->kind) {
	case NIC_WRITE:
	case NIC_READ:
		if (p->seq == seq_next(qp))
			request_take(qp, p, bytes);
		break;
	case NIC_READ_REPLY:
		reply_take(qp, p, bytes);
		break;
	case NIC_ACK:
		ack_take(qp, p);
		break;
	case NIC_UD:
		datagram_take(qp, p, bytes);
		break;
	default:
		break;
	}
}

static bool packets_receive(void)
{
	static uint8_t buffer[sizeof(struct nic_packet) + NIC_CHUNK];
	struct nic_packet head;
	bool any = false;

	for (int i = 0; i < BUDGET; i++) {
		ssize_t n = recv(nic.socket, buffer, sizeof(buffer), MSG_DONTWAIT);

		if (n < (ssize_t)sizeof(head))
			return any;
		memcpy(&head, buffer, sizeof(head));
		any = true;
		if (head.magic == MAGIC)
			packet_take(&head, buffer + sizeof(head));
	}
	return any;
}

static void held_release(struct nic_qp *qp)
{
	struct nic_held *held;

	while ((held = qp->held) && !must_wait(qp, &held->head)) {
		if (qp->qp.state != IB_QPS_ERR && held->head.kind == NIC_WRITE)
			write_take(qp, &held->head, held->bytes);
		else if (qp->qp.state != IB_QPS_ERR && !read_take(qp, &held->head))
			break;
		qp->held = held->next;
		if (!qp->held)
			qp->held_end = &qp->held;
		free(held);
	}
}

/* The next packet of the message that is being sent. */
static int send_next(struct nic_qp *qp, struct nic_send *send)
{
	uint32_t left = send->length - qp->offset, n = left < NIC_CHUNK ? left : NIC_CHUNK;
	struct nic_packet head = {
		.kind = NIC_WRITE,
		.last = n == left,
		.imm_valid = send->opcode == IB_WR_RDMA_WRITE_WITH_IMM,
		.seq = qp->tx_seq,
		.imm = send->imm,
		.rkey = send->rkey,
		.qkey = send->qkey,
		.length = n,
		.addr = send->remote + qp->offset,
	};
	const uint8_t *bytes = n ? send->bytes + qp->offset : NULL;
	int access = send->opcode == IB_WR_RDMA_READ ? IB_ACCESS_LOCAL_WRITE : 0;
	int rc;

	if (n && !send->copy && !nic_mr_of(send->lkey, (uintptr_t)send->bytes, send->length, access))
		return EFAULT;
	if (send->opcode == IB_WR_RDMA_READ) {
		head.kind = NIC_READ;
		head.last = 1;
		head.length = n = left;
		bytes = NULL;
	}
	if (qp->qp.type == IB_QPT_UD)
		head.kind = NIC_UD;
	rc = packet_send(qp, send->qpn, &head, bytes);
	if (rc)
		return rc;
	qp->tx_seq++;
	qp->offset += n;
	if (qp->offset == send->length) {
		qp->offset = 0;
		qp->next++;
	}
	return 0;
}

static bool sends_advance(struct nic_qp *qp, bool *blocked)
{
	bool any = false;

	while (qp->qp.state == IB_QPS_RTS && qp->next != qp->tail && qp->next - qp->head < NIC_UNACKED) {
		int rc = send_next(qp, &qp->ring[qp->next % qp->max]);

		if (rc == EAGAIN) {
			*blocked = true;
			return any;
		}
		any = true;
		if (qp->qp.type == IB_QPT_UD) { /* nobody tells whether it arrived */
			qp->next += rc != 0;
			nic_sends_end(qp, qp->next, 0);
		} else if (rc) {
			nic_sends_end(qp, qp->head, rc == EFAULT ? IB_WC_LOC_PROT_ERR : IB_WC_RETRY_EXC_ERR);
		}
	}
	return any;
}

/* A process that ended after a message had reached it acknowledges nothing. */
static void peer_ping(struct nic_qp *qp, uint64_t now)
{
	struct nic_packet head = { .kind = NIC_PING };
	int rc;

	if (qp->qp.type != IB_QPT_RC || qp->head == qp->next || now - qp->pinged < PING_NS)
		return;
	qp->pinged = now;
	rc = packet_send(qp, qp->dest, &head, NULL);
	if (rc && rc != EAGAIN)
		nic_sends_end(qp, qp->head, IB_WC_RETRY_EXC_ERR);
}

/* True: something moved, or will soon. */
bool nic_step(void)
{
	bool busy;
	uint64_t now = nic_now();

	if (nic.port.state != IB_PORT_ACTIVE && nic.port.state != IB_PORT_ACTIVE_DEFER)
		return false;
	busy = packets_receive();
	for (uint32_t i = 0; i < nic.qps_top; i++) {
		struct nic_qp *qp = nic.qps[(nic.turn + i) % nic.qps_top];
		bool blocked = false;

		if (!qp)
			continue;
		if (qp->owes)
			ack_send(qp, qp->owed);
		held_release(qp);
		busy |= nic_place_some(qp);
		busy |= sends_advance(qp, &blocked);
		busy |= blocked;
		peer_ping(qp, now);
	}
	nic.turn++;
	return busy;
}

void nic_wake(void)
{
	uint64_t one = 1;

	if (__atomic_load_n(&nic.asleep, __ATOMIC_SEQ_CST) && write(nic.bell, &one, sizeof(one)) < 0)
		return;
}

static void *agent_run(void *arg)
{
	struct pollfd wait[2] = { { .fd = nic.socket, .events = POLLIN }, { .fd = nic.bell, .events = POLLIN } };
	uint64_t count;
	bool busy, stop = false;

	while (!stop) {
		pthread_mutex_lock(&nic.lock);
		busy = nic_step();
		stop = nic.stop;
		__atomic_store_n(&nic.asleep, !busy, __ATOMIC_SEQ_CST);
		pthread_mutex_unlock(&nic.lock);
		if (!stop && busy)
			poll(wait, 1, 1);
		else if (!stop && poll(wait, 2, 20) > 0 && wait[1].revents && read(nic.bell, &count, sizeof(count)) < 0)
			break;
	}
	return arg;
}

int nic_wire_start(void)
{
	struct sockaddr_un a;
	int size = 1 << 20;

	nic.socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	nic.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (nic.socket < 0 || nic.bell < 0)
		return EIO;
	setsockopt(nic.socket, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	for (nic.slot = 1; nic.slot < NIC_SLOTS; nic.slot++) {
		socklen_t n = address(nic.slot, &a);

		if (!bind(nic.socket, (struct sockaddr *)&a, n))
			break;
	}
	if (nic.slot == NIC_SLOTS)
		return EADDRINUSE;
	nic.random = (uint64_t)nic.slot * 0x9e3779b97f4a7c15ull | 1;
	nic.stop = false;
	return pthread_create(&nic.agent, NULL, agent_run, NULL);
}

void nic_wire_stop(void)
{
	uint64_t one = 1;

	pthread_mutex_lock(&nic.lock);
	nic.stop = true;
	if (write(nic.bell, &one, sizeof(one)) < 0)
		nic.stop = true; /* it wakes by itself, too */
	pthread_mutex_unlock(&nic.lock);
	pthread_join(nic.agent, NULL);
	close(nic.socket);
	close(nic.bell);
}
