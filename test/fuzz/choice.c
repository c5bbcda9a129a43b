/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other to agree on a net: lists, network devices, engines. */
#include "plugin/link/choose.c"

#include "fuzz.h"

#define RANKS 4

static struct ep_net net = { .name = "loop" };

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	fuzz_quiet();
	return 0;
}

static void lists(struct choice *choice, struct feed *f)
{
	struct wish all[RANKS];

	for (int r = 0; r < RANKS; r++) {
		all[r] = (struct wish){ .list = "loop|verbs|rails(loop:devices=2)|fabric:provider=tcp" };
		feed_patch(f, &all[r], sizeof(all[r]));
		feed_bytes(f, all[r].list, feed_u8(f) % 40);
		list_take(&all[r]);
	}
	if (names_alike(all, RANKS))
		MUST(list_count(all[0].list) == 1);
	if (!list_meet(choice, all, RANKS))
		MUST(list_count(choice->list) > 0 && strlen(choice->list) < sizeof(choice->list));
	choice->count = list_count(choice->list);
	if (choice->count)
		pass_over(choice, choice->list, all[1].list);
}

static void devices(struct feed *f)
{
	struct ep_nic_card all[RANKS];
	struct ep_nic_pick pick;

	for (int r = 0; r < RANKS; r++) {
		all[r] = (struct ep_nic_card){ .count = 1 + feed_u8(f) % EP_NICS, .placed = 1 };
		for (int i = 0; i < EP_NICS; i++)
			all[r].mark[i] = (uint64_t)i;
		feed_patch(f, &all[r], sizeof(all[r]));
	}
	for (int r = 0; r < RANKS; r++) {
		ep_nic_choose(all, RANKS, r, &pick);
		MUST(pick.count >= 1 && pick.count <= EP_NICS);
		for (int i = 0; i < pick.count; i++)
			MUST(pick.at[i] >= 0 && pick.at[i] < EP_NICS);
	}
	MUST(ep_nic_rails(all, RANKS) >= 1);
}

static void hellos(struct choice *choice, struct feed *f)
{
	struct hello all[RANKS];

	choice->link->props.ordered = 1;
	for (int r = 0; r < RANKS; r++) {
		all[r] = (struct hello){ .net = "loop", .ordered = 1, .imm_bits = 32, .ports = 1 + feed_u8(f) % 8 };
		if (r)
			feed_patch(f, &all[r], sizeof(all[r]));
	}
	if (!hello_judge(choice, all))
		MUST(choice->link->ports >= 1 && choice->link->ports <= EP_LINK_PORTS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	struct ep_link link = { .net = &net, .ctx = { .rank = 0, .nranks = RANKS } };
	struct choice choice = { .link = &link };

	switch (feed_u8(&f) % 3) {
	case 0:
		lists(&choice, &f);
		break;
	case 1:
		devices(&f);
		break;
	default:
		hellos(&choice, &f);
	}
	return 0;
}
