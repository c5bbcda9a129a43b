/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short steps at the start of an HT operation, on a GPU and on the CPU, by the tokens and nodes of a group: they
 * leave half of a channel's slots to the others, and a group of 128 tokens has slots for all its steps. Every row is in
 * one step.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/gx/gx.h"
#include "kernels/ht/across.h"
#include "plugin/ht/nodes.h"
#include "test/kernels/kernel_check.h"

#define ROW 4096u

static const struct {
	uint32_t kind, others, tokens, slots;
	uint32_t ramp[2], steps[2]; /* of a dispatch and a combine; steps with all tokens */
} rows[] = {
	{ EP_DEV_CUDA, 1, 32, 8, { 1, 1 }, { 5, 5 } },	      { EP_DEV_CUDA, 1, 128, 8, { 1, 1 }, { 8, 8 } },
	{ EP_DEV_CUDA, 1, 512, 17, { 2, 2 }, { 24, 24 } },    { EP_DEV_CUDA, 1, 8192, 256, { 16, 32 }, { 313, 369 } },
	{ EP_DEV_CUDA, 3, 128, 8, { 1, 1 }, { 8, 8 } },	      { EP_DEV_CUDA, 3, 8192, 85, { 6, 10 }, { 278, 292 } },
	{ EP_DEV_CUDA, 31, 8192, 8, { 1, 1 }, { 260, 260 } }, { EP_DEV_HOST, 1, 512, 9, { 1, 1 }, { 12, 12 } },
	{ EP_DEV_HOST, 1, 8192, 16, { 1, 1 }, { 132, 132 } },
};

static void ramp_check(size_t i, int combine, const struct ep_ht_nodes *nodes)
{
	struct ht ht = { .x = { .ramp = nodes->span.ramp[combine], .sizes = EP_HT_SIZES } };
	uint32_t steps;

	ht.x.step_rows = (uint32_t)ep_ht_step_rows(nodes, ROW);
	steps = ht_step_of(&ht, rows[i].tokens - 1) + 1;
	CHECK(ht.x.ramp == rows[i].ramp[combine] && steps == rows[i].steps[combine],
	      "row %zu, %s: %u short steps of each size, %u steps", i, combine ? "combine" : "dispatch", ht.x.ramp,
	      steps);
	CHECK(2 * EP_HT_SIZES * ht.x.ramp <= nodes->span.steps, "row %zu: short steps take over half", i);
	for (uint32_t n = 0; n < steps; n++) {
		uint32_t first = ht_step_first(&ht, n), last = ht_step_first(&ht, n + 1) - 1;

		CHECK(ht_step_of(&ht, first) == n && ht_step_of(&ht, last) == n && last - first < ht.x.step_rows,
		      "row %zu: step %u has rows %u to %u", i, n, first, last);
	}
}

static void row_check(size_t i)
{
	struct ep_topo_rank rank[2] = { { .dev.kind = EP_DEV_HOST }, { .dev.kind = (int32_t)rows[i].kind } };
	struct ncclEpGroup *group = calloc(1, sizeof(*group));
	struct ep_ht_nodes nodes = { .span.others = rows[i].others };

	if (!group)
		exit(1);
	group->nranks = 2;
	group->topo.rank = rank;
	group->cfg.max_dispatch = rows[i].tokens;
	group->cfg.max_token_bytes = ROW;
	ep_ht_steps_find(group, &nodes);
	free(group);
	CHECK(nodes.span.steps == rows[i].slots, "row %zu: %u slots", i, nodes.span.steps);
	for (int combine = 0; combine < 2; combine++)
		ramp_check(i, combine, &nodes);
}

int main(void)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		row_check(i);
	return check_result("ht_ramp");
}
