/* SPDX-License-Identifier: Apache-2.0 */
/* The device: operations are queued, and land packet by packet, in any order, when their endpoint is used. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "test/efa/model.h"

#define STEPS 24 /* packets per poll, at most */

static void op_done(struct m_ep *ep, const struct m_op *op, int status)
{
	ep->done[ep->done_count++] = (struct m_done){
		.entry = { .op_context = op->context, .flags = OFI_RMA | (op->read ? OFI_READ : OFI_WRITE) },
		.status = status,
	};
}

/* Words are stored whole: a receiver may poll one of them. */
static void bytes_store(uint8_t *to, const uint8_t *from, size_t n)
{
	size_t i = 0;

	for (; i < n && (uintptr_t)(to + i) % 8; i++)
		__atomic_store_n(to + i, from[i], __ATOMIC_RELAXED);
	for (; i + 8 <= n; i += 8) {
		uint64_t word;

		memcpy(&word, from + i, 8);
		__atomic_store_n((uint64_t *)(void *)(to + i), word, __ATOMIC_RELAXED);
	}
	for (; i < n; i++)
		__atomic_store_n(to + i, from[i], __ATOMIC_RELAXED);
}

static bool region_holds(const struct m_area *area, const struct m_op *op)
{
	const struct m_region *r = &area->regions[op->key % M_MRS];

	return r->key == op->key && op->remote >= r->base && op->size <= r->size &&
	       op->remote - r->base <= r->size - op->size;
}

static int packet_move(const struct m_area *area, const struct m_op *op)
{
	size_t at = (op->first + op->landed) % op->packets * M_PACKET;
	size_t n = op->size - at < M_PACKET ? op->size - at : M_PACKET;
	struct iovec mine = { op->local + at, n }, theirs = { (void *)(uintptr_t)(op->remote + at), n };

	if (!n)
		return 0;
	if (area->pid == getpid() && !op->read)
		bytes_store(theirs.iov_base, mine.iov_base, n);
	else if (area->pid == getpid())
		memcpy(mine.iov_base, theirs.iov_base, n);
	else if ((op->read ? process_vm_readv(area->pid, &mine, 1, &theirs, 1, 0)
			   : process_vm_writev(area->pid, &mine, 1, &theirs, 1, 0)) != (ssize_t)n)
		return M_UNRESPONSIVE; /* R13 */
	return 0;
}

/* False: no receive is posted, or no room: the sender tries again. */
static bool imm_deliver(struct m_area *area, const struct m_op *op, uint64_t from)
{
	struct m_arrival arrival = { .from = from, .data = op->data };

	if (area->arrival_tail - area->arrival_head == M_RX)
		return false;
	if (area->direct) { /* R1 */
		if (area->receive_head == area->receive_tail)
			return false;
		arrival.context = area->receives[area->receive_head % M_RX];
		area->receive_head++;
	}
	area->arrivals[area->arrival_tail % M_RX] = arrival;
	area->arrival_tail++;
	return true;
}

/* One packet. -1: not finished; otherwise its status. The target's lock is held. */
static int op_step(struct m_ep *ep, struct m_op *op, struct m_area *area)
{
	int status;

	if (!area->open)
		return M_BAD_QPN; /* R13 */
	if (ep->direct && !m_knows(area, ep->domain->seat->nonce)) {
		__atomic_fetch_add(&ep_model_seen.unknown_peers, 1, __ATOMIC_RELAXED);
		return M_UNKNOWN_PEER; /* R8 */
	}
	if (ep->emulated && area != ep->domain->seat->area && area->polls == op->polls)
		return -1; /* R10 */
	op->polls = area->polls;
	if (!region_holds(area, op))
		return M_BAD_ADDRESS;
	if (op->landed < op->packets) {
		status = packet_move(area, op);
		op->landed++;
		if (status)
			return status;
	}
	if (op->landed < op->packets)
		return -1;
	if (op->flags & OFI_REMOTE_CQ_DATA && !imm_deliver(area, op, ep->domain->seat->nonce))
		return -1;
	return 0;
}

void m_nic_run(struct m_ep *ep)
{
	/* Few at a time: what is posted together must not land together. */
	int steps = ep->calm ? STEPS : (int)(m_random(ep) % 6);

	for (int i = 0; i < steps && ep->op_count; i++) {
		uint32_t at = (uint32_t)(m_random(ep) % ep->op_count); /* R3 */
		struct m_op *op = &ep->ops[at];
		struct m_area *area = op->peer->area;
		int status = M_UNRESPONSIVE;

		if (area) {
			m_lock(area);
			status = op_step(ep, op, area);
			m_unlock(area);
		}
		if (status < 0)
			continue;
		op_done(ep, op, status);
		*op = ep->ops[--ep->op_count];
	}
}

/* R4 */
static bool post_refused(struct m_ep *ep, uint32_t used, uint32_t size)
{
	if (!ep->refusing && m_chance(ep, 100))
		ep->refusing = 1 + (uint32_t)(m_random(ep) % 20);
	return ep->refusing || used >= size; /* completions of receives count, too */
}

static ssize_t post(struct m_ep *ep, const struct ofi_msg_rma *msg, uint64_t flags, bool read)
{
	struct m_op op = { .context = msg->context,
			   .local = msg->msg_iov->iov_base,
			   .remote = msg->rma_iov->addr,
			   .key = msg->rma_iov->key,
			   .flags = flags,
			   .size = msg->msg_iov->iov_len,
			   .data = (uint32_t)msg->data, /* R2 */
			   .read = read };

	if (msg->iov_count != 1 || msg->rma_iov_count != 1 || msg->addr >= ep->av->count || !msg->context)
		return -EINVAL;
	if (ep->direct && (!msg->desc || !msg->desc[0])) /* R7 */
		return -EINVAL;
	if (post_refused(ep, ep->op_count + ep->done_count, M_TX))
		return -EAGAIN;
	if (ep->direct) /* R6 */
		memset(msg->context, 0xa5, sizeof(struct ofi_context2));
	op.peer = ep->av->peers[msg->addr];
	op.packets = op.size ? (op.size + M_PACKET - 1) / M_PACKET : 1;
	op.first = m_random(ep) % op.packets; /* R3 */
	op.polls = op.peer->area ? __atomic_load_n(&op.peer->area->polls, __ATOMIC_RELAXED) : 0;
	ep->ops[ep->op_count++] = op;
	return 0;
}

ssize_t m_write(struct ofi_ep *ep, const struct ofi_msg_rma *msg, uint64_t flags)
{
	return post((struct m_ep *)ep, msg, flags, false);
}

ssize_t m_read(struct ofi_ep *ep, const struct ofi_msg_rma *msg, uint64_t flags)
{
	return post((struct m_ep *)ep, msg, flags, true);
}

/* The receives since the last doorbell become the device's. */
static void doorbell(struct m_ep *ep)
{
	struct m_area *area = ep->domain->seat->area;

	m_lock(area);
	for (uint32_t i = 0; i < ep->unrung_count; i++) {
		if (m_chance(ep, 12)) { /* R5 */
			ep->done[ep->done_count++] =
				(struct m_done){ .entry = { .op_context = ep->unrung[i], .flags = OFI_MSG | OFI_RECV },
						 .status = M_BAD_LKEY };
			__atomic_fetch_add(&ep_model_seen.failed_receives, 1, __ATOMIC_RELAXED);
			continue;
		}
		area->receives[area->receive_tail % M_RX] = (uintptr_t)ep->unrung[i];
		area->receive_tail++;
	}
	m_unlock(area);
	ep->unrung_count = 0;
	__atomic_fetch_add(&ep_model_seen.doorbells, 1, __ATOMIC_RELAXED);
}

ssize_t m_receive(struct ofi_ep *pub, const struct ofi_msg *msg, uint64_t flags)
{
	struct m_ep *ep = (struct m_ep *)pub;

	if (!msg->context || !msg->desc || !msg->desc[0]) /* R7 */
		return -EINVAL;
	if (post_refused(ep, ep->posted, M_RX))
		return -EAGAIN;
	memset(msg->context, 0x5a, sizeof(struct ofi_context2)); /* R6 */
	ep->unrung[ep->unrung_count++] = msg->context;
	ep->posted++;
	__atomic_fetch_add(&ep_model_seen.posted, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&ep_model_seen.receives, 1, __ATOMIC_RELAXED);
	if (!(flags & OFI_MORE)) /* R9 */
		doorbell(ep);
	return 0;
}
