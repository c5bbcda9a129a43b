/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HT: many tokens, most bandwidth. One operation of a group at a time, numbered by the group's epoch.
 *
 *   routing   in handle_mem, made by Update: a token's distinct experts in ascending order, and the row for each.
 *   control   per source rank: lines of its words (struct ep_ht_line), then its counts per expert and per rank. Every
 *	       rank of the node writes there, so nothing in it is trusted: what indexes memory is checked first.
 *   lines     the lines of near ranks, in the state: addresses cannot be checked, so they are not taken from control.
 *   window    [meta], what accompanies a row on any path (flat: id and weight by position; expert-major: the weight),
 *	       then [stage], rows for tensors that cannot be accessed directly. In an Update across nodes: the counts
 *	       of this rank and of its clients, which its node reads there.
 *   state     private to this rank, advanced by the kernels; counters and arrays after it are scratch of a launch.
 *
 * A flat row is one (token, rank); its number on the rank is base of the source + ordinal of the token. Expert-major
 * rows are numbered within the zones of their experts; the flat number is then the row's index in the stage.
 */
#ifndef EP_KERNELS_ARGS_HT_H
#define EP_KERNELS_ARGS_HT_H

#include "kernels/ht/args_across.h"
#include "kernels/op/args.h"

enum ep_ht_flag {
	EP_HT_EXPERT_MAJOR = 1 << 0, /* else flat */
	EP_HT_IDX32 = 1 << 1,	     /* topk_idx of Update is int32, else int64 */
	EP_HT_GLOBAL = 1 << 2,	     /* out_idx holds global expert ids */
	EP_HT_BACKWARD = 1 << 3,
	EP_HT_DROP = 1 << 4,	/* rows above capacity are dropped; else an error */
	EP_HT_STAGE = 1 << 5,	/* never access another rank's tensors */
	EP_HT_COUNT64 = 1 << 6, /* counters are int64, else int32 */
	EP_HT_TOTAL64 = 1 << 7,
	EP_HT_IN_PLACE = 1 << 8, /* flat: ids and weights in the columns of their source */
	EP_HT_BARE = 1 << 9,	 /* barrier: no handle has been made yet, so there is no window */
};

#define EP_HT_NONE 0xffffffffu	      /* no row: dropped, or no more experts */
#define EP_HT_MAGIC 0x414e59455048ull /* handle_mem holds a routing */
#define EP_HT_HERE 16u		      /* ranks whose addresses are in the arguments */
#define EP_HT_CHUNKS 128u	      /* pieces in which tokens are counted */
#define EP_HT_BIASES 2u		      /* the most of a combine */

/* Where a tensor is, for another rank: its address for ranks of the same process and device, else an offset in an
 * allocation that they may have mapped. */
struct ep_place {
	uint64_t address;
	uint64_t id; /* of the owner's offer of the allocation; 0: cannot be mapped by other ranks */
	uint64_t offset;
};
EP_SIZE_IS(ep_place, 24);

/*
 * Other ranks' allocations that this rank has mapped, in pinned memory. A rank offers at most EP_REACH_SLOTS
 * allocations at a time: an offer's slot is its id % EP_REACH_SLOTS, and an id is never used again. So an offer has one
 * place in the table, and a kernel reads that one. Every change by the host is a new version (release, T1). The mapping
 * of an entry that was taken away stays until no kernel uses it: one that has seen a version after it (seen), or none
 * at all. Kernels request more in wanted[], a ring of EP_REACH_WANTED that the device produces.
 */
#define EP_REACH_SLOTS 256u
#define EP_REACH_WANTED 64u
#define EP_REACH_CAPTURED UINT32_MAX
struct ep_reach_entry {
	uint64_t id;   /* written last (release); 0: none */
	uint64_t base; /* address on this rank's device; 0: cannot be mapped here, do not request it again */
	uint64_t size;
	uint32_t since; /* the first version that has it */
	uint32_t pad;
};
EP_SIZE_IS(ep_reach_entry, 32);
struct ep_reach_want {
	uint64_t id; /* written last (release); 0: empty. The host resets it to 0 */
	uint32_t owner;
	uint32_t pad;
};
EP_SIZE_IS(ep_reach_want, 16);
struct ep_reach_table {
	uint32_t version;
	uint32_t pad1[15];
	uint32_t seen; /* by the kernels: version at the start of an operation, when every earlier one had ended */
	uint32_t pad2[15];
	struct ep_reach_want wanted[EP_REACH_WANTED];
	struct ep_reach_entry entry[]; /* [nranks][EP_REACH_SLOTS] */
};

/* The kernels' cache of the table, in device memory: an entry is read over PCIe once per version, which takes a
 * microsecond. */
#define EP_REACH_MEMO 32u /* per rank, at id % EP_REACH_MEMO */
struct ep_reach_memo {
	uint64_t id, base, size;
	uint32_t version; /* of the table when it was read */
	uint32_t pad;
};
EP_SIZE_IS(ep_reach_memo, 32);

/* The words of one source rank in another's control page, written by the source. In cache lines of their own. */
struct ep_ht_line {
	/* Published at the start of a dispatch (its outputs) or a combine (its inputs). */
	uint64_t entered; /* epoch, written last */
	struct ep_place tensor[2];
	uint64_t key; /* of the call: must match on all ranks; also published with counts */
	/* How the source accesses this rank's tensors: epoch * 2 + 1 through the window, epoch * 2 directly. */
	uint64_t way;
	uint64_t rows; /* of tensor[], published with it */
	uint64_t pad1[6];
	uint64_t meta; /* epoch: dispatch: [meta] is written; combine: rows are in the source's window */
	uint64_t pad2[7];
	uint64_t done; /* epoch: the source no longer accesses this rank's memory */
	uint64_t pad3[7];
	uint64_t counts; /* epoch: the source's counts are written */
	uint64_t pad4[7];
};
EP_SIZE_IS(ep_ht_line, 320);

struct ep_ht_state {
	uint64_t epoch;	  /* operations begun */
	uint64_t settled; /* the last operation that every rank was seen to be done with */
	/* Not reset: tensors of other ranks that were accessed in place, and through the window. */
	uint64_t direct, staged;
	/* Not reset: rows sent to other nodes, by dispatches and by combines. */
	uint64_t crossed[2];
	uint64_t updates; /* across nodes: Updates ended */
	/* Zero between launches: */
	uint32_t opened, ready; /* blocks that tried to open the operation; the opener's result: HT_GO or HT_STOP */
	uint32_t ticket[4], finished[4];
	uint32_t left;
	uint32_t errors;  /* not reset: the first failure is kept */
	uint32_t wants;	  /* not reset: requests made to the host */
	uint32_t version; /* not reset: of the reach table when the last operation began */
	uint32_t ended;	  /* not reset: number of the last counted launch that has ended */
	uint32_t looking; /* a lock: held while reading words that the net writes */
	uint32_t opens;	  /* across nodes: launches that have ended, as in struct ep_cmd_open */
	uint32_t pad;
};
EP_SIZE_IS(ep_ht_state, 128);

/* The head of handle_mem. */
struct ep_ht_handle {
	uint64_t magic; /* EP_HT_MAGIC: holds a complete routing */
	uint64_t key;	/* of the shape it was made for */
	uint64_t total; /* rows before any were dropped, padding included */
	uint32_t tokens, topk;
	uint32_t rows;	  /* used rows of this rank's tensor: flat rows, or the end of the last zone */
	uint32_t relayed; /* across nodes: a dispatch has left what a combine relays */
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
	uint32_t capacity;	    /* rows of a receiving rank; eager: the most there can be */
	uint32_t alignment;	    /* of a zone, a power of two */
	uint32_t room;		    /* the largest topk the handle can hold; the pitch of its arrays is topk */
	uint32_t fan;		    /* min(room, El) */
	uint32_t tmax;
	uint32_t bins; /* counts of a rank */
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
	/* [nranks], in device memory: the lines of near ranks, whose addresses are valid here; NULL: not near */
	struct ep_ht_line *const *near;
	/* The first EP_HT_HERE of each: saves most of a microsecond at every use. */
	uint8_t *control_here[EP_HT_HERE];
	uint8_t *window_here[EP_HT_HERE];
	struct ep_ht_line *near_here[EP_HT_HERE];
	struct ep_ht_line *lines;     /* this rank's own, where near ranks write */
	struct ep_reach_table *reach; /* NULL: nothing is mapped */
	uint64_t timeout_ns;
	uint64_t routing_key; /* of the handle's shape on this rank */
	uint64_t call_key;    /* of what must be the same on all ranks */

	/* handle_mem */
	struct ep_ht_handle *handle;
	uint8_t *routed; /* arrays [tokens][topk], see struct ht; offsets depend on the topk of the last Update */
	struct ep_ht_run *from; /* [nranks] flat rows by source */
	struct ep_ht_run *zone; /* [nranks][per_rank] expert-major: rows by source and expert */
	struct ep_ht_run *area; /* [per_rank] expert-major: the published zones; filled[]: their rows without padding */
	uint32_t *filled;	/* [per_rank] */

	/* the tensors of the call */
	const void *topk_idx; /* Update */
	void *out_counts, *out_offsets, *out_total;
	const uint8_t *in;	  /* tokens */
	const uint8_t *in_scales; /* QUANT_FWD */
	const float *in_weights;  /* dispatch: [tokens][topk]; combine BWD: flat [rows][topk], expert-major [rows] */
	const uint8_t *bias[EP_HT_BIASES]; /* combine: [tokens], added to the sums at home, first */
	uint8_t *out;
	uint8_t *out_scales;
	float *out_weights;
	int64_t *out_idx;
	struct ep_place place[2]; /* of tensors that other ranks access: dispatch out and out_scales, combine in */
	uint32_t mapped;	  /* version of the reach table at the launch, or EP_REACH_CAPTURED */
	uint32_t tokens;
	uint32_t topk;			 /* 0: the handle's */
	uint32_t limit;			 /* rows of the tensor that other ranks access */
	uint32_t tail_idx, tail_weights; /* dispatch flat: rows of these that are written: valid ones, then -1 and 0 */
	uint32_t flags;			 /* enum ep_ht_flag */
	uint32_t dtype;			 /* combine: enum ep_num */
	uint32_t biases;		 /* combine */
	uint32_t hidden;
	uint32_t row_bytes, scale_bytes;
	uint32_t pitch;	     /* of a row in the stage, its head included */
	uint32_t stage;	     /* bytes of shared memory per warp for gx_bulk */
	uint32_t lane_bytes; /* and for its lists */
	uint64_t stage_at;   /* offset of [stage] in the window; [meta] is at 0 */
	uint32_t stage_rows; /* rows of this pitch that fit there */
	uint32_t counted;    /* number of the launch, for state->ended; 0: captured, not counted */
	struct ep_ht_across across;
};

/* control page: the failed word, then the lines, then the counts */
EP_BOTH uint64_t ep_ht_line_at(uint32_t source)
{
	return 64 + (uint64_t)source * sizeof(struct ep_ht_line);
}

EP_BOTH uint64_t ep_ht_counts_at(uint32_t nranks, uint64_t bins, uint32_t source)
{
	return ep_ht_line_at(nranks) + source * ((bins * 4 + 63) / 64 * 64);
}

/* state: after the struct, memo [nranks][EP_REACH_MEMO], to [nranks][2], serve, any and rows [nranks], then the bins'
 * bases, totals and counts by chunk (ht_arrays) */
EP_BOTH uint64_t ep_ht_state_size(uint32_t nranks, uint64_t bins)
{
	uint64_t per_rank = EP_REACH_MEMO * sizeof(struct ep_reach_memo) + 2 * sizeof(uint64_t) + 12;

	return sizeof(struct ep_ht_state) + nranks * per_rank + 4 * bins * (2 + EP_HT_CHUNKS);
}

/* window: the head of a staged row, expert-major: the number of output rows, and which */
EP_BOTH uint32_t ep_ht_head(const struct ep_ht_shape *s, uint32_t expert_major)
{
	return expert_major ? (4 + 4 * s->fan + 15) / 16 * 16 : 0;
}

/* handle_mem: bytes of one of the routed arrays */
EP_BOTH uint64_t ep_ht_routed_bytes(uint64_t tmax, uint64_t topk)
{
	return (tmax * topk * 4 + 127) / 128 * 128;
}

/* [meta] of a row, in the window: flat: the number of the rank's experts it is for, then {local id, weight} of each;
 * expert-major: the weight. In a backward combine, flat: a weight by position. */
EP_BOTH uint64_t ep_ht_meta_pitch(uint32_t topk, uint32_t expert_major)
{
	return expert_major ? 4 : 8 + 8 * (uint64_t)topk;
}

/* shared memory of a warp: for each of topk a destination and three words; for each bias an address */
EP_BOTH uint64_t ep_ht_list_bytes(uint32_t topk, uint32_t biases)
{
	return ((uint64_t)topk * 20 + (uint64_t)biases * 8 + 15) / 16 * 16;
}

/* Update instead: seven words for each of topk of a batch of tokens, then, where it fits, the counts by bin */
#define EP_HT_IDS 256u
EP_BOTH uint32_t ep_ht_batch(uint32_t topk)
{
	return topk < EP_HT_IDS ? EP_HT_IDS / topk : 1;
}

EP_BOTH uint64_t ep_ht_sort_bytes(uint32_t topk)
{
	return ((uint64_t)ep_ht_batch(topk) * topk * 28 + 15) / 16 * 16;
}

/* shared memory of a block: the addresses of each rank's tensors and window, and the rows there */
EP_BOTH uint64_t ep_ht_table_bytes(uint32_t nranks)
{
	return ((uint64_t)nranks * 28 + 31) / 16 * 16;
}

#endif
