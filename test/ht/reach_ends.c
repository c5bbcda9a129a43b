/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How mappings end: when their owner frees the memory, without any call, but not while a kernel may use them. Refusals
 * are remembered. The test acts as the kernels, and models one thing that only CUDA IPC does: it opens no allocation at
 * an address of which another one is still open.
 */
#include <nccl.h>

#include "reach_ranks.h"

enum { BYTES = 1 << 20, MANY = 20 };

static struct ep_dev_ops model;
static _Atomic int imports, open_now;

static int import_refused(struct ep_dev *dev, const struct ep_export *from, const int *fd, uint32_t n,
			  struct ep_mem *out)
{
	(void)dev, (void)from, (void)fd, (void)n, (void)out;
	imports++;
	return -EP_EDEVICE;
}

/* As CUDA IPC, for an owner that uses one address. */
static int import_one(struct ep_dev *dev, const struct ep_export *from, const int *fd, uint32_t n, struct ep_mem *out)
{
	int rc;

	imports++;
	if (open_now)
		return -EP_EDEVICE;
	rc = ep_dev_row(EP_DEV_HOST)->user_import(dev, from, fd, n, out);
	open_now += !rc;
	return rc;
}

static void free_one(struct ep_dev *dev, struct ep_mem *mem)
{
	open_now--;
	ep_dev_row(EP_DEV_HOST)->mem_free(dev, mem);
}

static struct ep_ht_state *state_of(struct reach_rank *me)
{
	return me->group.state.ptr;
}

static struct ep_reach_counts counts_of(struct reach_rank *me)
{
	struct ep_reach_counts counts;

	ep_reach_counts(me->reach, &counts);
	return counts;
}

static void open_reach(struct reach_rank *me)
{
	EXPECT(me, ep_ht_reach_open(&me->group, &me->reach) == 0 && me->reach);
}

static void close_reach(struct reach_rank *me)
{
	barrier(me);
	ep_reach_close(me->reach);
	barrier(me);
	ep_reach_free(me->reach);
}

static void *memory(struct reach_rank *me)
{
	void *p = NULL;

	EXPECT(me, ncclMemAlloc(&p, BYTES) == ncclSuccess);
	return p;
}

/* Shared memory that this process has mapped. */
static int count_files(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:") != NULL;
	if (f)
		fclose(f);
	return n;
}

/* Rank 1 frees what rank 0 has mapped, and neither calls anything afterwards. */
static void freed(struct reach_rank *me)
{
	struct ep_place all[REACH_RANKS], mine;
	int files = 0;

	open_reach(me);
	for (int i = 0; i < MANY; i++) {
		void *p = me->rank ? memory(me) : NULL;

		places_exchange(me, p, &mine, all);
		if (!i)
			files = count_files();
		if (!me->rank)
			EXPECT(me, want_get(me, 1, all[1].id));
		barrier(me);
		if (me->rank)
			ncclMemFree(p);
	}
	if (!me->rank) {
		EXPECT(me, UNTIL(table_count(me) == 0));
		EXPECT(me, !table_find(me, 1, all[1].id));
		EXPECT(me, counts_of(me).ended == MANY && counts_of(me).peak <= MANY);
		EXPECT(me, count_files() <= files + 1); /* the board */
	}
	close_reach(me);
}

/* An operation that has not seen the end of a mapping keeps it. */
static void busy(struct reach_rank *me)
{
	struct ep_place all[REACH_RANKS], mine;
	void *p = me->rank ? memory(me) : NULL;
	const uint8_t *seen;

	open_reach(me);
	if (me->rank)
		memset(p, 77, BYTES);
	places_exchange(me, p, &mine, all);
	if (!me->rank) {
		seen = want_get(me, 1, all[1].id);
		__atomic_store_n(&state_of(me)->opened, 1, __ATOMIC_RELEASE);
		me->world->stage = 1;
		EXPECT(me, UNTIL(!table_find(me, 1, all[1].id))); /* later operations do not find it */
		nap_ms(1300);
		EXPECT(me, table_count(me) == 1 && seen && seen[BYTES - 1] == 77);
		/* The next one began: nobody uses it, though the group is never idle. */
		__atomic_store_n(&table_of(me)->seen, ep_reach_version(me->reach), __ATOMIC_RELEASE);
		EXPECT(me, UNTIL(table_count(me) == 0));
	} else {
		EXPECT(me, UNTIL(me->world->stage == 1));
		ncclMemFree(p);
	}
	close_reach(me);
}

/* Launched and not begun: closing could make the driver wait for it. */
static void queued(struct reach_rank *me)
{
	struct ep_place all[REACH_RANKS], mine;
	void *p = me->rank ? memory(me) : NULL;

	open_reach(me);
	places_exchange(me, p, &mine, all);
	if (!me->rank) {
		EXPECT(me, want_get(me, 1, all[1].id));
		atomic_store(&me->group.launched, 1);
		me->world->stage = 1;
		EXPECT(me, UNTIL(!table_find(me, 1, all[1].id)));
		nap_ms(300);
		EXPECT(me, table_count(me) == 1);
		__atomic_store_n(&state_of(me)->ended, 1, __ATOMIC_RELEASE);
		EXPECT(me, UNTIL(table_count(me) == 0));
	} else {
		EXPECT(me, UNTIL(me->world->stage == 1));
		ncclMemFree(p);
	}
	close_reach(me);
}

static void refused(struct reach_rank *me)
{
	struct ep_place all[REACH_RANKS], mine;
	void *p = memory(me);

	model = *me->group.dev->ops;
	model.user_import = import_refused;
	me->group.dev->ops = &model;
	open_reach(me);
	places_exchange(me, p, &mine, all);
	if (!me->rank) {
		const struct ep_reach_entry *e = reach_entry(table_of(me), 1, all[1].id);

		for (int i = 0; i < 5; i++) {
			EXPECT(me, UNTIL(want_put(me, (unsigned)i, 1, all[1].id)));
			EXPECT(me, UNTIL(__atomic_load_n(&e->id, __ATOMIC_ACQUIRE) == all[1].id) && !e->base);
		}
		EXPECT(me, UNTIL(want_put(me, 4, 1, all[1].id)));
		EXPECT(me, imports == 1 && counts_of(me).refused == 1 && table_count(me) == 0);
		me->world->stage = 1;
		EXPECT(me, UNTIL(!__atomic_load_n(&e->id, __ATOMIC_ACQUIRE))); /* freed: forgotten */
	} else {
		EXPECT(me, UNTIL(me->world->stage == 1));
		ncclMemFree(p);
	}
	close_reach(me);
	if (!me->rank)
		ncclMemFree(p);
}

/* Frees and allocates until the same address is returned: usually at once. */
static void *same_again(struct reach_rank *me, void *old)
{
	void *p = NULL;

	for (int i = 0; i < 50 && p != old; i++) {
		EXPECT(me, ncclMemFree(i ? p : old) == ncclSuccess);
		p = memory(me);
	}
	EXPECT(me, p == old);
	return p;
}

/* Rank 1 has freed what rank 0 maps, and offers other memory, which cannot be mapped before the old mapping is closed.
 * Not refused: tried again. */
static void reused(struct reach_rank *me)
{
	struct ep_place all[REACH_RANKS], mine;
	void *p = me->rank ? memory(me) : NULL, *other = NULL;

	model = *me->group.dev->ops;
	model.user_import = import_one;
	model.mem_free = free_one;
	if (!me->rank)
		me->group.dev->ops = &model;
	open_reach(me);
	places_exchange(me, p, &mine, all);
	if (!me->rank) {
		EXPECT(me, want_get(me, 1, all[1].id) && imports == 1);
		__atomic_store_n(&state_of(me)->opened, 1, __ATOMIC_RELEASE); /* keeps it open */
	}
	barrier(me);
	if (me->rank) {
		p = same_again(me, p);
		ep_reach_place(me->reach, p, 1, false, &mine); /* shows that the old one is freed; takes its slot */
		other = memory(me);
	}
	places_exchange(me, other, &mine, all);
	if (!me->rank) {
		EXPECT(me, UNTIL(want_put(me, 0, 1, all[1].id)));
		EXPECT(me, UNTIL(imports == 2) && table_count(me) == 1);
		__atomic_store_n(&state_of(me)->opened, 0, __ATOMIC_RELEASE);
		EXPECT(me, want_get(me, 1, all[1].id));
		EXPECT(me, counts_of(me).refused == 0 && counts_of(me).ended == 1 && table_count(me) == 1);
	}
	close_reach(me);
	me->group.dev->ops = ep_dev_row(EP_DEV_HOST);
	ncclMemFree(p);
	ncclMemFree(other);
}

int main(void)
{
	setenv("NCCL_EP_DEVICE", "host", 1);
	return ranks_end("reach_ends", ranks_run(2, freed, NULL, -1) + ranks_run(2, busy, NULL, -1) +
					       ranks_run(2, queued, NULL, -1) + ranks_run(2, refused, NULL, -1) +
					       ranks_run(2, reused, NULL, -1));
}
