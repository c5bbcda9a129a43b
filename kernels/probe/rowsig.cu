/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows to every rank, then a signal, and acks for the buffer (kernels/probe/args_rowsig.h has the layout).
 *
 * Work is divided into slices, nranks * slices of them for each half, which warps take by ticket; a warp receives only
 * when nothing is left to send. So one resident block can do the whole operation alone, and a block that the device
 * starts late finds no work and exits. A slice may be empty: a peer that gets no rows is signalled by the same code.
 *
 * Orderings, each with its partner (S: sender, D: destination):
 *   R1 rows and head -> sent[D]	pairs with A1, the same counter: its last finisher is ordered after all rows
 *   R2 signal at D, after A1		pairs with A2, D's wait
 *   R3 rows read -> received[S]	pairs with A3, the same counter
 *   R4 ack at S, after A3		pairs with A4, S's wait before it writes this buffer again
 *   R5 all of a block -> left		pairs with A5: the last block resets the tickets for the next launch
 */
#include "kernels/op/op.h"
#include "kernels/probe/args_rowsig.h"

struct rowsig {
	struct gx_op op;
	const struct ep_rowsig_args *a;
	uint64_t *mine; /* this rank's control words */
	uint32_t *sent, *received;
	uint64_t before; /* the epoch whose acks free the buffer; 0: never used */
	uint32_t buffer;
	struct gx_bulk bulk;
};

GX_DEV uint8_t *rowsig_window(const struct rowsig *rs, uint32_t owner, uint32_t source)
{
	const struct ep_rowsig_args *a = rs->a;

	return a->window[owner] + ((uint64_t)rs->buffer * a->nranks + source) * ep_rowsig_block(a->row, a->cap);
}

/* The warp waits for one of this rank's words: lane 0 polls, the barrier extends its acquire to the others. */
GX_DEV int rowsig_wait(const struct rowsig *rs, const uint64_t *word, uint64_t value, uint32_t rank, uint32_t phase)
{
	uint32_t result = (uint32_t)gx_wait(gx_lane() == 0 ? word : NULL, value, &rs->op.limit);

	if (result != GX_ARRIVED)
		gx_op_fail_wait(&rs->op, result, rank, rank, phase);
	gx_fence_proxy();
	return gx_shfl_u32(result, 0) == GX_ARRIVED;
}

GX_DEV void rowsig_row(struct rowsig *rs, uint8_t *dst, const uint8_t *src)
{
	uint64_t row = rs->a->row;
	uint32_t room = gx_bulk_room(&rs->bulk);

	for (uint64_t at = 0; at < row; at += room) {
		uint32_t n = row - at < room ? (uint32_t)(row - at) : room;

		gx_bulk_load(&rs->bulk, src + at, n);
		gx_bulk_store(&rs->bulk, dst + at, 0, n);
	}
}

GX_DEV void rowsig_send(struct rowsig *rs, uint32_t item)
{
	const struct ep_rowsig_args *a = rs->a;
	/* Starting at the next rank, so that the senders are spread over the receivers. */
	uint32_t peer = (uint32_t)(((uint64_t)a->rank + 1 + item % a->nranks) % a->nranks);
	uint32_t slice = item / a->nranks, count = a->count[peer];
	uint8_t *to = rowsig_window(rs, peer, a->rank);

	if (count > a->cap) {
		if (gx_lane() == 0)
			gx_op_fail(&rs->op, EP_KERR_COUNT, peer, EP_KPHASE_SEND);
		return;
	}
	/* A4 */
	if (!rowsig_wait(rs, rs->mine + a->nranks + peer, rs->before, peer, EP_KPHASE_SEND))
		return;
	for (uint64_t i = slice; i < count; i += a->slices)
		rowsig_row(rs, to + EP_ROWSIG_HEAD + i * ep_rowsig_pitch(a->row),
			   a->in + ((uint64_t)peer * a->cap + i) * a->row);
	if (slice == 0 && gx_lane() == 0)
		*(uint32_t *)to = count;
	gx_bulk_drain(&rs->bulk);
	/* R1, A1, R2 */
	if (gx_lane() == 0 && gx_dev_add_acqrel_u32(&rs->sent[peer], 1) == a->slices - 1)
		gx_st_release_u64(a->control[peer] + a->rank, rs->op.epoch);
}

GX_DEV void rowsig_recv(struct rowsig *rs, uint32_t item)
{
	const struct ep_rowsig_args *a = rs->a;
	uint32_t source = (uint32_t)(((uint64_t)a->rank + item % a->nranks) % a->nranks);
	uint32_t slice = item / a->nranks, count;
	const uint8_t *from = rowsig_window(rs, a->rank, source);

	/* A2 */
	if (!rowsig_wait(rs, rs->mine + source, rs->op.epoch, source, EP_KPHASE_RECV))
		return;
	/* A peer's count is checked before it is used, and all lanes use the same read of it. */
	count = gx_shfl_u32(*(const uint32_t *)from, 0);
	if (count > a->cap) {
		if (gx_lane() == 0)
			gx_op_fail(&rs->op, EP_KERR_COUNT, source, EP_KPHASE_RECV);
		return;
	}
	for (uint64_t i = slice; i < count; i += a->slices)
		rowsig_row(rs, a->out + ((uint64_t)source * a->cap + i) * a->row,
			   from + EP_ROWSIG_HEAD + i * ep_rowsig_pitch(a->row));
	if (slice == 0 && gx_lane() == 0)
		a->got[source] = count;
	gx_bulk_drain(&rs->bulk);
	/* R3, A3, R4 */
	if (gx_lane() == 0 && gx_dev_add_acqrel_u32(&rs->received[source], 1) == a->slices - 1)
		gx_st_release_u64(a->control[source] + a->nranks + a->rank, rs->op.epoch);
}

GX_DEV void rowsig_open(struct rowsig *rs, const struct ep_rowsig_args *a, uint8_t *stage)
{
	rs->a = a;
	rs->mine = a->control[a->rank];
	rs->sent = (uint32_t *)(a->state + 1);
	rs->received = rs->sent + a->nranks;
	rs->buffer = a->state->buffer;
	rs->before = a->state->used[rs->buffer];
	rs->op.rank = a->rank;
	rs->op.nranks = a->nranks;
	rs->op.kind = EP_KIND_ROWSIG;
	rs->op.epoch = a->state->epoch + 1;
	rs->op.report = a->report;
	rs->op.errors = &a->state->errors;
	rs->op.control = (uint8_t *const *)a->control;
	rs->op.failed_at = ep_rowsig_control_size(a->nranks) - sizeof(uint64_t);
	rs->op.limit.deadline = gx_clock_ns() + a->timeout_ns;
	rs->op.limit.abort = a->abort;
	rs->op.limit.gone = NULL;
	rs->op.far = NULL;
	rs->op.broken = NULL;
	rs->op.limit.afar = NULL;
	rs->op.limit.failed = rs->mine + rs->op.failed_at / sizeof(uint64_t);
	gx_bulk_open(&rs->bulk, stage, a->stage);
}

/* The host keeps no state per launch: the last block to leave prepares the state for the next launch, which the stream
 * starts after this one has ended. */
GX_DEV void rowsig_close(struct rowsig *rs)
{
	struct ep_rowsig_state *state = rs->a->state;

	if (!gx_op_leave(&state->left)) /* R5, A5 */
		return;
	for (uint32_t i = gx_tid(); i < 2 * rs->a->nranks; i += gx_threads())
		rs->sent[i] = 0; /* and received, which follows */
	if (gx_tid() != 0)
		return;
	state->send_ticket = state->recv_ticket = state->left = 0;
	state->used[rs->buffer] = rs->op.epoch;
	state->buffer = rs->a->single ? 0 : rs->buffer ^ 1;
	state->epoch = rs->op.epoch;
}

/* A failed group moves no more rows: its windows may hold half an operation. Lane 0 reads the word for its warp: it may
 * change at any moment, and lanes must not diverge over it. */
GX_DEV uint32_t rowsig_items(const struct rowsig *rs)
{
	uint32_t items = rs->a->nranks * rs->a->slices;
	uint64_t failed = 0;

	if (gx_lane() == 0)
		failed = gx_ld_relaxed_u64(rs->op.limit.failed);
	if (failed != 0)
		gx_op_fail_remote(&rs->op, failed, EP_KPHASE_START);
	return gx_shfl_u32(failed != 0 ? 0 : items, 0);
}

GX_KERNEL(rowsig)(GX_ARGS(struct ep_rowsig_args) a)
{
	GX_DYN_SHARED(stage);
	struct rowsig rs;
	uint32_t items, item;

	rowsig_open(&rs, &a, stage);
	items = rowsig_items(&rs);
	while ((item = gx_op_ticket(&a.state->send_ticket)) < items)
		rowsig_send(&rs, item);
	while ((item = gx_op_ticket(&a.state->recv_ticket)) < items)
		rowsig_recv(&rs, item);
	rowsig_close(&rs);
}
