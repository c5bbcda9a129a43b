/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen and connect. A handle holds the addresses of all contexts and of a small page. connect puts a hello with
 * immediate data into every peer's page, which proves that the path works. efa-direct refuses a put from a rank whose
 * address the target has not inserted yet: so a hello that fails is repeated until the deadline, and as a rank says
 * hello after it has inserted all addresses in all contexts, whom it has heard it can put to.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/fabric/fabric.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

#define MAGIC 0x46414232u
#define REPEAT_NS 2000000u /* between two hellos to a peer: 2 ms */

struct fab_listener {
	struct fab_comm *comm; /* NULL once the caller owns it */
	uint64_t deadline;     /* of connect; 0: not started */
	void **requests;       /* [nranks] hellos in flight */
	uint64_t *repeat;      /* [nranks] not before */
	bool *acked;	       /* [nranks] */
	struct fab_meet meet;
};

/* Includes provider and, of efa, the fabric: ranks with different ones cannot connect. */
static uint32_t magic_of(const struct fab_dev *dev)
{
	const char *fabric = dev->profile->fabric ? dev->profile->fabric : "";
	uint32_t h = MAGIC;

	for (const char *p = dev->info->fabric_attr->prov_name; *p; p++)
		h = h * 31 + (uint8_t)*p;
	for (const char *p = fabric; *p; p++)
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
	size_t n = (size_t)comm->base.nranks, size = n * (sizeof(void *) + sizeof(uint64_t) + sizeof(bool));
	struct fab_listener *l = EP_CALLOC(EP_NET, 1, sizeof(*l) + size, "a listener");

	if (!l)
		return -ENOMEM;
	l->comm = comm;
	l->requests = (void **)(l + 1);
	l->repeat = (uint64_t *)(l->requests + n);
	l->acked = (bool *)(l->repeat + n);
	l->meet.mark = (uint32_t)comm->nonce;
	comm->ctx[0]->meet = &l->meet;
	*out = l;
	return 0;
}

static void addrs_pack(const struct fab_comm *comm, struct fab_handle *h)
{
	uint8_t *at = h->addr;

	for (int i = 0; i < comm->base.contexts; i++) {
		h->addr_len[i] = (uint16_t)comm->ctx[i]->addr_len;
		memcpy(at, comm->ctx[i]->addr, comm->ctx[i]->addr_len);
		at += comm->ctx[i]->addr_len;
	}
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
		.contexts = comm->base.contexts,
	};
	addrs_pack(comm, &mine);
	memcpy(handle, &mine, sizeof(mine));
	*listener = l;
	return 0;
}

static int handle_take(struct fab_comm *comm, int r, const void *handles, struct fab_handle *h)
{
	bool ok = true;

	memcpy(h, ep_base_handle(handles, r), sizeof(*h));
	for (int i = 0; i < comm->base.contexts; i++)
		ok = ok && h->addr_len[i] && h->addr_len[i] < FAB_ADDR;
	if (h->magic != magic_of(comm->dev))
		return EP_FAIL(EP_NET, EP_EREMOTE,
			       "fabric: rank %d has another provider or fabric than %s, or another version of this "
			       "library; set NCCL_EP_FABRIC_PROVIDER on all ranks",
			       r, comm->dev->info->fabric_attr->prov_name);
	if (h->nranks != (uint32_t)comm->base.nranks || h->contexts != comm->base.contexts || !ok)
		return EP_FAIL(EP_NET, EP_EREMOTE,
			       "fabric: rank %d has %u ranks and %d contexts, rank %d has %d and %d", r, h->nranks,
			       h->contexts, comm->base.rank, comm->base.nranks, comm->base.contexts);
	return 0;
}

/* Zeros behind an address: some providers' are strings. */
static int addrs_insert(struct fab_comm *comm, int r, const struct fab_handle *h)
{
	const uint8_t *at = h->addr;
	int rc = 0;

	for (int i = 0; i < comm->base.contexts && !rc; i++) {
		uint8_t addr[FAB_ADDR] = { 0 };

		memcpy(addr, at, h->addr_len[i]);
		at += h->addr_len[i];
		rc = fab_av_insert(comm->ctx[i], r, addr);
	}
	return rc;
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
		rc = rc ? rc : addrs_insert(comm, r, &h);
		if (rc)
			return rc;
		if (r != comm->base.rank && h.host == comm->watch.host && h.pid == getpid())
			comm->kin[comm->kin_count++] = h.nonce;
		ep_watch_add_on(&comm->watch, r, h.host, h.pid);
		comm->page_mr->far[r].base = h.page_base;
		comm->page_mr->far[r].key[0] = h.page_key;
		*out = (struct fab_hello){ .nonce = h.nonce, .rank = (uint64_t)comm->base.rank };
	}
	comm->page_mr->base.shared = true;
	l->deadline = ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS));
	return 0;
}

static int hello_fail(struct fab_comm *comm, int r)
{
	const char *why = "", *remedy = comm->dev->profile->remedy;

	ep_base_queryLastError(comm, r, &why);
	return EP_FAIL(EP_NET, EP_EREMOTE, "fabric: connecting rank %d to rank %d: %s%s%s", comm->base.rank, r,
		       why[0] ? why : "the provider refused the hello", remedy ? "; " : "", remedy ? remedy : "");
}

/* The bye word at the end is not part of a hello: a late hello must not overwrite it. */
static int hello_send(struct fab_listener *l, int r, uint64_t now)
{
	struct fab_comm *comm = l->comm;
	ncclEpNetPut_v1_t put = {
		.peer = r,
		.flags = NCCL_EP_NET_IMM,
		.imm = (uint32_t)comm->page[comm->base.nranks + r].nonce, /* the mark of the peer */
		.srcMr = comm->page_mr,
		.dstMr = comm->page_mr,
		.srcOffset = (uint64_t)(comm->base.nranks + r) * sizeof(struct fab_hello),
		.dstOffset = (uint64_t)comm->base.rank * sizeof(struct fab_hello),
		.size = offsetof(struct fab_hello, bye),
	};
	int done = 0, rc = 0;

	if (l->acked[r] || (!l->requests[r] && now < l->repeat[r]))
		return 0;
	if (!l->requests[r])
		rc = fab_iput(comm->ctx[0], &put, &l->requests[r]);
	if (rc)
		return hello_fail(comm, r);
	if (l->requests[r])
		rc = fab_test(comm->ctx[0], l->requests[r], &done);
	if (!done)
		return 0;
	l->requests[r] = NULL;
	l->acked[r] = !rc;
	l->repeat[r] = now + REPEAT_NS;
	return ep_base_is_lost(&comm->base, r) ? hello_fail(comm, r) : 0;
}

static bool is_heard(const struct fab_comm *comm, int r)
{
	const struct fab_hello *in = &comm->page[r];

	return __atomic_load_n(&in->nonce, __ATOMIC_RELAXED) == comm->nonce &&
	       __atomic_load_n(&in->rank, __ATOMIC_RELAXED) == (uint64_t)r;
}

/* The number of hellos outstanding, in either direction, or an error. */
static int meet_step(struct fab_listener *l)
{
	const char *remedy = l->comm->dev->profile->remedy;
	struct fab_comm *comm = l->comm;
	int missing = 0, first = -1, n, rc;
	uint64_t now = ep_now_ns();

	for (int r = 0; r < comm->base.nranks; r++) {
		if (ep_base_is_absent(&comm->base, r))
			continue;
		rc = hello_send(l, r, now);
		if (rc)
			return rc;
		if (l->acked[r] && is_heard(comm, r))
			continue;
		first = missing++ ? first : r;
	}
	rc = fab_progress(comm->ctx[0], NULL, 0, &n);
	if (!missing && l->meet.hellos < (uint32_t)(comm->base.nranks - comm->base.absent))
		first = missing++; /* the immediate data of some hello */
	if (rc || !missing || now < l->deadline)
		return rc ? rc : missing;
	return EP_FAIL(EP_NET, EP_ETIMEOUT,
		       "fabric: %d of %d ranks, the first is rank %d, did not connect to rank %d within "
		       "NCCL_EP_BOOTSTRAP_TIMEOUT_MS; rank %d %s%s%s%s%s",
		       missing, comm->base.nranks - comm->base.absent, first, comm->base.rank, first,
		       is_heard(comm, first) ? "was heard but did not acknowledge" : "was not heard",
		       l->meet.why[0] ? "; the last error: " : "", l->meet.why, remedy ? "; " : "",
		       remedy ? remedy : "");
}

static void meet_end(struct fab_comm *comm)
{
	comm->ctx[0]->meet = NULL;
	fab_name_drop(comm->ctx[0]);
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
	meet_end(comm);
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
