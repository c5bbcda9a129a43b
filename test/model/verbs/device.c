/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of libibverbs, and the profiles. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "entry.h"
#include "nic.h"

/*
 * Numbers are those of a modest firmware, chosen small so that limits are met; the rules are of
 *   bnxt      rdma-core providers/bnxt_re/verbs.c: see imm_take of wire.c
 *   ionic     rdma-core providers/ionic/ionic_verbs.c: ionic_ctx_ops has no create_srq; ionic_v1_prep_recv answers
 *             -EAGAIN while the device owns the entry. AMD describes Pollara as spraying packets over paths; that
 *             writes are placed as they arrive is our conclusion
 *   ib        as mlx5, with a port of InfiniBand
 *   mlx5      relaxed ordering where it is requested, ibv_reg_mr(3)
 *   mlx5-ooo  NVIDIA MLNX_OFED manual, "Out-of-Order (OOO) Data Placement": data is placed in host memory in the order
 *             of arrival; see nic_place of place.c
 */
static const struct nic_profile nic_profiles[] = {
	{ .name = "mlx5",
	  .max_qp_wr = 8192,
	  .max_srq = 1024,
	  .max_srq_wr = 32767,
	  .max_cqe = 1 << 20,
	  .max_inline = 512 },
	{ .name = "ib",
	  .max_qp_wr = 8192,
	  .max_srq = 1024,
	  .max_srq_wr = 32767,
	  .max_cqe = 1 << 20,
	  .max_inline = 512,
	  .infiniband = true },
	{ .name = "mlx5-ooo",
	  .max_qp_wr = 8192,
	  .max_srq = 1024,
	  .max_srq_wr = 32767,
	  .max_cqe = 1 << 20,
	  .max_inline = 512,
	  .unordered = true },
	{ .name = "bnxt",
	  .max_qp_wr = 127,
	  .max_srq = 64,
	  .max_srq_wr = 255,
	  .max_cqe = 4095,
	  .max_inline = 96,
	  .srq_sge = true },
	{ .name = "ionic",
	  .max_qp_wr = 512,
	  .max_cqe = 65535,
	  .max_inline = 32,
	  .recv_again = true,
	  .unordered = true },
};

#define GIDS 3

#define PORT_UP { .state = IB_PORT_ACTIVE, .lid = 7, .host = 1 }

struct nic_state nic = { .lock = PTHREAD_MUTEX_INITIALIZER, .gate = PTHREAD_MUTEX_INITIALIZER, .port = PORT_UP };
NIC_EXPORT struct nic_stats ep_model_nic;

static struct ib_device device = { .node_type = 1, .name = "model0", .dev_name = "uverbs-model" };

uint32_t nic_random(uint32_t below)
{
	nic.random ^= nic.random << 13;
	nic.random ^= nic.random >> 7;
	nic.random ^= nic.random << 17;
	return (uint32_t)(nic.random >> 32) % below;
}

uint64_t nic_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void *refused(int error)
{
	errno = error;
	return NULL;
}

/* A child has no agent, and must not hold the parent's name. */
static void child_begin(void)
{
	if (nic.users) {
		close(nic.socket);
		close(nic.bell);
	}
	memset(&nic, 0, sizeof(nic));
	nic.port = (struct nic_port)PORT_UP;
	pthread_mutex_init(&nic.lock, NULL);
	pthread_mutex_init(&nic.gate, NULL);
	ep_model_nic = (struct nic_stats){ 0 };
}

static void child_prepare(void)
{
	pthread_atfork(NULL, NULL, child_begin);
}

static const struct nic_profile *profile_find(void)
{
	const char *name = getenv("EP_MODEL_NIC");

	for (size_t i = 0; i < sizeof(nic_profiles) / sizeof(nic_profiles[0]); i++)
		if (!name || !strcmp(nic_profiles[i].name, name))
			return &nic_profiles[i];
	return NULL;
}

static void loss_read(void)
{
	const char *text = getenv("EP_MODEL_LOSS");

	if (text && sscanf(text, "%u-%u", &nic.loss, &nic.loss_end) == 1)
		nic.loss_end = nic.loss;
}

NIC_EXPORT struct ib_device **ibv_get_device_list(int *count)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct ib_device **list = calloc(2, sizeof(*list));

	pthread_once(&once, child_prepare);
	if (list && profile_find())
		list[0] = &device;
	if (count)
		*count = list && list[0];
	return list;
}

NIC_EXPORT void ibv_free_device_list(struct ib_device **list)
{
	free(list);
}

NIC_EXPORT struct ib_context *ibv_open_device(struct ib_device *d)
{
	struct nic_context *c = calloc(1, sizeof(*c));
	int ends[2], rc = 0;

	if (!c || pipe2(ends, O_CLOEXEC)) {
		free(c);
		return refused(ENOMEM);
	}
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	c->context.device = d;
	c->context.async_fd = ends[0];
	c->context.ops.poll_cq = nic_poll_cq;
	c->context.ops.post_send = nic_post_send;
	c->context.ops.post_recv = nic_post_recv;
	c->context.ops.post_srq_recv = nic_post_srq_recv;
	c->events = ends[1];
	pthread_mutex_lock(&nic.gate);
	pthread_mutex_lock(&nic.lock);
	if (!nic.profile) {
		nic.profile = profile_find();
		loss_read();
	}
	if (!nic.users)
		rc = nic_wire_start();
	if (!rc) {
		c->next = nic.contexts;
		nic.contexts = c;
	}
	pthread_mutex_unlock(&nic.lock);
	nic.users += !rc;
	pthread_mutex_unlock(&nic.gate);
	if (!rc)
		return &c->context;
	close(ends[0]);
	close(ends[1]);
	free(c);
	return refused(rc);
}

NIC_EXPORT int ibv_close_device(struct ib_context *context)
{
	struct nic_context *c = (struct nic_context *)context, **at = &nic.contexts;

	pthread_mutex_lock(&nic.gate);
	pthread_mutex_lock(&nic.lock);
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	pthread_mutex_unlock(&nic.lock);
	if (!--nic.users)
		nic_wire_stop();
	pthread_mutex_unlock(&nic.gate);
	close(context->async_fd);
	close(c->events);
	free(c);
	return 0;
}

NIC_EXPORT int ibv_query_device(struct ib_context *context, struct ib_device_attr *attr)
{
	const struct nic_profile *p = nic.profile;

	(void)context;
	*attr = (struct ib_device_attr){
		.fw = "model",
		.max_mr_size = 1ull << 40,
		.max_qp = 32768,
		.max_qp_wr = p->max_qp_wr,
		.max_sge = 1,
		.max_cq = 1024,
		.max_cqe = p->max_cqe,
		.max_mr = NIC_MRS,
		.max_pd = 64,
		.max_qp_rd_atom = 16,
		.max_qp_init_rd_atom = 16,
		.max_ah = 4096,
		.max_srq = p->max_srq,
		.max_srq_wr = p->max_srq_wr,
		.max_srq_sge = p->max_srq ? 1 : 0,
		.max_pkeys = 1,
		.ports = 1,
	};
	return 0;
}

NIC_EXPORT int ibv_query_port(struct ib_context *context, uint8_t port, struct ib_port_attr *attr)
{
	(void)context;
	if (port != 1)
		return EINVAL;
	pthread_mutex_lock(&nic.lock);
	ep_model_nic.port_reads++;
	*attr = (struct ib_port_attr){
		.state = nic.port.state,
		.max_mtu = IB_MTU_4096,
		.active_mtu = IB_MTU_4096,
		.gids = GIDS,
		.max_msg_sz = 1u << 30,
		.pkeys = 1,
		.lid = nic.profile->infiniband ? nic.port.lid : 0,
		.link_layer = nic.profile->infiniband ? IB_LINK_INFINIBAND : IB_LINK_ETHERNET,
	};
	pthread_mutex_unlock(&nic.lock);
	return 0;
}

NIC_EXPORT struct nic_port ep_model_port(const struct nic_port *change)
{
	struct nic_port port;

	pthread_mutex_lock(&nic.lock);
	if (change)
		nic.port = *change;
	port = nic.port;
	pthread_mutex_unlock(&nic.lock);
	return port;
}

NIC_EXPORT void ep_model_event(unsigned type, void *element)
{
	pthread_mutex_lock(&nic.lock);
	for (struct nic_context *c = nic.contexts; c; c = c->next)
		nic_event(&c->context, type, element ? element : (void *)(uintptr_t)1);
	pthread_mutex_unlock(&nic.lock);
}

/* RoCE v1 and v2 of 192.0.2.1, and v2 of 2001:db8::1. */
NIC_EXPORT int ibv_query_gid(struct ib_context *context, uint8_t port, int index, union ib_gid *gid)
{
	static const union ib_gid v4 = { .raw = { [10] = 0xff, 0xff, 192, 0, 2, 1 } };
	static const union ib_gid v6 = { .raw = { 0x20, 0x01, 0x0d, 0xb8, [15] = 1 } };

	(void)context;
	if (port != 1 || index < 0 || index >= GIDS)
		return -1;
	*gid = index == 2 ? v6 : v4;
	pthread_mutex_lock(&nic.lock);
	gid->raw[15] = nic.port.host;
	pthread_mutex_unlock(&nic.lock);
	return 0;
}

NIC_EXPORT int _ibv_query_gid_ex(struct ib_context *context, uint32_t port, uint32_t index, struct ib_gid_entry *entry,
				 uint32_t flags, size_t size)
{
	if (flags || size != sizeof(*entry) || ibv_query_gid(context, (uint8_t)port, (int)index, &entry->gid))
		return EINVAL;
	entry->index = index;
	entry->port = port;
	entry->type = nic.profile->infiniband ? IB_GID_IB : index ? IB_GID_ROCE_V2 : IB_GID_ROCE_V1;
	return 0;
}

NIC_EXPORT struct ib_pd *ibv_alloc_pd(struct ib_context *context)
{
	struct ib_pd *pd = calloc(1, sizeof(*pd));

	if (pd)
		pd->context = context;
	return pd;
}

NIC_EXPORT int ibv_dealloc_pd(struct ib_pd *pd)
{
	free(pd);
	return 0;
}

NIC_EXPORT struct ib_mr *ibv_reg_mr_iova2(struct ib_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access)
{
	struct nic_mr *mr = calloc(1, sizeof(*mr));
	uint32_t i = 0;

	if (!mr || iova != (uintptr_t)addr) {
		free(mr);
		return refused(EINVAL);
	}
	pthread_mutex_lock(&nic.lock);
	while (i < NIC_MRS && nic.mrs[i])
		i++;
	if (i < NIC_MRS) {
		*mr = (struct nic_mr){ .access = (int)access };
		mr->mr = (struct ib_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length };
		/* Another key than that of an earlier registration with this index, in every process. */
		mr->mr.lkey = mr->mr.rkey = (++nic.salt * 64 + nic.slot) * NIC_MRS + i;
		nic.mrs[i] = mr;
		ep_model_nic.mrs++;
		ep_model_nic.mr_bytes += length;
		ep_model_nic.relaxed += (access & IB_ACCESS_RELAXED_ORDERING) != 0;
	}
	pthread_mutex_unlock(&nic.lock);
	if (i < NIC_MRS)
		return &mr->mr;
	free(mr);
	return refused(ENOMEM);
}

/* Optional flags are for ibv_reg_mr_iova2, as in libibverbs/verbs.h. */
NIC_EXPORT struct ib_mr *ibv_reg_mr(struct ib_pd *pd, void *addr, size_t length, int access)
{
	return access & IB_ACCESS_RELAXED_ORDERING
		       ? refused(EINVAL)
		       : ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

NIC_EXPORT int ibv_dereg_mr(struct ib_mr *m)
{
	pthread_mutex_lock(&nic.lock);
	for (uint32_t i = 0; i < nic.qps_top; i++)
		if (nic.qps[i])
			nic_place_all(nic.qps[i]);
	nic.mrs[m->lkey % NIC_MRS] = NULL;
	pthread_mutex_unlock(&nic.lock);
	free((struct nic_mr *)m);
	return 0;
}

NIC_EXPORT struct ib_cq *ibv_create_cq(struct ib_context *context, int cqe, void *own, void *channel, int vector)
{
	struct nic_cq *cq;

	if (cqe < 1 || cqe > nic.profile->max_cqe || channel || vector)
		return refused(EINVAL);
	cq = calloc(1, sizeof(*cq));
	if (cq)
		cq->ring = calloc((size_t)cqe, sizeof(*cq->ring));
	if (!cq || !cq->ring) {
		free(cq);
		return refused(ENOMEM);
	}
	cq->cq = (struct ib_cq){ .context = context, .own = own, .cqe = cqe };
	cq->max = (uint32_t)cqe;
	pthread_mutex_lock(&nic.lock);
	ep_model_nic.cqs++;
	ep_model_nic.completions += (uint32_t)cqe;
	pthread_mutex_unlock(&nic.lock);
	return &cq->cq;
}

NIC_EXPORT int ibv_destroy_cq(struct ib_cq *c)
{
	free(((struct nic_cq *)c)->ring);
	free(c);
	return 0;
}

NIC_EXPORT struct ib_srq *ibv_create_srq(struct ib_pd *pd, struct ib_srq_attr *attr)
{
	struct nic_srq *srq;

	if (!nic.profile->max_srq)
		return refused(EOPNOTSUPP);
	if (!attr->max_wr || attr->max_wr > (uint32_t)nic.profile->max_srq_wr || attr->max_sge > 1)
		return refused(EINVAL);
	srq = calloc(1, sizeof(*srq));
	if (srq)
		srq->rq.ring = calloc(attr->max_wr, sizeof(*srq->rq.ring));
	if (!srq || !srq->rq.ring) {
		free(srq);
		return refused(ENOMEM);
	}
	srq->srq = (struct ib_srq){ .context = pd->context, .own = attr->own };
	srq->rq.max = attr->max_wr;
	srq->rq.shared = true;
	pthread_mutex_lock(&nic.lock);
	ep_model_nic.srqs++;
	ep_model_nic.receives += attr->max_wr;
	pthread_mutex_unlock(&nic.lock);
	return &srq->srq;
}

NIC_EXPORT int ibv_destroy_srq(struct ib_srq *s)
{
	free(((struct nic_srq *)s)->rq.ring);
	free(s);
	return 0;
}

static void address_note(const struct ib_ah_attr *attr)
{
	ep_model_nic.traffic_class = attr->grh.traffic_class;
	ep_model_nic.service_level = attr->sl;
}

NIC_EXPORT void *ibv_create_ah(struct ib_pd *pd, struct ib_ah_attr *attr)
{
	struct ib_pd *ah = ibv_alloc_pd(pd->context);

	pthread_mutex_lock(&nic.lock);
	ep_model_nic.ahs++;
	address_note(attr);
	pthread_mutex_unlock(&nic.lock);
	return ah;
}

NIC_EXPORT int ibv_destroy_ah(void *ah)
{
	free(ah);
	return 0;
}

static bool caps_allowed(const struct ib_qp_init *init)
{
	uint32_t most = (uint32_t)nic.profile->max_qp_wr;

	return init->cap.max_send_wr <= most && init->cap.max_recv_wr <= most && init->cap.max_send_sge <= 1 &&
	       init->cap.max_recv_sge <= 1 && init->cap.max_inline <= nic.profile->max_inline &&
	       (init->type == IB_QPT_RC || init->type == IB_QPT_UD);
}

/* With the lock: a number that was free for as long as possible. */
static bool number_take(struct nic_qp *qp)
{
	static uint32_t next = 1;

	for (uint32_t i = 0; i < NIC_QPS; i++, next++) {
		uint32_t at = next % NIC_QPS;

		if (nic.qps[at] || !at)
			continue;
		nic.qps[at] = qp;
		qp->qp.qp_num = nic.slot * NIC_QPS + at;
		nic.qps_top = at >= nic.qps_top ? at + 1 : nic.qps_top;
		next++;
		return true;
	}
	return false;
}

NIC_EXPORT struct ib_qp *ibv_create_qp(struct ib_pd *pd, struct ib_qp_init *init)
{
	struct nic_qp *qp;
	bool ok;

	if (!caps_allowed(init))
		return refused(EINVAL);
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return refused(ENOMEM);
	qp->qp = (struct ib_qp){ .context = pd->context,
				 .own = init->own,
				 .pd = pd,
				 .send_cq = init->send_cq,
				 .recv_cq = init->recv_cq,
				 .srq = init->srq,
				 .type = init->type };
	qp->max = init->cap.max_send_wr;
	qp->max_inline = init->cap.max_inline;
	qp->sig_all = init->sq_sig_all;
	qp->own.max = init->cap.max_recv_wr;
	qp->rq = init->srq ? &((struct nic_srq *)init->srq)->rq : &qp->own;
	qp->held_end = &qp->held;
	qp->ring = calloc(qp->max + 1, sizeof(*qp->ring));
	qp->own.ring = calloc(qp->own.max + 1, sizeof(*qp->own.ring));
	pthread_mutex_lock(&nic.lock);
	ok = qp->ring && qp->own.ring && number_take(qp);
	if (ok) {
		ep_model_nic.qps += init->type == IB_QPT_RC;
		ep_model_nic.uds += init->type == IB_QPT_UD;
		ep_model_nic.sends += qp->max;
		ep_model_nic.receives += qp->own.max;
	}
	pthread_mutex_unlock(&nic.lock);
	if (ok)
		return &qp->qp;
	free(qp->ring);
	free(qp->own.ring);
	free(qp);
	return refused(ENOMEM);
}

/* The attributes that each transition needs, ibv_modify_qp(3). */
static bool mask_complete(const struct nic_qp *qp, unsigned state, int mask)
{
	static const int rtr = IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC |
			       IB_QP_MIN_RNR_TIMER;
	static const int rts =
		IB_QP_TIMEOUT | IB_QP_RETRY_CNT | IB_QP_RNR_RETRY | IB_QP_SQ_PSN | IB_QP_MAX_QP_RD_ATOMIC;
	bool rc = qp->qp.type == IB_QPT_RC;
	int need = IB_QP_STATE;

	if (state == IB_QPS_INIT)
		need |= IB_QP_PKEY_INDEX | IB_QP_PORT | (rc ? IB_QP_ACCESS_FLAGS : IB_QP_QKEY);
	else if (state == IB_QPS_RTR)
		need |= rc ? rtr : 0;
	else if (state == IB_QPS_RTS)
		need |= rc ? rts : IB_QP_SQ_PSN;
	return (mask & need) == need && (state == IB_QPS_ERR || state == qp->qp.state + 1);
}

NIC_EXPORT int ibv_modify_qp(struct ib_qp *q, struct ib_qp_attr *attr, int mask)
{
	struct nic_qp *qp = (struct nic_qp *)q;
	int rc = 0;

	pthread_mutex_lock(&nic.lock);
	if (!mask_complete(qp, attr->state, mask))
		rc = EINVAL;
	else if (attr->state == IB_QPS_ERR)
		nic_qp_error(qp);
	else
		q->state = attr->state;
	if (!rc && attr->state == IB_QPS_INIT)
		qp->qkey = attr->qkey;
	if (!rc && attr->state == IB_QPS_RTR && q->type == IB_QPT_RC) {
		qp->dest = attr->dest_qp_num;
		qp->rx_seq = attr->rq_psn;
		address_note(&attr->ah);
	}
	if (!rc && attr->state == IB_QPS_RTS) {
		qp->tx_seq = attr->sq_psn;
		ep_model_nic.timeout = q->type == IB_QPT_RC ? attr->timeout : ep_model_nic.timeout;
	}
	pthread_mutex_unlock(&nic.lock);
	return rc;
}

NIC_EXPORT int ibv_destroy_qp(struct ib_qp *q)
{
	struct nic_qp *qp = (struct nic_qp *)q;

	pthread_mutex_lock(&nic.lock);
	nic.qps[q->qp_num % NIC_QPS] = NULL;
	nic_place_all(qp);
	for (struct nic_held *h = qp->held, *next; h; h = next) {
		next = h->next;
		free(h);
	}
	for (; qp->head != qp->tail; qp->head++)
		free(qp->ring[qp->head % qp->max].copy);
	pthread_mutex_unlock(&nic.lock);
	free(qp->ring);
	free(qp->own.ring);
	free(qp);
	return 0;
}

NIC_EXPORT int ibv_get_async_event(struct ib_context *context, struct ib_event *event)
{
	return read(context->async_fd, event, sizeof(*event)) == (ssize_t)sizeof(*event) ? 0 : -1;
}

NIC_EXPORT void ibv_ack_async_event(struct ib_event *event)
{
	(void)event;
}
