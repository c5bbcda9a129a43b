/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LL: few tokens, least time. Two buffers per window; an operation of the group (a dispatch or a combine) takes one.
 *
 *   dispatch  [source rank] head (enum ep_ll_head), rows per local expert; then tmax rows: row head, token, scales
 *   combine   one row per slot: (token, position) at the token's home rank; with masks (writer, dispatch slot,
 *	       ordinal), so that a masked rank that resumes late writes to its own slots only. In the window for far
 *	       ranks the rows of a writer follow each other, so that one put carries several: (writer, number), and
 *	       without masks the writers' rows do too
 *   control   64-byte lines: signal[source rank], ack[buffer][rank], failed, clean[source rank], jump[source rank],
 *	       barrier[source rank], step[source rank][EP_LL_STEPS_EACH], counted[source rank]
 *   far page  the same words of far ranks, packed (ep_ll_far_at)
 *   state     private to this rank, advanced by the kernels; the counters after it are zero between launches
 *   handle    what a dispatch leaves for its combine, and a send half for its receive half
 */
#ifndef EP_KERNELS_ARGS_LL_H
#define EP_KERNELS_ARGS_LL_H

#include "kernels/op/args.h"
#include "kernels/op/far_args.h"

enum ep_ll_flag {
	EP_LL_SEND = 1 << 0,	   /* this launch is the send half */
	EP_LL_RECV = 1 << 1,	   /* this launch is the receive half; both: the whole operation */
	EP_LL_RANK_MAJOR = 1 << 2, /* else expert-major */
	EP_LL_IDX32 = 1 << 3,	   /* topk_idx is int32, else int64 */
	EP_LL_GLOBAL = 1 << 4,	   /* recv_topk_idx holds global expert ids, else local ones */
	EP_LL_DS_FP8 = 1 << 5,	   /* bf16 in, e4m3 and scales out */
	EP_LL_ROUND = 1 << 6,	   /* scales are powers of two */
	EP_LL_MASK = 1 << 7,	   /* a silent rank is masked instead of an error */
	EP_LL_COLUMNS = 1 << 8,	  /* out_scales, 32 bits each, is by columns; in the window scales are with their row */
	EP_LL_EXPONENTS = 1 << 9, /* with EP_LL_COLUMNS: of four scales their exponents, in one word */
	EP_LL_MANY = 1 << 10,	  /* the group has far ranks, and room for more than EP_LL_FEW tokens */
	/* What only the kernels _any can; of the others, those for far ranks but _far_few can EP_LL_MANY. */
	EP_LL_RARE = EP_LL_MASK | EP_LL_COLUMNS | EP_LL_EXPONENTS,
};

/*
 * Words that the net writes may be across PCIe, and a hundred warps polling them leave no bandwidth for what they wait
 * for (a dispatch of one token took 1.4 ms). So of all warps that wait for words of one kind one at a time reads them,
 * all of that kind at once, and publishes what has changed in the own control page, which the others poll.
 */
enum ep_ll_words {
	EP_LL_SIGNALS,
	EP_LL_ACKS_0,
	EP_LL_ACKS_1,
	EP_LL_CLEANS,
	EP_LL_BARRIERS,
	EP_LL_STEPS,
	EP_LL_COUNTED,
	EP_LL_WORDS
};

#define EP_LL_ALONE __attribute__((aligned(128)))

/* Counters that all warps update have a line each: in shared lines they cost 0.2 us of 13 in combine, and 0.4 of 25 in
 * a graph of both operations. */
struct ep_ll_state {
	uint64_t epoch;	  /* operations begun */
	uint64_t used[2]; /* the last epoch that used each buffer */
	uint32_t busy[2]; /* a staged operation holds the buffer */
	/* Far ranks have sent no ack for the buffer's last operation: their next signal says as much. */
	uint32_t implied[2];
	uint32_t opens; /* with far ranks: launches that have ended, as in struct ep_cmd_open */
	/* Zero between launches, like the arrays after this struct (ll_arrays) but base[] and src_rows[]: */
	uint32_t send_ticket EP_LL_ALONE;
	uint32_t near_ticket EP_LL_ALONE; /* with far ranks: of the items for near ones */
	uint32_t send_done EP_LL_ALONE;
	uint32_t send_far; /* the same of what goes to far ranks */
	uint32_t counted;  /* (token, k) whose rows for far ranks are in early_rows[] */
	uint32_t count_ticket;
	uint32_t recv_ticket EP_LL_ALONE;
	uint32_t listed EP_LL_ALONE;
	uint32_t listed_far;
	uint32_t claimed; /* tokens, by the part of a dispatch for far ranks */
	uint32_t left EP_LL_ALONE;
	uint32_t self_ready EP_LL_ALONE; /* fill[] holds this rank's own rows */
	uint32_t errors;		 /* not reset: the first failure is kept */
	uint32_t behind; /* with masks: the others continued without this rank; only a dispatch may follow */
	uint64_t cleans; /* mask cleans this rank knows of */
	uint32_t looking[EP_LL_WORDS]; /* locks: held while reading words that the net writes */
	uint32_t ended;		       /* not reset: number of the last counted launch that has ended */
	uint64_t barriers;	       /* number of the last; begins anew with every clean, of which all ranks know */
	uint64_t broken; /* with masks: the failed word of this launch; the one in the control page may be another's */
};
EP_SIZE_IS(ep_ll_state, 1024);

/* A row this rank holds for another: where it is in the expert's tensor; home rank, slot and token there. */
struct ep_ll_entry {
	uint32_t row;
	uint32_t home;
	uint32_t slot;
	uint32_t token;
};
EP_SIZE_IS(ep_ll_entry, 16);

/* `come` rows return from a far rank, from slot `from` of this rank's window on; `rows` return to it, from slot `to` of
 * its window on, by the entries from `listed` on. With masks both slots are 0: a writer has slots of its own. */
struct ep_ll_back {
	uint32_t from, come;
	uint32_t to, rows;
	uint32_t listed;
	uint32_t pad;
};
EP_SIZE_IS(ep_ll_back, 24);

/* Needs no clearing: staged counts only if it is the handle's own number, which is random. */
struct ep_ll_handle {
	uint64_t epoch;	 /* of the staged operation */
	uint64_t staged; /* the handle's number while a send half waits for its receive half */
	uint32_t buffer;
	uint32_t rows;	   /* entries in the list, */
	uint32_t far_rows; /* and at its end those of far ranks, the first last; each rank's together, by number */
	uint32_t pad;
};
EP_SIZE_IS(ep_ll_handle, 32);

/* Words of the head of a source's area; the rows per local expert follow them. */
enum ep_ll_head {
	EP_LL_ROWS,
	EP_LL_BACK_AT, /* a far source: where the rows that return to it begin in its window, */
	EP_LL_BACK,    /* and how many there are; */
	EP_LL_EACH,    /* rows to a step; 0: there are none */
	EP_LL_COUNTS = 4,
};

/* Rows for a far rank that one put carries: an engine needs as long for a row as for many. Few rows in host memory go
 * alone, unless there is but one: a CPU may have to copy them, and begins earlier. */
#define EP_LL_JOIN 8u
#define EP_LL_JOIN_MAX 64u
#define EP_LL_FEW 32u

/* Head of a row of a dispatch; expert-major: followed by entries {local expert, position, k and, above it, the row's
 * number among those that return to a far source}. */
#define EP_LL_K_BITS 12u
#define EP_LL_K_MASK ((1u << EP_LL_K_BITS) - 1)
struct ep_ll_row_head {
	uint32_t token;
	uint32_t count; /* expert-major: entries; rank-major: the first k routed to this rank */
	uint32_t pad[2];
};
EP_SIZE_IS(ep_ll_row_head, 16);

/* Sizes that follow from the group and the handle; the same on all ranks except for rank. */
struct ep_ll_shape {
	uint32_t rank, nranks;
	uint32_t experts, per_rank; /* E, El */
	uint32_t tmax, topk;
	uint32_t fan;	 /* min(topk, per_rank): most rows of a token on one rank */
	uint32_t masked; /* the group has masks: slots by writer */
};
EP_SIZE_IS(ep_ll_shape, 32);

struct ep_ll_args {
	struct ep_ll_shape shape;
	struct ep_ll_state *state;
	struct ep_ll_handle *handle;
	struct ep_ll_entry *list; /* [nranks * tmax * fan] rows of other ranks */
	int32_t *home_row;	  /* [tmax][topk] the row of (token, k) if it is on this rank, or -1 */
	/* [tmax][topk] with masks: the slot to which the row of (token, k) returns, or EP_LL_UNSENT; of a far rank: its
	 * number */
	uint32_t *sent_slot;
	struct ep_ll_back *back; /* [nranks] of far ranks */
	/* [tmax] with EP_LL_MANY: the tokens, about in the order in which their rows return */
	uint32_t *order;
	uint8_t *const *window;	 /* [nranks], in device memory */
	uint8_t *const *control; /* [nranks], in device memory */
	uint8_t *mine;		 /* this rank's own control page */
	uint64_t near_ranks;	 /* of the first EP_LL_BITS ranks, as bits: control[] has them, too */
	struct ep_far far;
	uint64_t number; /* the handle's */
	struct ep_kernel_report *report;
	uint32_t *async;       /* pinned: enum ep_async_flag */
	const uint64_t *abort; /* pinned */
	const uint64_t *gone;  /* pinned [nranks]: with masks, dead ranks */
	uint64_t timeout_ns;
	uint64_t buffer_bytes; /* from one buffer to the other */

	const void *topk_idx;	   /* [tokens][topk] */
	const float *topk_weights; /* dispatch rank-major: sent along; combine expert-major: the factors; else NULL */
	const uint8_t *in;	   /* dispatch: tokens; combine: the experts' rows */
	const uint8_t *in_scales;  /* QUANT_FWD */
	uint8_t *out;		   /* dispatch: rows; combine: tokens */
	uint8_t *out_scales;
	float *out_weights;   /* rank-major */
	int32_t *out_idx;     /* rank-major */
	int32_t *out_counts;  /* dispatch: rows per expert or per source rank; may be NULL */
	uint64_t *waited;     /* [nranks] ns waited for each source are added; may be NULL */
	uint32_t tokens;      /* of this rank */
	uint32_t flags;	      /* enum ep_ll_flag */
	uint32_t dtype;	      /* combine: enum ep_num */
	uint32_t hidden;      /* elements of a row, where the kernel needs them */
	uint32_t in_bytes;    /* dispatch: bytes of an input token */
	uint32_t row_bytes;   /* bytes of a token in the window and in the output */
	uint32_t scale_bytes; /* likewise of its scales; 0: none */
	uint32_t row_pitch;   /* from row to row in the window */
	uint32_t stage;	      /* bytes of shared memory per warp for gx_bulk */
	uint32_t counted;     /* number of the launch, for state->ended; 0: captured, not counted */
};

enum ep_ll_mask_op {
	EP_LL_MASK_QUERY,  /* out[r] = 1 active, 0 masked */
	EP_LL_MASK_UPDATE, /* from bits: 1 active */
	EP_LL_MASK_CLEAN,
	EP_LL_MASK_JUMP,  /* before a dispatch: catch up with a clean that this rank missed */
	EP_LL_MASK_CHECK, /* before a combine: a rank that is behind has nothing to combine */
	EP_LL_BARRIER,
};

#define EP_LL_BITS 64u

/* Blocks that sum a token between them at most: a multiprocessor loads little at a time, above all across PCIe. */
#define EP_LL_PARTS 4u

#define EP_LL_MASK_BITS 16384u /* ranks per launch of query and update */

struct ep_ll_mask_args {
	struct ep_ll_args ll; /* of the group: without handle and tensors */
	uint32_t op;
	uint32_t first, count; /* query, update: the ranks this launch covers */
	uint32_t pad;
	int32_t *out;
	uint32_t bits[EP_LL_MASK_BITS / 32];
};

/* Of a handle whose dispatch has been received. */
struct ep_ll_source_args {
	struct ep_ll_args ll;
	int32_t *tokens; /* [per_rank][nranks * tmax] the token of a row at its source; rows past the count untouched */
	int64_t *ranges; /* [per_rank][nranks] first row << 32 | rows */
};

#define EP_LL_UNSENT UINT32_MAX

#define EP_LL_LINE 64u /* a signal has a cache line of its own: on the CPU it would be falsely shared */

EP_BOTH uint64_t ep_ll_pad(uint64_t bytes)
{
	return (bytes + 15) / 16 * 16;
}

/* Rows of a dispatch, and the tokens in them, begin a line of a GPU's memory: others take longer to write. */
EP_BOTH uint64_t ep_ll_align(uint64_t bytes)
{
	return (bytes + 127) / 128 * 128;
}

/* control page */
EP_BOTH uint64_t ep_ll_signal_at(uint32_t source)
{
	return (uint64_t)source * EP_LL_LINE;
}

EP_BOTH uint64_t ep_ll_ack_at(uint32_t nranks, uint32_t buffer, uint32_t rank)
{
	return (uint64_t)(nranks * (1 + buffer) + rank) * EP_LL_LINE;
}

EP_BOTH uint64_t ep_ll_failed_at(uint32_t nranks)
{
	return (uint64_t)nranks * 3 * EP_LL_LINE;
}

/* Two words each: the epoch, then the clean's number, written last. 16 bytes apart, so that a signal can address it. */
#define EP_LL_CLEAN_NUMBER 16u

EP_BOTH uint64_t ep_ll_clean_at(uint32_t nranks, uint32_t source)
{
	return ep_ll_failed_at(nranks) + (uint64_t)(1 + source) * EP_LL_LINE;
}

EP_BOTH uint64_t ep_ll_jump_at(uint32_t nranks, uint32_t source)
{
	return ep_ll_clean_at(nranks, nranks + source);
}

EP_BOTH uint64_t ep_ll_barrier_at(uint32_t nranks, uint32_t source)
{
	return ep_ll_clean_at(nranks, 2 * nranks + source);
}

/* With many rows: the put that carries this part of a far rank's rows has come. A line per source. In a group of more
 * ranks than this there are none: a look would read too many lines, and a rank has few rows there. */
#define EP_LL_STEPS_EACH 8u
#define EP_LL_STEPS_RANKS 64u

EP_BOTH uint64_t ep_ll_step_at(uint32_t nranks, uint32_t source, uint32_t step)
{
	return ep_ll_clean_at(nranks, 3 * nranks + source) + (uint64_t)step * 8;
}

/* Of a dispatch with many rows: the head of a far source's area has come, before its rows. */
EP_BOTH uint64_t ep_ll_counted_at(uint32_t nranks, uint32_t source)
{
	return ep_ll_clean_at(nranks, 4 * nranks + source);
}

EP_BOTH uint64_t ep_ll_control_size(uint32_t nranks)
{
	return ep_ll_counted_at(nranks, nranks);
}

/* far page: 16 words to a line of 128 bytes, since a GPU reads it by lines across PCIe. Words of one kind begin a line.
 */
#define EP_LL_FAR_LINE 128u

EP_BOTH uint64_t ep_ll_far_lines(uint64_t words)
{
	return (words * 8 + EP_LL_FAR_LINE - 1) / EP_LL_FAR_LINE * EP_LL_FAR_LINE;
}

/* Where the word at an offset of the control page is in the far page. */
EP_BOTH uint64_t ep_ll_far_at(uint32_t nranks, uint64_t at)
{
	uint64_t line = at / EP_LL_LINE, kind = ep_ll_far_lines(nranks), pairs = 3 * kind + EP_LL_FAR_LINE;
	uint64_t steps = ep_ll_step_at(nranks, 0, 0), counted = ep_ll_counted_at(nranks, 0);

	if (line <= 3ull * nranks)
		return line / nranks * kind + line % nranks * 8;
	if (at >= counted) /* after all steps, in whole lines of the page */
		return pairs + ep_ll_far_lines(6ull * nranks) + ep_ll_far_lines((counted - steps) / 8) +
		       (at - counted) / EP_LL_LINE * 8;
	if (at >= steps)
		return pairs + ep_ll_far_lines(6ull * nranks) + at - steps;
	/* Two words each. */
	return pairs + (line - 3ull * nranks - 1) * 16 + (at % EP_LL_LINE) / 2;
}

EP_BOTH uint64_t ep_ll_far_size(uint32_t nranks)
{
	return ep_ll_far_lines(ep_ll_far_at(nranks, ep_ll_control_size(nranks)) / 8);
}

/* The kind of a word that is waited for; only a clean's number is waited for, not its epoch. */
EP_BOTH uint32_t ep_ll_words_of(uint32_t nranks, uint64_t at)
{
	uint64_t line = at / EP_LL_LINE;

	if (at >= ep_ll_counted_at(nranks, 0))
		return EP_LL_COUNTED;
	if (at >= ep_ll_step_at(nranks, 0, 0))
		return EP_LL_STEPS;
	if (at >= ep_ll_barrier_at(nranks, 0))
		return EP_LL_BARRIERS;
	return line < 3ull * nranks ? (uint32_t)(line / nranks) : EP_LL_CLEANS;
}

/* dispatch */
EP_BOTH uint64_t ep_ll_source_head(const struct ep_ll_shape *s)
{
	return ep_ll_align(((uint64_t)EP_LL_COUNTS + s->per_rank) * 4);
}

EP_BOTH uint64_t ep_ll_row_head_bytes(const struct ep_ll_shape *s, uint32_t rank_major)
{
	return ep_ll_align(sizeof(struct ep_ll_row_head) +
			   (rank_major ? (uint64_t)s->topk * 8 : (uint64_t)s->fan * 12));
}

/* Everything that one source sends to one rank. */
EP_BOTH uint64_t ep_ll_area(const struct ep_ll_shape *s, uint64_t row_pitch)
{
	return ep_ll_source_head(s) + s->tmax * row_pitch;
}

/* combine */
EP_BOTH uint64_t ep_ll_combine_slots(const struct ep_ll_shape *s, uint32_t writers)
{
	return s->masked ? (uint64_t)writers * s->tmax * s->fan : (uint64_t)s->tmax * s->topk;
}

/* Puts that carry the rows for one rank, of whatever handle: no token has more rows there than it has experts. */
EP_BOTH uint64_t ep_ll_joins(const struct ep_ll_shape *s)
{
	return ((uint64_t)s->tmax * s->per_rank + EP_LL_JOIN - 1) / EP_LL_JOIN;
}

/* state: the struct and the arrays after it, in 32-bit words (ll_arrays); first src_ready in lines of its own, because
 * warps that poll it delay accesses to the rest of its line; far: the group has far ranks */
EP_BOTH uint64_t ep_ll_ready_words(uint32_t nranks)
{
	return ((uint64_t)nranks + 31) / 32 * 32;
}

EP_BOTH uint64_t ep_ll_state_size(const struct ep_ll_shape *s, uint32_t far)
{
	uint64_t words = ep_ll_ready_words(s->nranks) + 6 * (uint64_t)s->nranks + s->experts + s->per_rank +
			 (uint64_t)s->nranks * s->per_rank;
	uint64_t of_far = s->nranks * (2 + ep_ll_joins(s)) + s->experts;

	return sizeof(struct ep_ll_state) + (words + (far ? of_far : 0)) * 4;
}

/* handle */
EP_BOTH uint64_t ep_ll_list_room(const struct ep_ll_shape *s)
{
	return (uint64_t)s->nranks * s->tmax * s->fan;
}

/* shared memory: [warps] stages for gx_bulk, [warps] routings of a token, two sets of the block's terms of a sum */
EP_BOTH uint32_t ep_ll_route_bytes(const struct ep_ll_args *a)
{
	return (uint32_t)ep_ll_pad((uint64_t)a->shape.topk * 36);
}

EP_BOTH uint64_t ep_ll_terms_at(const struct ep_ll_args *a, uint32_t warps)
{
	return (uint64_t)warps * (a->stage + ep_ll_route_bytes(a));
}

EP_BOTH uint64_t ep_ll_terms_bytes(const struct ep_ll_args *a)
{
	return ep_ll_pad((uint64_t)a->shape.topk * 12 + 8);
}

EP_BOTH uint64_t ep_ll_shared_bytes(const struct ep_ll_args *a, uint32_t warps)
{
	return ep_ll_terms_at(a, warps) + 2 * ep_ll_terms_bytes(a);
}

#endif
