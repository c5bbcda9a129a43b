/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen and connect. A handle holds the address of context 0 and of a small page. connect puts a hello with immediate
 * data into every peer's page: it carries the addresses of the other contexts and proves that the path works.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/fabric/fabric.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

#define MAGIC 0x46414231u

struct fab_listener {
	struct fab_comm *comm; /* NULL once the caller owns it */
	uint64_t deadline;     /* of connect; 0: not started */
	void **requests;       /* [nranks] hellos in flight */
	bool *sent, *heard;    /* [nranks] */
};

/* Includes the provider: ranks with different providers cannot connect. */
static uint32_t magic_of(const struct fab_dev *dev)
{
	uint32_t h = MAGIC;

	for (const char *p = dev->info->fabric_attr->prov_name; *p; p++)
		h = h * 31 + (uint8_t)*p;
	return h;
}

static int page_make(struct fab_comm *comm, struct fab_key *key)
{
	ncclEpNetMem_v1_t mem = { .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
	uint8_t mine[NCCL_EP_NET_KEY_SIZE] = { 0 };
	void *mr = NULL;
	int rc;

	mem.size = ((2 * (size_t)comm->base.nranks + 1) * sizeof(struct fab_hello) + 4095) / 4096 * 4096;
	mem.ptr = comm->page = ep_base_pages("fabric", mem.size);
	if (!mem.ptr)
		return -ENOMEM;
	rc = fab_mr_open(comm, &mem, false, mine, &mr);
	comm->page_mr = mr;
	memcpy(key, mine, sizeof(*key));
	return rc;
}

static int comm_make(const struct fab_dev *dev, int contexts, int nranks, struct fab_comm **out)
{
	struct fab_comm *comm = EP_CALLOC(EP_NET, 1, sizeof(*comm), "a comm");
	int rc;

	if (!comm)
		return -ENOMEM;
	comm->dev = dev;
	comm->next_key = 1;
	comm->lost_ns = (uint64_t)ep_param_int(EP_P_PEER_LOST_MS) * 1000000ull;
	rc = ep_base_comm_open(&comm->base, "fabric", nranks);
	rc = rc ? rc : ep_watch_open(&comm->watch, nranks);
	comm->kin = EP_CALLOC(EP_NET, (size_t)nranks, sizeof(*comm->kin), "the ranks of a process");
	rc = rc || comm->kin ? rc : -ENOMEM;
	rc = rc ? rc : ep_base_random("fabric", &comm->nonce, sizeof(comm->nonce));
	for (int i = 0; i < contexts && !rc; i++) {
		rc = fab_ctx_open(comm, i, &comm->ctx[i]);
		comm->base.contexts += !rc;
	}
	if (rc)
		fab_comm_free(comm);
	else
		*out = comm;
	return rc;
}

static int listener_make(struct fab_comm *comm, struct fab_listener **out)
{
	size_t n = (size_t)comm->base.nranks, size = n * (sizeof(void *) + 2 * sizeof(bool));
	struct fab_listener *l = EP_CALLOC(EP_NET, 1, sizeof(*l) + size, "a listener");

	if (!l)
		return -ENOMEM;
	l->comm = comm;
	l->requests = (void **)(l + 1);
	l->sent = (bool *)(l->requests + n);
	l->heard = l->sent + n;
	comm->ctx[0]->heard = l->heard;
	*out = l;
	return 0;
}

int fab_listen(void *n, int dev, int nranks, void *handle, void **listener)
{
	struct fab_net *net = n;
	struct fab_listener *l = NULL;
	struct fab_handle mine;
	struct fab_comm *comm = NULL;
	struct fab_key key;
	int rc = ep_base_listen_check(&net->base, dev, nranks);

	rc = rc ? rc : comm_make(&net->devs[dev], (int)net->contexts, nranks, &comm);
	if (rc)
		return rc;
	rc = page_make(comm, &key);
	rc = rc ? rc : listener_make(comm, &l);
	if (rc) {
		fab_comm_free(comm);
		return rc;
	}
	mine = (struct fab_handle){
		.magic = magic_of(comm->dev),
		.nranks = (uint32_t)nranks,
		.nonce = comm->nonce,
		.page_key = key.key[0],
		.page_base = key.base,
		.host = comm->watch.host,
		.pid = getpid(),
		.addr_len = (uint16_t)comm->ctx[0]->addr_len,
		.contexts = (uint8_t)comm->base.contexts,
	};
	memcpy(mine.addr, comm->ctx[0]->addr, sizeof(mine.addr));
	memcpy(handle, &mine, sizeof(mine));
	*listener = l;
	return 0;
}

/* Padded with zeros, at least one: some providers' addresses are strings. */
static bool addr_ok(const uint8_t *addr, size_t n)
{
	bool ok = n && n < FAB_ADDR;

	for (size_t i = n; ok && i < FAB_ADDR; i++)
		ok = !addr[i];
	return ok;
}

static int handle_take(struct fab_comm *comm, int r, const void *handles, struct fab_handle *h)
{
	memcpy(h, ep_base_handle(handles, r), sizeof(*h));
	if (h->magic != magic_of(comm->dev) || !addr_ok(h->addr, h->addr_len))
		return EP_FAIL(EP_NET, EP_EREMOTE,
			       "fabric: rank %d has another provider than %s, or another version of this library; set "
			       "NCCL_EP_FABRIC_PROVIDER on all ranks",
			       r, comm->dev->info->fabric_attr->prov_name);
	if (h->nranks != (uint32_t)comm->base.nranks || h->contexts != comm->base.contexts)
		return EP_FAIL(EP_NET, EP_EREMOTE,
			       "fabric: rank %d has %u ranks and %u contexts, rank %d has %d and %d", r, h->nranks,
			       h->contexts, comm->base.rank, comm->base.nranks, comm->base.contexts);
	return 0;
}

static int meet_begin(struct fab_listener *l, const void *handles)
{
	struct fab_comm *comm = l->comm;
	struct fab_handle h;
	int rc;

	for (int r = 0; r < comm->base.nranks; r++) {
		struct fab_hello *out = &comm->page[comm->base.nranks + r];

		if (ep_base_handle_blank(handles, r)) {
			ep_base_peer_absent(&comm->base, r);
			continue;
		}
		rc = handle_take(comm, r, handles, &h);
		rc = rc ? rc : fab_av_insert(comm->ctx[0], r, h.addr);
		if (rc)
			return rc;
		if (r != comm->base.rank && h.host == comm->watch.host && h.pid == getpid())
			comm->kin[comm->kin_count++] = h.nonce;
		ep_watch_add_on(&comm->watch, r, h.host, h.pid);
		comm->page_mr->far[r].base = h.page_base;
		comm->page_mr->far[r].key[0] = h.page_key;
		*out = (struct fab_hello){ .nonce = h.nonce, .rank = (uint32_t)comm->base.rank };
		out->contexts = (uint32_t)comm->base.contexts;
		for (int i = 0; i < comm->base.contexts; i++) {
			out->addr_len[i] = (uint16_t)comm->ctx[i]->addr_len;
			memcpy(out->addr[i], comm->ctx[i]->addr, FAB_ADDR);
		}
	}
	comm->page_mr->base.shared = true;
	l->deadline = ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS));
	return 0;
}

/* The bye word at the end is not part of a hello: a late hello must not overwrite it. */
static int hello_send(struct fab_listener *l, int r)
{
	struct fab_comm *comm = l->comm;
	ncclEpNetPut_v1_t put = {
		.peer = r,
		.flags = NCCL_EP_NET_IMM,
		.srcMr = comm->page_mr,
		.dstMr = comm->page_mr,
		.srcOffset = (uint64_t)(comm->base.nranks + r) * sizeof(struct fab_hello),
		.dstOffset = (uint64_t)comm->base.rank * sizeof(struct fab_hello),
		.size = offsetof(struct fab_hello, bye),
	};
	const char *why = "";
	int done = 0, rc = 0;

	if (!l->sent[r]) {
		rc = fab_iput(comm->ctx[0], &put, &l->requests[r]);
		l->sent[r] = l->requests[r];
	}
	if (!rc && l->requests[r]) {
		rc = fab_test(comm->ctx[0], l->requests[r], &done);
		if (done)
			l->requests[r] = NULL;
	}
	if (!rc)
		return 0;
	ep_base_queryLastError(comm, r, &why);
	return EP_FAIL(EP_NET, EP_EREMOTE, "fabric: connecting rank %d to rank %d: %s%s%s", comm->base.rank, r,
		       why[0] ? why : "the provider refused the hello", comm->dev->profile->remedy ? "; " : "",
		       comm->dev->profile->remedy ? comm->dev->profile->remedy : "");
}

/* The number of hellos outstanding, in either direction, or an error. */
static int meet_step(struct fab_listener *l)
{
	struct fab_comm *comm = l->comm;
	int missing = 0, first = -1, n, rc;

	for (int r = 0; r < comm->base.nranks; r++) {
		if (ep_base_is_absent(&comm->base, r))
			continue;
		rc = hello_send(l, r);
		if (rc)
			return rc;
		if (l->sent[r] && !l->requests[r] && l->heard[r])
			continue;
		first = missing++ ? first : r;
	}
	rc = fab_progress(comm->ctx[0], NULL, 0, &n);
	if (rc || !missing || ep_now_ns() < l->deadline)
		return rc ? rc : missing;
	return EP_FAIL(EP_NET, EP_ETIMEOUT,
		       "fabric: %d of %d ranks, the first is rank %d, did not connect to rank %d within "
		       "NCCL_EP_BOOTSTRAP_TIMEOUT_MS; rank %d %s%s%s",
		       missing, comm->base.nranks - comm->base.absent, first, comm->base.rank, first,
		       l->heard[first] ? "was heard but did not acknowledge" : "was not heard",
		       comm->dev->profile->remedy ? "; " : "",
		       comm->dev->profile->remedy ? comm->dev->profile->remedy : "");
}

static int meet_end(struct fab_listener *l)
{
	struct fab_comm *comm = l->comm;

	for (int r = 0; r < comm->base.nranks; r++) {
		struct fab_hello in = comm->page[r]; /* a copy: the peer could still write there */

		if (ep_base_is_absent(&comm->base, r))
			continue;
		if (in.nonce != comm->nonce || in.rank != (uint32_t)r || in.contexts != (uint32_t)comm->base.contexts)
			return EP_FAIL(EP_NET, EP_EREMOTE, "fabric: the hello of rank %d is of another comm", r);
		for (int i = 1; i < comm->base.contexts; i++) {
			if (!addr_ok(in.addr[i], in.addr_len[i]) || fab_av_insert(comm->ctx[i], r, in.addr[i]))
				return EP_FAIL(EP_NET, EP_EREMOTE,
					       "fabric: no usable address for context %d of rank %d", i, r);
		}
	}
	comm->ctx[0]->heard = NULL;
	fab_name_drop(comm->ctx[0]);
	return 0;
}

int fab_connect(void *listener, const void *handles, int nranks, int rank, void **out)
{
	struct fab_listener *l = listener;
	struct fab_comm *comm = l->comm;
	int rc = ep_base_connect_check("fabric", comm ? comm->base.nranks : 0, nranks, rank);

	if (rc)
		return rc;
	if (!l->deadline) {
		comm->base.rank = rank;
		rc = meet_begin(l, handles);
		if (rc)
			return rc;
	}
	rc = meet_step(l);
	if (rc)
		return rc < 0 ? rc : 0;
	rc = meet_end(l);
	if (rc)
		return rc;
	l->comm = NULL;
	*out = comm;
	return 0;
}

int fab_closeListen(void *listener)
{
	struct fab_listener *l = listener;

	if (l->comm)
		fab_comm_end(l->comm);
	free(l);
	return 0;
}
