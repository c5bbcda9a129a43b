/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks share a GPU, and how many blocks each may launch. Every process has its own numbers for the GPUs of a
 * node, as under CUDA_VISIBLE_DEVICES; the GPUs are models: what a rank would tell of its device, without the device.
 */
#include <criterion/criterion.h>

#include "plugin/boot/topo.h"
#include "ranks.h"

TestSuite(boot_gpus, .timeout = 60);

#define N 8
#define KIND 1
#define SMS 132

/* What rank r says of its device. */
typedef struct ep_topo_dev (*describe_fn)(int r);

static struct ep_topo_dev gpu(int which, int ordinal)
{
	struct ep_topo_dev dev = { .kind = KIND, .ordinal = ordinal, .sms = SMS, .sms_all = SMS };

	memset(dev.uuid, 0x40 + which, sizeof(dev.uuid));
	snprintf(dev.pci, sizeof(dev.pci), "0000:%02x:00.0", 0x18 + which);
	return dev;
}

/* The GPU of a rank where eight ranks use four: 0 3 2 1 0 3 2 1. */
static int quarter(int r)
{
	return 3 * r % 4;
}

static struct ep_topo_dev one_visible(int r)
{
	return gpu(r, 0);
}

/* Ranks 0 and 4 share a GPU under the numbers 0 and 1, as all pairs; number 0 is another GPU in every process. */
static struct ep_topo_dev shuffled(int r)
{
	return gpu(quarter(r), r / 4);
}

static struct ep_topo_dev without_uuid(int r)
{
	struct ep_topo_dev dev = shuffled(r);

	memset(dev.uuid, 0, sizeof(dev.uuid));
	return dev;
}

/* Only some ranks have a driver that tells it: they compare by address. */
static struct ep_topo_dev some_uuids(int r)
{
	return r % 3 ? shuffled(r) : without_uuid(r);
}

static struct ep_topo_dev slices(int r)
{
	struct ep_topo_dev dev = gpu(r, 0);

	dev.sms = dev.sms_all = 16;
	snprintf(dev.pci, sizeof(dev.pci), "0000:18:00.0");
	return dev;
}

static struct ep_topo_dev nameless(int r)
{
	return (struct ep_topo_dev){ .kind = KIND, .ordinal = r % 2, .sms = SMS, .sms_all = SMS };
}

static bool same_rank(int a, int b)
{
	return a == b;
}

static bool same_quarter(int a, int b)
{
	return quarter(a) == quarter(b);
}

static bool any(int a, int b)
{
	return a >= 0 && b >= 0;
}

static bool same_number(int a, int b)
{
	return a % 2 == b % 2;
}

static const struct scene {
	const char *name;
	describe_fn describe;
	bool (*share)(int a, int b);
	unsigned blocks;
	bool (*share_threads)(int a, int b); /* of one process, where the numbers do count; NULL: as in processes */
	unsigned blocks_threads;
} scenes[] = {
	{ "each process sees one GPU as number 0", one_visible, same_rank, SMS, NULL, SMS },
	{ "shared under different numbers", shuffled, same_quarter, SMS / 2, NULL, SMS / 2 },
	{ "known by address only", without_uuid, same_quarter, SMS / 2, NULL, SMS / 2 },
	{ "some known by address only", some_uuids, same_quarter, SMS / 2, NULL, SMS / 2 },
	{ "MIG slices of one address", slices, same_rank, 16, NULL, 16 },
	{ "nothing known", nameless, any, SMS / N, same_number, SMS / 4 },
};

/* Its sharers as the other ranks see them: all compute from what was exchanged. */
static void exchange(struct rank *me)
{
	const struct scene *scene = &scenes[me->all->arg / 2];
	bool threads = me->all->arg % 2 && scene->share_threads;
	bool (*share)(int, int) = threads ? scene->share_threads : scene->share;
	struct ep_topo_dev mine = scene->describe(me->rank);
	struct ep_topo topo;

	if (rank_note(me, ep_topo_build(me->boot, me->rank, me->all->n, &mine, &topo)))
		return;
	for (int a = 0; a < N; a++) {
		for (int b = 0; b < N; b++)
			RANK_EXPECT(me, ep_topo_shares(&topo, a, b) == share(a, b));
		RANK_EXPECT(me, ep_topo_blocks(&topo, a) == (me->all->arg % 2 ? scene->blocks_threads : scene->blocks));
	}
	ep_topo_free(&topo);
}

Test(boot_gpus, sharers_of_processes)
{
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		struct ranks *all = ranks_new(N, exchange);

		all->arg = (int)(2 * i);
		cr_expect_eq(ranks_processes(all), 0, "%s", scenes[i].name);
		ranks_free(all);
	}
}

Test(boot_gpus, sharers_of_threads)
{
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		struct ranks *all = ranks_new(N, exchange);

		all->arg = (int)(2 * i + 1);
		cr_expect_eq(ranks_threads(all), 0, "%s", scenes[i].name);
		ranks_free(all);
	}
}

/* ---- the arithmetic ---- */

struct fake {
	struct ep_topo_rank rank[N];
	struct ep_topo topo;
};

/* n ranks on one GPU. */
static void fake_init(struct fake *f, int n)
{
	f->topo = (struct ep_topo){ .nranks = n, .nodes = 1, .locals = n, .rank = f->rank };
	for (int r = 0; r < n; r++)
		f->rank[r] = (struct ep_topo_rank){ .pid_rank = r, .dev = gpu(0, 0) };
}

/* Every rank at least a block and at most what it sees, and together no more than the GPU has. */
static void check_promise(const struct fake *f, unsigned sms)
{
	unsigned sum = 0;

	for (int r = 0; r < f->topo.nranks; r++) {
		unsigned n = ep_topo_blocks(&f->topo, r);

		cr_expect(n >= 1 && n <= f->rank[r].dev.sms, "rank %d of %d: %u blocks of %u", r, f->topo.nranks, n,
			  f->rank[r].dev.sms);
		sum += n;
	}
	cr_expect_leq(sum, sms, "%d ranks: %u blocks of %u", f->topo.nranks, sum, sms);
}

/* Multiprocessors of 132 that a process sees at 100, 50, 25 and 12 %, and the blocks of 2, 4 and 8 such ranks. */
static const unsigned seen[4] = { 132, 66, 32, 14 };

static void check_blocks(const unsigned blocks[3][4], bool processes)
{
	struct fake f;

	for (int i = 0; i < 3; i++)
		for (int p = 0; p < 4; p++) {
			fake_init(&f, 2 << i);
			for (int r = 0; r < f.topo.nranks; r++) {
				f.rank[r].dev.sms = seen[p];
				f.rank[r].pid_rank = processes ? r : 0;
			}
			for (int r = 0; r < f.topo.nranks; r++)
				cr_expect_eq(ep_topo_blocks(&f.topo, r), blocks[i][p], "%d ranks that see %u: %u",
					     f.topo.nranks, seen[p], ep_topo_blocks(&f.topo, r));
			check_promise(&f, SMS);
		}
}

/* Of one process: green contexts, whose multiprocessors are their own. */
Test(boot_gpus, a_partition_is_not_divided_again)
{
	static const unsigned blocks[3][4] = { { 66, 66, 32, 14 }, { 33, 33, 32, 14 }, { 16, 16, 16, 14 } };

	check_blocks(blocks, false);
}

/* Processes: MPS places some of their blocks on the same ones where the parts fill the GPU, so some stay free there. */
Test(boot_gpus, parts_that_fill_the_gpu)
{
	static const unsigned blocks[3][4] = { { 66, 59, 32, 14 }, { 33, 29, 26, 14 }, { 16, 14, 14, 14 } };

	check_blocks(blocks, true);
}

Test(boot_gpus, mixed_partitions)
{
	unsigned seed = 7;
	struct fake f;

	fake_init(&f, 3);
	f.rank[0].dev.sms = 66;
	f.rank[1].dev.sms = 33;
	f.rank[2].dev.sms = 33;
	cr_expect(ep_topo_blocks(&f.topo, 0) == 59 && ep_topo_blocks(&f.topo, 1) == 27);
	f.rank[1].dev.sms = f.rank[2].dev.sms = 132; /* 119 * 66 / 330 */
	cr_expect(ep_topo_blocks(&f.topo, 0) == 23 && ep_topo_blocks(&f.topo, 1) == 52);
	for (int i = 0; i < 2000; i++) {
		fake_init(&f, 1 + rand_r(&seed) % N);
		for (int r = 0; r < f.topo.nranks; r++)
			f.rank[r].dev.sms = 8 + (unsigned)rand_r(&seed) % (SMS - 7);
		/* A rank that sees 8 of 132 gets one block beside seven that see all. */
		check_promise(&f, SMS);
	}
}

/* Without NVML: as if the most that a rank sees were all. Less than there is, but all of it resident. */
Test(boot_gpus, an_unknown_count)
{
	struct fake f;

	fake_init(&f, 4);
	for (int r = 0; r < 4; r++) {
		f.rank[r].dev.sms = 66;
		f.rank[r].dev.sms_all = 0;
	}
	f.rank[3].dev.sms = 33;
	cr_expect(ep_topo_blocks(&f.topo, 0) == 66 * 66 / 231 && ep_topo_blocks(&f.topo, 3) == 60 * 33 / 231);
	check_promise(&f, 66);
	f.rank[2].dev.sms_all = SMS; /* one rank that knows is enough */
	cr_expect_eq(ep_topo_blocks(&f.topo, 0), 119 * 66 / 231);
}

/* More ranks than multiprocessors, and a count of nothing or too much: still a block each. */
Test(boot_gpus, never_none)
{
	struct fake f;

	fake_init(&f, N);
	for (int r = 0; r < N; r++)
		f.rank[r].dev.sms = f.rank[r].dev.sms_all = 4;
	cr_expect_eq(ep_topo_blocks(&f.topo, 5), 1);
	f.rank[0].dev.sms = f.rank[1].dev.sms = UINT32_MAX;
	cr_expect_eq(ep_topo_blocks(&f.topo, 5), 1);
	cr_expect_leq(ep_topo_blocks(&f.topo, 0), UINT32_MAX);
	for (int r = 0; r < N; r++)
		f.rank[r].dev.sms = 0;
	cr_expect_eq(ep_topo_blocks(&f.topo, 5), 1);
}
