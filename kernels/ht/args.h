/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT: many tokens, most bandwidth. One operation of a group at a time, numbered by the group's epoch.
 *
 *   routing   in handle_mem, made by Update: a token's distinct experts in ascending order, and the row each has got.
 *   control   per source rank: lines of its words (struct ep_ht_line), then its counts per expert and per rank.
 *   window    rows on their way where the user's tensor cannot be reached: [stage], and what goes with a row whatever
 *	       its way: [meta] (flat: id and weight by position; expert-major: the weight).
 *   state     this rank's own, advanced by the kernels; counters and arrays behind it are scratch of a launch.
 *
 * A flat row is one (token, rank); its number on the rank is base of the source + ordinal of the token. Expert-major
 * rows are numbered inside the zones of their experts; the flat number is then the row's place in the stage.
 */
#ifndef EP_KERNELS_ARGS_HT_H
#define EP_KERNELS_ARGS_HT_H

#include "kernels/op/args.h"

enum ep_ht_flag {
	EP_HT_EXPERT_MAJOR = 1 << 0, /* else flat */
	EP_HT_IDX32 = 1 << 1,	     /* topk_idx of Update is int32, else int64 */
	EP_HT_GLOBAL = 1 << 2,	     /* out_idx holds global expert ids */
	EP_HT_BACKWARD = 1 << 3,
	EP_HT_DROP = 1 << 4,	/* more rows than capacity: they are left out; else an error */
	EP_HT_STAGE = 1 << 5,	/* never touch another rank's tensors */
	EP_HT_COUNT64 = 1 << 6, /* counters are int64, else int32 */
	EP_HT_TOTAL64 = 1 << 7,
};

#define EP_HT_NONE 0xffffffffu	      /* no row: dropped, or no more experts */
#define EP_HT_MAGIC 0x414e59455048ull /* a handle_mem with a routing in it */
#define EP_HT_HERE 16u		      /* ranks whose addresses travel with the arguments */
#define EP_HT_CHUNKS 128u	      /* tokens are counted in so many pieces */

/* Where a tensor is, for another rank: the address for those of the same process and device, else the place inside an
 * allocation that they may have mapped. */
struct ep_place {
	uint64_t address;
	uint64_t id; /* of the allocation; 0: others cannot map it */
	uint64_t offset;
};
EP_SIZE_IS(ep_place, 24);

/* Allocations of other ranks that this one has mapped, in pinned memory. The host adds entries (count last, release)
 * and never changes one; kernels ask for more in wanted[], a ring of EP_REACH_WANTED whose producer is the device. */
#define EP_REACH_ENTRIES 256u
#define EP_REACH_WANTED 64u
#define EP_REACH_CAPTURED UINT32_MAX
struct ep_reach_entry {
	uint64_t id;
	uint64_t base; /* as this rank's device sees it */
	uint32_t owner;
	uint32_t pad;
};
EP_SIZE_IS(ep_reach_entry, 24);
struct ep_reach_want {
	uint64_t id; /* written last (release); 0: not there yet. The host sets it back to 0 */
	uint32_t owner;
	uint32_t pad;
};
EP_SIZE_IS(ep_reach_want, 16);
struct ep_reach_table {
	uint32_t count; /* entries that are there (release) */
	uint32_t pad[15];
	struct ep_reach_entry entry[EP_REACH_ENTRIES];
	struct ep_reach_want wanted[EP_REACH_WANTED];
};

/* What kernels remember of the table, in device memory: reading it over PCIe takes a microsecond an entry. */
#define EP_REACH_MEMO 8u /* per rank; the oldest goes */
struct ep_reach_memo {
	uint64_t id, base;
};
EP_SIZE_IS(ep_reach_memo, 16);

/* The words of one source rank in another's control page; the source writes them. Cache lines of their own. */
struct ep_ht_line {
	/* Published with the beginning of a dispatch (its outputs) or a combine (its inputs). */
	uint64_t entered; /* epoch, last */
	struct ep_place tensor[2];
	uint64_t key; /* of the call: all ranks must make the same; also published with counts */
	/* How the source will reach this rank's tensors: epoch * 2 + 1 through the window, epoch * 2 directly. */
	uint64_t way;
	uint64_t pad1[7];
	uint64_t meta; /* epoch: what goes with the rows is in the window; combine: rows are in the source's window */
	uint64_t pad2[7];
	uint64_t done; /* epoch: the source has ended all its business with this rank's memory */
	uint64_t pad3[7];
	uint64_t counts; /* epoch: the source's counts are there */
	uint64_t pad4[7];
};
EP_SIZE_IS(ep_ht_line, 320);

struct ep_ht_state {
	uint64_t epoch;	  /* operations begun */
	uint64_t settled; /* the last that every rank was seen to be done with */
	/* Zero between launches: */
	uint32_t opened, ready; /* the block that opens the operation; what it found is there for all */
	uint32_t ticket[4], finished[4];
	uint32_t left;
	uint32_t errors; /* not reset: the first failure stays */
	uint32_t wants;	 /* not reset: requests made to the host */
	uint32_t memos;	 /* not reset: places of the memo used so far */
	uint32_t mapped; /* not reset: entries of the reach table that were there when the last operation began */
	uint32_t pad;
};
EP_SIZE_IS(ep_ht_state, 80);

/* The head of handle_mem. */
struct ep_ht_handle {
	uint64_t magic; /* EP_HT_MAGIC: a routing is there, whole */
	uint64_t key;	/* of the shape it was made for */
	uint64_t total; /* rows before anything was dropped, padding included */
	uint32_t tokens, topk;
	uint32_t rows; /* of this rank's tensor that hold something: flat rows, or the end of the last zone */
	uint32_t pad;
};
EP_SIZE_IS(ep_ht_handle, 40);

/* A run of rows: those of one source, or of one source for one expert. */
struct ep_ht_run {
	uint32_t first, count;
};
EP_SIZE_IS(ep_ht_run, 8);

struct ep_ht_shape {
	uint32_t rank, nranks;
	uint32_t experts, per_rank; /* E, El */
	uint32_t capacity;	    /* rows of a receiving rank; UINT32_MAX: eager */
	uint32_t alignment;	    /* of a zone, a power of two */
	uint32_t room;		    /* the widest routing the handle holds: the pitch of its arrays is topk */
	uint32_t fan;		    /* min(room, El) */
	uint32_t tmax, pad;
};
EP_SIZE_IS(ep_ht_shape, 40);

struct ep_ht_args {
	struct ep_ht_shape shape;
	struct ep_ht_state *state;
	struct ep_kernel_report *report;
	uint32_t *async;	 /* pinned: enum ep_async_flag */
	const uint64_t *abort;	 /* pinned */
	uint8_t *mine;		 /* this rank's own control page */
	uint8_t *const *control; /* [nranks], in device memory */
	uint8_t *const *window;	 /* [nranks], in device memory */
	const uint8_t *near;	 /* [nranks], in device memory: 1: that rank's addresses are good here */
	/* The first of each, here: most of a microsecond saved at every use. */
	uint8_t *control_here[EP_HT_HERE];
	uint8_t *window_here[EP_HT_HERE];
	uint8_t near_here[EP_HT_HERE];
	struct ep_reach_table *reach; /* may be NULL: nothing is mapped */
	uint64_t timeout_ns;
	uint64_t routing_key; /* of the handle's shape on this rank */
	uint64_t call_key;    /* of what must be alike on all ranks */

	/* handle_mem */
	struct ep_ht_handle *handle;
	uint8_t *routed; /* [tokens][topk] five times, see struct ht: where depends on the topk of the last Update */
	struct ep_ht_run *from; /* [nranks] flat rows by source */
	struct ep_ht_run *zone; /* [nranks][per_rank] expert-major: rows by source and expert */
	struct ep_ht_run *area; /* [per_rank] expert-major: the published zones, and in filled[] what of them is rows */
	uint32_t *filled;	/* [per_rank] */

	/* the tensors of the call */
	const void *topk_idx; /* Update */
	void *out_counts, *out_offsets, *out_total;
	const uint8_t *in;	  /* tokens */
	const uint8_t *in_scales; /* QUANT_FWD */
	const float *in_weights;  /* dispatch: [tokens][topk]; combine BWD: flat [rows][topk], expert-major [rows] */
	uint8_t *out;
	uint8_t *out_scales;
	float *out_weights;
	int64_t *out_idx;
	struct ep_place place[2]; /* of what others reach: dispatch out and out_scales, combine in */
	uint32_t mapped;	  /* entries of the reach table there were at the launch, or EP_REACH_CAPTURED */
	uint32_t tokens;
	uint32_t topk;			 /* 0: as the handle says */
	uint32_t limit;			 /* rows of the tensor others reach */
	uint32_t tail_idx, tail_weights; /* dispatch flat: rows of these that are written: valid ones, then -1 and 0 */
	uint32_t flags;			 /* enum ep_ht_flag */
	uint32_t dtype;			 /* combine: enum ep_num */
	uint32_t hidden;
	uint32_t row_bytes, scale_bytes;
	uint32_t pitch;	     /* of a row in the stage, its head included */
	uint32_t stage;	     /* bytes of shared memory per warp for gx_bulk */
	uint32_t lane_bytes; /* and for its lists */
	uint64_t stage_at;   /* in the window, behind [meta] */
};

/* control page: failed word, then the lines, then the counts */
EP_BOTH uint64_t ep_ht_line_at(uint32_t source)
{
	return 64 + (uint64_t)source * sizeof(struct ep_ht_line);
}

/* Counts of a source: per expert, per rank. */
EP_BOTH uint64_t ep_ht_bins(uint32_t nranks, uint32_t experts)
{
	return (uint64_t)nranks + experts;
}

EP_BOTH uint64_t ep_ht_counts_at(uint32_t nranks, uint32_t experts, uint32_t source)
{
	return ep_ht_line_at(nranks) + source * ((ep_ht_bins(nranks, experts) * 4 + 63) / 64 * 64);
}

EP_BOTH uint64_t ep_ht_control_size(uint32_t nranks, uint32_t experts)
{
	return ep_ht_counts_at(nranks, experts, nranks);
}

/* state: behind the struct, memo [nranks][EP_REACH_MEMO], to [nranks][2], serve [nranks], then the bins' bases, totals
 * and counts by chunk */
EP_BOTH uint64_t ep_ht_state_size(uint32_t nranks, uint32_t experts)
{
	uint64_t per_rank = EP_REACH_MEMO * sizeof(struct ep_reach_memo) + 2 * sizeof(uint64_t) + 8;

	return sizeof(struct ep_ht_state) + nranks * per_rank + 4 * ep_ht_bins(nranks, experts) * (2 + EP_HT_CHUNKS);
}

/* window: the head of a staged row, expert-major: how many rows it becomes, and which */
EP_BOTH uint32_t ep_ht_head(const struct ep_ht_shape *s, uint32_t expert_major)
{
	return expert_major ? (4 + 4 * s->fan + 15) / 16 * 16 : 0;
}

/* handle_mem: bytes of one of the routed arrays */
EP_BOTH uint64_t ep_ht_routed_bytes(uint64_t tmax, uint64_t topk)
{
	return (tmax * topk * 4 + 127) / 128 * 128;
}

/* What goes with a row, in the window: flat: how many of the rank's experts it names, then {local id, weight} of each;
 * expert-major: the weight. On the way back, flat: a weight by position. */
EP_BOTH uint64_t ep_ht_meta_pitch(uint32_t topk, uint32_t expert_major)
{
	return expert_major ? 4 : 8 + 8 * (uint64_t)topk;
}

/* shared memory of a warp: for each of topk a destination and three words */
EP_BOTH uint64_t ep_ht_list_bytes(uint32_t topk)
{
	return ((uint64_t)topk * 20 + 15) / 16 * 16;
}

/* Update instead: six words for each of topk of some tokens, then where it fits the counts by bin */
#define EP_HT_IDS 256u
EP_BOTH uint32_t ep_ht_batch(uint32_t topk)
{
	return topk < EP_HT_IDS ? EP_HT_IDS / topk : 1;
}

EP_BOTH uint64_t ep_ht_sort_bytes(uint32_t topk)
{
	return ((uint64_t)ep_ht_batch(topk) * topk * 24 + 15) / 16 * 16;
}

/* and of a block: where each rank's tensors and window are */
EP_BOTH uint64_t ep_ht_table_bytes(uint32_t nranks)
{
	return (uint64_t)nranks * 24 + 16;
}

#endif
