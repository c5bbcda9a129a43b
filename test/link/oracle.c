/* SPDX-License-Identifier: Apache-2.0 */
/* The model of bytes between nodes, against values computed by hand. Exit status 0 or 1. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "test/oracle/far.h"

static int errors;

static void is(const char *what, uint64_t got, uint64_t want)
{
	if (got == want)
		return;
	printf("FAILED %s: %" PRIu64 ", must be %" PRIu64 "\n", what, got, want);
	errors++;
}

static void splits(void)
{
	/* Ranks, nodes, ranks per node, whether that makes exactly this many nodes. */
	static const int rows[][4] = { { 4, 1, 0, 1 }, { 4, 2, 2, 1 }, { 4, 3, 2, 0 }, { 4, 4, 1, 1 }, { 8, 3, 3, 1 },
				       { 3, 2, 2, 1 }, { 1, 2, 1, 0 }, { 5, 4, 2, 0 }, { 4, 0, 0, 0 } };

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		is("ranks of a node", (uint64_t)far_split(rows[i][0], rows[i][1]), (uint64_t)rows[i][2]);
		is("a split", far_splits(rows[i][0], rows[i][1]), (uint64_t)rows[i][3]);
	}
	is("a neighbour is far", far_from(3, 4, 5), 0);
	is("the next node is far", far_from(3, 2, 3), 1);
	is("far in one node", far_from(0, 0, 7), 0);
}

/* Ranks 0 and 1 | 2 and 3, two experts each: rank 0 has 0 and 1, rank 1 2 and 3, and so on. */
static void bytes(enum ll_layout layout, const uint64_t *want)
{
	int64_t idx[] = { 4, 5, 0, /* both experts of rank 2, one own */
			  6, 6, 2, /* rank 3 twice the same, rank 1 */
			  4, 7, -1 /* ranks 2 and 3 */ };
	int64_t none[] = { -1, 8, 99, 1, 0, 1 }; /* two tokens that stay on rank 0 */
	struct ll_input in[4] = { { .t = 3, .idx = idx }, { 0 }, { .t = 2, .idx = none }, { 0 } };
	struct ll_shape shape = { .layout = layout,
				  .ranks = 4,
				  .experts = 8,
				  .topk = 3,
				  .tmax = 3,
				  .hidden = 5,
				  .token = NUM_F32,
				  .combine = NUM_BF16 };
	bool active[4] = { true, true, true, false };
	struct ll_expect expect;

	is("dispatch of rank 0", far_dispatch_bytes(&shape, in, NULL, 0, 2), want[0]);
	is("dispatch of rank 0, rank 3 masked", far_dispatch_bytes(&shape, in, active, 0, 2), want[1]);
	is("dispatch of a rank without tokens", far_dispatch_bytes(&shape, in, NULL, 1, 2), want[2]);
	is("dispatch in one node", far_dispatch_bytes(&shape, in, NULL, 0, 0), 0);
	for (int r = 0; r < 4; r++) {
		if (ll_expect_dispatch(&shape, in, NULL, r, &expect)) {
			errors++;
			return;
		}
		is("combine", far_combine_bytes(&shape, &expect, NULL, r, 2), want[3 + r]);
		ll_expect_free(&expect);
	}
}

int main(void)
{
	/*
	 * Counts: 16 + 2 * 4 bytes are a line of 128, to each of two far ranks. A row: head 16 and entries 2 * 12 or
	 * 3 * 8 are a line, 5 floats are 32: 160, that is two. Rank 0 sends two rows to rank 2 and two to rank 3. Back
	 * come rows of 16 bytes: expert-major three from rank 2 (4, 5 and 4) and two from rank 3, rank-major two and
	 * two; and what rank 2 sent to rank 0 is one token, with experts 1 and 0.
	 */
	static const uint64_t em[] = { 256 + 4 * 256, 128 + 2 * 256, 256, 2 * 16, 0, 3 * 16, 2 * 16 };
	static const uint64_t rm[] = { 256 + 4 * 256, 128 + 2 * 256, 256, 1 * 16, 0, 2 * 16, 2 * 16 };
	char net[FAR_NET_MAX];

	splits();
	bytes(LL_EXPERT_MAJOR, em);
	bytes(LL_RANK_MAJOR, rm);
	far_net("faulty", 5, net);
	is("a net by name", (uint64_t)strcmp(net, "faulty(loop):seed=5,reorder=128,delay=32"), 0);
	far_net("faulty(loop):dup=7", 5, net);
	is("a net as it is", (uint64_t)strcmp(net, "faulty(loop):dup=7"), 0);
	return errors != 0;
}
