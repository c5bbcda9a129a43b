/* SPDX-License-Identifier: Apache-2.0 */
/* Cards of the topology: whatever other ranks say, the result is in range, and only ranks of this process are in it. */
#include "plugin/boot/topo.c"

#include "fuzz.h"

#include "../boot/liar.h"

#define MOST 8

static struct ep_boot *own[2]; /* ranks 0 and 2 are in this process */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static const struct ep_boot_id id = { .port = 1 };

	(void)argc;
	(void)argv;
	fuzz_quiet();
	for (int i = 0; i < 2; i++) {
		own[i] = liar_new(&id, 2 * i, MOST, false);
		memset(&own[i]->token, 'a' + i, sizeof(own[i]->token));
		ep_local_add(own[i]);
	}
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	struct ep_topo_rank rank[MOST] = { { .node = 0 } };
	struct ep_topo topo = { .nranks = MOST, .rank = rank };
	struct card card[MOST] = { { .pid = 1 } };
	int home[MOST];

	for (int r = 0; r < MOST; r++) {
		card[r] = (struct card){ .pid = 1 };
		home[r] = (int)(feed_u8(&f) % 3) - 1;
		memset(&card[r].fds, 'c', sizeof(card[r].fds));
		if (r == 0 || r == 2)
			card[r].fds = own[r / 2]->token;
		else /* rank 0's are its own, and true */
			feed_patch(&f, &card[r], sizeof(card[r]));
		if (r == 1 || r == 3) /* they may copy ours, or guess */
			feed_bytes(&f, &card[r].fds, feed_u8(&f) % 17);
	}
	feed_patch(&f, home + 1, sizeof(home) - sizeof(home[0]));
	home[0] = 0;
	for (int r = 0; r < MOST; r++)
		card[r].local = ep_boot_is_local(own[0], r, &card[r].fds);
	if (check_alike(card, MOST) || check_homes(home, MOST))
		return 0;
	number(card, home, 0, &topo);
	MUST(topo.nodes >= 1 && topo.nodes <= MOST && topo.locals >= 1 && topo.locals <= MOST);
	for (int r = 0; r < MOST; r++) {
		MUST(rank[r].node >= 0 && rank[r].node < topo.nodes && rank[r].local >= 0 && rank[r].local < MOST);
		MUST(rank[r].pid_rank >= 0 && rank[r].pid_rank <= r);
		MUST((rank[r].pid_rank == rank[0].pid_rank) == (r == 0 || r == 2));
		MUST(ep_topo_blocks(&topo, r) >= 1 &&
		     (!rank[r].dev.sms || ep_topo_blocks(&topo, r) <= rank[r].dev.sms));
	}
	return 0;
}
