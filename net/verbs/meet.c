/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen, connect and close. A handle holds the address of a rank's UD queue pairs. connect makes the queue pairs and
 * address handles of all peers and exchanges their numbers (ud.c): making one takes a NIC about a millisecond, in which
 * an engine polls nothing, and a path that does not work is found before another transport is too late.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/verbs/verbs.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

#define MAGIC 0x56423031u /* the last digit is the version */
#define READS 16	  /* outstanding per queue pair */
#define BYE_MS 10	  /* best effort: a peer that misses the bye detects the end otherwise */
#define NOTES_MIN 64
#define NOTES_MAX 1024
#define RECEIVES 65536u /* of all queue pairs of a context, where they have their own */
#define RQ_MIN 16
#define OPEN_AT_ONCE 16 /* conns per call of connect */
#define LINGER_NS 1000000000ull
#define PAGE 4096

struct vb_listener {
	struct vb_comm *comm; /* NULL once the caller owns it */
	bool checked;	      /* the handles were */
	int opened;	      /* conns, of all contexts and ranks */
	uint64_t met;	      /* ns; when the numbers of all peers were known, or 0 */
};

static uint32_t clamp(uint64_t n, uint32_t low, uint32_t high)
{
	return n < low ? low : n > high ? high : (uint32_t)n;
}

static uint32_t positive(int n)
{
	return n > 0 ? (uint32_t)n : 1;
}

/* Queue pairs per peer: at most a quarter of the NIC's, which other comms and processes share. */
static uint32_t qps_share(const struct vb_net *net, const struct vb_dev *dev, int nranks)
{
	uint64_t share = (uint64_t)dev->attr.max_qp / 4 / (net->contexts * (uint64_t)nranks);

	return clamp(share, 1, (uint32_t)net->qps);
}

/* The completion queue has room for all that may be in flight; if the NIC's maximum is smaller, less is in flight. */
static void sizes_set(struct vb_comm *comm, const struct vb_net *net)
{
	const struct ib_device_attr *attr = &comm->dev->attr;
	uint32_t most = positive(attr->max_cqe), wr = positive(attr->max_qp_wr), rest, queues = 1;

	comm->qps = qps_share(net, comm->dev, comm->base.nranks);
	comm->notes = clamp(2 * (uint64_t)comm->base.nranks, NOTES_MIN, wr < NOTES_MAX ? wr : NOTES_MAX);
	rest = VB_PUTS + VB_NOTES_OUT + comm->notes;
	comm->per_qp = !net->srq || attr->max_srq <= 0;
	if (comm->per_qp) {
		queues = comm->qps * (uint32_t)comm->base.nranks;
		comm->rq = clamp(RECEIVES / queues, RQ_MIN, wr < VB_RQ ? wr : VB_RQ);
	} else {
		comm->rq = clamp(net->srq, 1, positive(attr->max_srq_wr));
	}
	if ((uint64_t)comm->rq * queues + rest > most)
		comm->rq = clamp(most > rest ? (most - rest) / queues : 0, RQ_MIN, comm->rq);
	comm->receives = comm->rq * queues;
	comm->cq = net->cq ? (uint32_t)net->cq : comm->receives + rest;
	comm->max_inline = net->inlines ? comm->dev->profile->max_inline : 0;
}

/* Accepts what a failed open left. */
static void comm_free(struct vb_comm *comm)
{
	for (int i = 0; i < VB_CONTEXTS; i++)
		vb_ctx_close(comm->ctx[i]);
	vb_mr_close(comm->page);
	free(comm->page_bytes);
	if (comm->pd)
		vb_api()->dealloc_pd(comm->pd);
	if (comm->context)
		vb_api()->close_device(comm->context);
	ep_watch_close(&comm->watch);
	ep_base_comm_close(&comm->base);
	free(comm->peers);
	free(comm);
}

/* The destination of flush reads: one byte, never used. */
static int page_make(struct vb_comm *comm)
{
	ncclEpNetMem_v1_t mem = { .size = PAGE, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
	uint8_t key[NCCL_EP_NET_KEY_SIZE];
	void *mr = NULL;
	int rc;

	mem.ptr = comm->page_bytes = ep_base_pages("verbs", PAGE);
	if (!mem.ptr)
		return -ENOMEM;
	rc = vb_mr_open(comm, &mem, false, key, &mr);
	comm->page = mr;
	return rc;
}

static int device_enter(struct vb_comm *comm)
{
	int flags;

	comm->context = vb_device_open(comm->dev);
	if (!comm->context)
		return vb_fail(comm->dev, errno, "ibv_open_device");
	flags = fcntl(comm->context->async_fd, F_GETFL);
	if (flags < 0 || fcntl(comm->context->async_fd, F_SETFL, flags | O_NONBLOCK))
		return vb_fail(comm->dev, errno, "making async_fd non-blocking");
	errno = EIO;
	comm->pd = vb_api()->alloc_pd(comm->context);
	return comm->pd ? 0 : vb_fail(comm->dev, errno, "ibv_alloc_pd");
}

/* User settings override the profile; -1: not set. */
static uint8_t chosen(enum ep_param_id id, uint8_t profile)
{
	int64_t value = ep_param_int(id);

	return value < 0 ? profile : (uint8_t)value;
}

/*
 * Of the NIC, such that its retransmissions end before NCCL_EP_PEER_LOST_MS: else the peer would be lost with most of
 * them left, and without the NIC's diagnosis. 20, as NCCL has it, with 7 retransmissions takes 34 s.
 */
static uint8_t timeout_fit(const struct vb_comm *comm)
{
	uint64_t tries = (uint64_t)ep_param_int(EP_P_IB_RETRY_CNT) + 1;
	int set = (int)ep_param_int(EP_P_IB_TIMEOUT), timeout = set;

	while (timeout > 1 && (4096ull << timeout) * tries > comm->lost_ns)
		timeout--;
	if (timeout != set)
		EP_INFO(EP_NET,
			"verbs: %s: NCCL_EP_IB_TIMEOUT is %d, not %d: %llu transmissions must end in "
			"NCCL_EP_PEER_LOST_MS=%llu",
			comm->dev->name, timeout, set, (unsigned long long)tries,
			(unsigned long long)(comm->lost_ns / 1000000));
	return (uint8_t)timeout;
}

static int comm_make(const struct vb_net *net, const struct vb_dev *dev, int nranks, struct vb_comm **out)
{
	struct vb_comm *comm = EP_CALLOC(EP_NET, 1, sizeof(*comm), "a comm");
	int rc;

	if (!comm)
		return -ENOMEM;
	rc = ep_base_comm_open(&comm->base, "verbs", nranks);
	comm->dev = dev;
	comm->lost_ns = (uint64_t)ep_param_int(EP_P_PEER_LOST_MS) * 1000000ull;
	comm->path = (struct vb_path){
		.tc = chosen(EP_P_IB_TC, dev->profile->tc),
		.sl = chosen(EP_P_IB_SL, dev->profile->sl),
		.timeout = timeout_fit(comm),
		.retries = (uint8_t)ep_param_int(EP_P_IB_RETRY_CNT),
		.pkey = (uint16_t)ep_param_int(EP_P_IB_PKEY),
	};
	sizes_set(comm, net);
	comm->peers = EP_CALLOC(EP_NET, (size_t)nranks, sizeof(*comm->peers), "the peers of a comm");
	rc = rc || comm->peers ? rc : -ENOMEM;
	rc = rc ? rc : ep_watch_open(&comm->watch, nranks);
	rc = rc ? rc : ep_base_random("verbs", &comm->nonce, sizeof(comm->nonce));
	rc = rc ? rc : ep_base_random("verbs", &comm->qkey, sizeof(comm->qkey));
	comm->qkey &= 0x7fffffff; /* the highest bit marks privileged Q_Keys */
	rc = rc ? rc : device_enter(comm);
	rc = rc ? rc : page_make(comm);
	for (int i = 0; i < (int)net->contexts && !rc; i++) {
		rc = vb_ctx_open(comm, i, &comm->ctx[i]);
		comm->base.contexts += !rc;
	}
	if (rc)
		comm_free(comm);
	else
		*out = comm;
	return rc;
}

static uint8_t mtu_wanted(const struct vb_dev *dev)
{
	int64_t bytes = ep_param_int(EP_P_IB_MTU);
	uint8_t mtu = (uint8_t)dev->link.active_mtu;

	while (bytes && mtu > IB_MTU_256 && (128 << mtu) > bytes)
		mtu--;
	return mtu;
}

int vb_listen(void *n, int d, int nranks, void *handle, void **listener)
{
	struct vb_net *net = n;
	struct vb_listener *l;
	struct vb_handle mine;
	struct vb_comm *comm = NULL;
	const struct vb_dev *dev;
	int rc = ep_base_listen_check(&net->base, d, nranks);

	if (rc)
		return rc;
	dev = &net->devs[d];
	l = EP_CALLOC(EP_NET, 1, sizeof(*l), "a listener");
	if (!l)
		return -ENOMEM;
	rc = comm_make(net, dev, nranks, &comm);
	if (rc) {
		free(l);
		return rc;
	}
	mine = (struct vb_handle){
		.magic = MAGIC,
		.nranks = (uint32_t)nranks,
		.nonce = comm->nonce,
		.host = comm->watch.host,
		.gid = dev->gid.gid,
		.pid = getpid(),
		.qkey = comm->qkey,
		.lid = dev->link.lid,
		.roce = dev->roce,
		.mtu = mtu_wanted(dev),
		.contexts = (uint8_t)comm->base.contexts,
		.qps = (uint8_t)comm->qps,
		.reads = (uint8_t)clamp((uint64_t)(dev->attr.max_qp_rd_atom > 0 ? dev->attr.max_qp_rd_atom : 1), 1,
					READS),
	};
	for (int i = 0; i < comm->base.contexts; i++)
		mine.ud_qpn[i] = comm->ctx[i]->ud.qp->qp_num;
	memcpy(handle, &mine, sizeof(mine));
	l->comm = comm;
	*listener = l;
	return 0;
}

static int handle_check(const struct vb_comm *comm, int r, const struct vb_handle *h)
{
	if (h->magic != MAGIC || h->mtu < IB_MTU_256 || h->mtu > IB_MTU_4096 || !h->qps || h->qps > VB_QPS || !h->reads)
		return EP_FAIL(EP_NET, EP_EREMOTE,
			       "verbs: the handle of rank %d is not of this version of transport verbs", r);
	if (h->nranks != (uint32_t)comm->base.nranks || h->contexts != comm->base.contexts)
		return EP_FAIL(EP_NET, EP_EREMOTE, "verbs: rank %d has %u ranks and %u contexts, rank %d has %d and %d",
			       r, h->nranks, h->contexts, comm->base.rank, comm->base.nranks, comm->base.contexts);
	if (h->roce != comm->dev->roce)
		return EP_FAIL(EP_NET, EP_EREMOTE,
			       "verbs: the NIC of rank %d is on %s, %s of rank %d is not; choose NICs of one network "
			       "by "
			       "NCCL_EP_IB_HCA",
			       r, h->roce ? "Ethernet" : "InfiniBand", comm->dev->name, comm->base.rank);
	return 0;
}

static int handles_take(struct vb_comm *comm, const void *handles)
{
	int rc = 0;

	for (int r = 0; r < comm->base.nranks && !rc; r++) {
		struct vb_handle *h = &comm->peers[r].handle;

		if (ep_base_handle_blank(handles, r)) {
			ep_base_peer_absent(&comm->base, r);
			continue;
		}
		memcpy(h, ep_base_handle(handles, r), sizeof(*h));
		rc = handle_check(comm, r, h);
		if (!rc)
			ep_watch_add_on(&comm->watch, r, h->host, h->pid);
	}
	return rc;
}

/* Some more queue pairs: connect must not block, and peers that wait for an answer repeat their hellos. */
static int conns_open(struct vb_listener *l)
{
	struct vb_comm *comm = l->comm;
	int all = comm->base.contexts * comm->base.nranks, rc = 0;

	for (int n = 0; n < OPEN_AT_ONCE && l->opened < all && !rc; l->opened++) {
		int r = l->opened / comm->base.contexts;

		if (ep_base_is_absent(&comm->base, r))
			continue;
		rc = vb_conn_want(&comm->ctx[l->opened % comm->base.contexts]->conns[r]);
		n++;
	}
	return rc;
}

/*
 * Done when every peer has said that it has our numbers. That it knows the same of us cannot be waited for: the last of
 * any number of datagrams may be lost, and a peer that returns from connect answers again only when it polls. So after
 * a while connect returns without: all queue pairs are made, and the rest is repeated by progress. *failed: a lost
 * peer.
 */
static bool conns_done(struct vb_listener *l, int *failed)
{
	struct vb_comm *comm = l->comm;
	bool have = l->opened == comm->base.contexts * comm->base.nranks, ready = have;

	*failed = -1;
	for (int i = 0; i < comm->base.contexts; i++)
		for (int r = 0; r < comm->base.nranks; r++) {
			if (ep_base_is_absent(&comm->base, r))
				continue;
			if (ep_base_is_lost(&comm->base, r))
				*failed = r;
			have &= comm->ctx[i]->conns[r].have;
			ready &= comm->ctx[i]->conns[r].ready;
		}
	if (have && !l->met)
		l->met = ep_now_ns();
	return ready || (have && ep_now_ns() - l->met > LINGER_NS);
}

int vb_connect(void *listener, const void *handles, int nranks, int rank, void **out)
{
	struct vb_listener *l = listener;
	struct vb_comm *comm = l->comm;
	int rc = ep_base_connect_check("verbs", comm ? comm->base.nranks : 0, nranks, rank), n, failed;
	const char *why = "";
	bool done;

	if (rc)
		return rc;
	comm->base.rank = rank;
	if (!l->checked)
		rc = handles_take(comm, handles);
	l->checked = true;
	rc = rc ? rc : conns_open(l);
	for (int i = 0; i < comm->base.contexts && !rc; i++)
		rc = vb_progress(comm->ctx[i], NULL, 0, &n);
	if (rc)
		return rc;
	done = conns_done(l, &failed);
	if (failed >= 0) {
		ep_base_queryLastError(comm, failed, &why);
		return EP_FAIL(EP_NET, EP_EREMOTE, "%s", why);
	}
	if (!done)
		return 0;
	l->comm = NULL;
	*out = comm;
	return 0;
}

int vb_closeListen(void *listener)
{
	struct vb_listener *l = listener;

	if (l->comm)
		comm_free(l->comm);
	free(l);
	return 0;
}

/* Waits until at most `most` datagrams are in flight. */
static void notes_await(struct vb_ctx *ctx, uint32_t most, uint64_t end)
{
	int n;

	while (ctx->ud.sent - ctx->ud.gone > most && ep_now_ns() < end && !vb_progress(ctx, NULL, 0, &n))
		;
}

/* Tells connected peers, so that later puts to this rank fail at once. */
static void bye_say(struct vb_comm *comm)
{
	uint64_t end = ep_deadline_ms(BYE_MS);

	comm->base.closing = true;
	for (int i = 0; i < comm->base.contexts; i++) {
		struct vb_ctx *ctx = comm->ctx[i];

		for (uint32_t k = 0; k < ctx->qps_count; k++) {
			struct vb_conn *conn = ctx->qps[k]->conn;

			if (!conn->have || conn->dropped || conn->peer == comm->base.rank || ctx->qps[k] != conn->qp)
				continue;
			notes_await(ctx, VB_NOTES_OUT - 1, end);
			vb_bye_send(conn);
		}
		notes_await(ctx, 0, end);
	}
}

int vb_closeComm(void *comm)
{
	bye_say(comm);
	comm_free(comm);
	return 0;
}
