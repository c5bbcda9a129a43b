/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues: each belongs to one endpoint. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "test/efa/model.h"

static void arrivals_take(struct m_ep *ep)
{
	struct m_area *area = ep->domain->seat->area;

	m_lock(area);
	__atomic_fetch_add(&area->polls, 1, __ATOMIC_RELAXED); /* posting reads it without the lock */
	while (area->arrival_head != area->arrival_tail && ep->done_count < M_TX + M_RX) {
		struct m_arrival *a = &area->arrivals[area->arrival_head % M_RX];

		ep->done[ep->done_count++] = (struct m_done){
			.entry = { .op_context = (void *)(uintptr_t)a->context,
				   .flags = OFI_REMOTE_CQ_DATA | OFI_RMA | OFI_REMOTE_WRITE,
				   .data = a->data },
			.from = a->from,
		};
		area->arrival_head++;
	}
	m_unlock(area);
}

static uint64_t source_of(const struct m_ep *ep, uint64_t nonce)
{
	for (size_t i = 0; i < ep->av->count; i++)
		if (ep->av->peers[i]->nonce == nonce)
			return i;
	return OFI_ADDR_NONE;
}

/* What was posted as a receive and has completed can be posted again. */
static void done_count(struct m_ep *ep, const struct m_done *done)
{
	if (!ep->direct || !(done->entry.flags & (OFI_RECV | OFI_REMOTE_CQ_DATA)))
		return;
	ep->posted--;
	__atomic_fetch_sub(&ep_model_seen.posted, 1, __ATOMIC_RELAXED);
}

static ssize_t cq_readfrom(struct ofi_cq *pub, void *entries, size_t count, uint64_t *from)
{
	struct m_ep *ep = ((struct m_cq *)pub)->ep;
	struct ofi_cq_data_entry *out = entries;
	size_t n = 0;

	if (ep->has_failed)
		return -(ssize_t)OFI_EAVAIL;
	ep->refusing -= ep->refusing > 0;
	m_nic_run(ep);
	arrivals_take(ep);
	if (m_chance(ep, 8))
		return -EAGAIN;
	while (n < count && ep->done_count && !(n && m_chance(ep, 16))) {
		struct m_done *done = &ep->done[m_random(ep) % ep->done_count]; /* R3 */

		if (done->status && n)
			break;
		done_count(ep, done);
		if (done->status) {
			ep->failed = *done;
			ep->has_failed = true;
		} else {
			if (from)
				from[n] = source_of(ep, done->from);
			out[n++] = done->entry;
		}
		*done = ep->done[--ep->done_count];
		if (ep->has_failed)
			return -(ssize_t)OFI_EAVAIL; /* R5 */
	}
	return n ? (ssize_t)n : -EAGAIN;
}

static ssize_t cq_read(struct ofi_cq *pub, void *entries, size_t count)
{
	return cq_readfrom(pub, entries, count, NULL);
}

static ssize_t cq_readerr(struct ofi_cq *pub, struct ofi_cq_err_entry *entry, uint64_t flags)
{
	struct m_ep *ep = ((struct m_cq *)pub)->ep;

	(void)flags;
	if (!ep->has_failed)
		return -EAGAIN;
	ep->has_failed = false;
	entry->op_context = ep->failed.entry.op_context;
	entry->flags = ep->failed.entry.flags;
	entry->err = EIO;
	entry->prov_errno = ep->failed.status;
	return 1;
}

static const char *cq_strerror(struct ofi_cq *pub, int status, const void *data, char *buf, size_t len)
{
	(void)pub, (void)data, (void)buf, (void)len;
	switch (status) {
	case M_BAD_LKEY:
		return "Invalid local key";
	case M_BAD_ADDRESS:
		return "Invalid remote address or key";
	case M_BAD_QPN:
		return "Destination queue pair does not exist";
	case M_UNKNOWN_PEER:
		return "Unknown peer: no address handle at the remote side";
	default:
		return "Unresponsive remote";
	}
}

static int cq_close(struct ofi_fid *fid)
{
	free(fid);
	return 0;
}

int m_cq_open(struct ofi_domain *domain, struct ofi_cq_attr *attr, struct ofi_cq **out, void *context)
{
	static struct ofi_ops fid_ops = { .size = sizeof(fid_ops), .close = cq_close };
	static struct ofi_ops_cq ops = { .size = sizeof(ops),
					 .read = cq_read,
					 .readfrom = cq_readfrom,
					 .readerr = cq_readerr,
					 .strerror = cq_strerror };
	struct m_cq *cq = calloc(1, sizeof(*cq));

	(void)domain;
	__atomic_fetch_add(&ep_model_seen.cqs, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&ep_model_seen.completions, (uint32_t)attr->size, __ATOMIC_RELAXED);
	cq->pub.fid = (struct ofi_fid){ .context = context, .ops = &fid_ops };
	cq->pub.ops = &ops;
	*out = &cq->pub;
	return 0;
}
