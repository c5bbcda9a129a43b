/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that has the secret and lies: the others neither crash nor grow, and name it. */
#include <criterion/criterion.h>

#include <sys/resource.h>

#include "liar.h"
#include "plugin/boot/notice.h"
#include "plugin/boot/topo.h"
#include "ranks.h"

TestSuite(boot_lies, .timeout = 60);

/* Rank all->arg is the liar, in this process; the others are processes, whose crash would show. */
static struct ep_boot *scene(struct ranks *all)
{
	struct ep_boot *liar;

	all->timeout_ms = 10000;
	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	for (int i = 0; i < all->n; i++)
		if (i != all->arg)
			cr_assert_gt(rank_fork(&all->rank[i], rank_life), 0);
	liar = liar_new(&all->id, all->arg, all->n, all->survive);
	cr_assert(liar_meet(liar, &all->id), "%s", liar->why);
	return liar;
}

static bool ended(const struct rank *r)
{
	siginfo_t info = { .si_pid = 0 };

	return !waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid;
}

static void is_blamed(const struct ranks *all, int i, const char *what)
{
	char who[16];

	snprintf(who, sizeof(who), "rank %d", all->arg);
	cr_expect(strstr(all->rank[i].why, who) && strstr(all->rank[i].why, what), "rank %d: %s", i, all->rank[i].why);
}

/* ---- the address, by which the mesh is repaired ---- */

static void note_gone(void *ctx, int rank, struct ep_blame blame, const char *why)
{
	struct rank *me = ctx;

	(void)blame;
	(void)why;
	me->gone[me->ngone++ % 8] = rank;
}

/* 3 is no neighbour of 0, and connects to it once 4 and 5 are dead. */
static void repair(struct rank *me)
{
	if (me->rank >= 4)
		kill(getpid(), SIGKILL);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	RANK_EXPECT(me, !ep_boot_alive(me->boot, 0) && !ep_boot_alive(me->boot, 4) && !ep_boot_alive(me->boot, 5));
	for (int i = 0; i < me->ngone; i++)
		RANK_EXPECT(me, me->gone[i] < 1 || me->gone[i] > 3);
}

static void address_lies(struct ep_peer (*lie)(struct ep_peer self))
{
	struct ranks *all = ranks_new(6, repair);
	struct ep_peer peers[6], mine;
	struct ep_boot *liar;

	all->survive = true;
	all->gone = note_gone;
	liar = scene(all);
	mine = lie(liar->self);
	liar_gather(liar, &mine, sizeof(mine), peers); /* an error if the others are faster to find out */
	for (struct ep_conn *c = liar->loop.conns, *next; c; c = next) {
		next = c->next;
		if (c->state == EP_CONN_LISTEN) /* it cannot be reached, but is not dead */
			ep_loop_drop(&liar->loop, c);
	}
	LIAR_WHILE(liar, !ended(&all->rank[3]));
	liar_free(liar);
	cr_expect_eq(ranks_reap(all, SIGKILL), 0);
	for (int i = 1; i < 4; i++)
		cr_expect_eq(all->rank[i].bad, 0);
	ranks_free(all);
}

static struct ep_peer another_rank(struct ep_peer self)
{
	self.rank = 0x41414141;
	return self;
}

static struct ep_peer too_many(struct ep_peer self)
{
	self.naddr = 255;
	return self;
}

static struct ep_peer no_family(struct ep_peer self)
{
	self.addr[0].family = 9;
	return self;
}

Test(boot_lies, an_address_of_another_rank)
{
	address_lies(another_rank);
}

Test(boot_lies, an_address_that_is_none)
{
	address_lies(too_many);
	address_lies(no_family);
}

/* ---- blocks ---- */

static long resident_kib(void)
{
	struct rusage use;

	getrusage(RUSAGE_SELF, &use);
	return use.ru_maxrss;
}

static void wait_then_gather(struct rank *me)
{
	me->stage = 1;
	UNTIL(me->all->stage == 1);
	rank_note(me, ep_boot_barrier(me->boot));
	RANK_EXPECT(me, resident_kib() < 128 << 10);
}

/* 512 MiB of a block that would be a terabyte, to a rank that has not begun the collective. */
Test(boot_lies, a_block_without_end)
{
	static uint8_t piece[EP_FRAME_MAX];
	struct ranks *all = ranks_new(2, wait_then_gather);
	struct ep_boot *liar = scene(all);
	struct ep_frame f = { .type = EP_F_BLOCK, .bytes = sizeof(piece), .total = 1ull << 40 };

	for (; f.index < 8192 && liar->state[1] == EP_RANK_ALIVE; f.index++) {
		liar_say(liar, &f, piece);
		LIAR_WHILE(liar, liar->loop.conns->out.count > 16);
	}
	all->stage = 1;
	LIAR_WHILE(liar, !ended(&all->rank[1]));
	cr_expect_eq(ranks_reap(all, 0), 0);
	cr_expect_eq(all->rank[1].rc, -EP_EREMOTE);
	cr_expect_eq(all->rank[1].bad, 0);
	is_blamed(all, 1, "protocol");
	liar_free(liar);
	ranks_free(all);
}

Test(boot_lies, what_no_block_can_be_is_an_error_of_the_caller_too)
{
	struct ranks *all = ranks_new(1, NULL);

	cr_assert_eq(ep_boot_id_create(&all->id), 0);
	cr_assert_eq(rank_open(&all->rank[0]), 0);
	cr_expect_eq(ep_boot_allgather(all->rank[0].boot, all, (64 << 20) + 1, all), -EP_EARG);
	ep_boot_close(all->rank[0].boot);
	ranks_free(all);
}

/* ---- notices ---- */

/* Every pair of 100 ranks. */
Test(boot_lies, lost_pairs_without_end)
{
	struct ep_boot_id id = { .port = 0 };
	struct ep_boot *b = liar_new(&id, 7, 100, true);
	struct ep_frame f = { .type = EP_F_PARTED };
	uint32_t n = 0;

	for (f.rank = 0; f.rank < 100; f.rank++)
		for (f.seq = 0; f.seq < 100; f.seq++)
			ep_notice_parted(b, &f, "lost", NULL);
	for (const struct ep_blob *blob = b->notices; blob; blob = blob->next)
		n++;
	cr_expect(n >= 64 * 64 && n < 5000, "%u notices", n);
	liar_free(b);
}

static void gather_on(struct rank *me)
{
	rank_note(me, 0);
	for (int i = 0; i < 1000 && !me->rc; i++) {
		rank_note(me, ep_boot_barrier(me->boot));
		nap_ms(1);
	}
}

/* One frame, which every other rank must answer for with an error that names the liar. */
static void says(struct ep_frame f, const char *text, const char *what)
{
	struct ranks *all = ranks_new(3, gather_on);
	struct ep_boot *liar = scene(all);

	f.bytes = (uint32_t)strlen(text);
	liar_say(liar, &f, text);
	LIAR_WHILE(liar, !ended(&all->rank[1]) || !ended(&all->rank[2]));
	cr_expect_eq(ranks_reap(all, 0), 0);
	for (int i = 1; i < 3; i++) {
		cr_expect_eq(all->rank[i].rc, -EP_EREMOTE, "rank %d: %d", i, all->rank[i].rc);
		is_blamed(all, i, what);
		for (const char *c = all->rank[i].why; *c; c++)
			cr_expect(*c >= ' ' && *c <= '~', "%#x in a message", *c);
	}
	liar_free(liar);
	ranks_free(all);
}

Test(boot_lies, text_is_escaped)
{
	says((struct ep_frame){ .type = EP_F_GONE, .err = EP_EREMOTE }, "rank 0 says \x1b[2Jgone\nFAKE",
	     "\\x1b[2Jgone\\x0aFAKE");
}

Test(boot_lies, an_error_that_is_none)
{
	says((struct ep_frame){ .type = EP_F_GONE, .err = 40000 }, "rank 0 gave up", "gave up");
}

Test(boot_lies, a_farewell_from_the_future)
{
	says((struct ep_frame){ .type = EP_F_BYE, .seq = UINT64_MAX }, "", "protocol");
	says((struct ep_frame){ .type = EP_F_LEFT, .rank = 1, .seq = 77 }, "", "protocol");
}

/* ---- topology ---- */

static void find_topology(struct rank *me)
{
	struct ep_topo topo;

	if (rank_note(me, ep_topo_build(me->boot, me->rank, me->all->n, &(struct ep_topo_dev){ 0 }, &topo)))
		return;
	me->stage = topo.rank[0].pid_rank == topo.rank[me->rank].pid_rank ? 1 : 2;
	ep_topo_free(&topo);
}

/* Waits for the card of rank 1 and sends a copy of it. */
static void card_copy(struct ep_boot *liar)
{
	struct ep_block *theirs = &liar->gather.slot[0].block[1];
	uint8_t card[1024], all[2 * 1024];
	size_t n;

	cr_assert(LIAR_WHILE(liar, !theirs->head));
	n = theirs->head->frame.total;
	cr_assert_leq(n, sizeof(card));
	memcpy(card, theirs->head->body, n);
	cr_assert(liar_gather(liar, card, n, all));
}

static void topology_lies(int home, int rc, int stage)
{
	struct ranks *all = ranks_new(2, find_topology);
	struct ep_boot *liar = scene(all);
	int homes[2];

	card_copy(liar);
	cr_expect(liar_gather(liar, &home, sizeof(home), homes));
	LIAR_WHILE(liar, !ended(&all->rank[1]));
	cr_expect_eq(ranks_reap(all, 0), 0);
	cr_expect_eq(all->rank[1].rc, rc, "%d: %s", all->rank[1].rc, all->rank[1].why);
	if (rc)
		is_blamed(all, 1, "topology");
	cr_expect_eq(all->rank[1].stage, stage);
	liar_free(liar);
	ranks_free(all);
}

/* With the pid, the cookie and the token of rank 1: it must not take pointers of rank 0 for its own. */
Test(boot_lies, a_copied_process_is_another_process)
{
	topology_lies(0, 0, 2);
}

Test(boot_lies, a_home_that_is_no_rank)
{
	topology_lies(77, -EP_EREMOTE, 0);
	topology_lies(-5, -EP_EREMOTE, 0);
	topology_lies(1, -EP_EREMOTE, 0);
}
