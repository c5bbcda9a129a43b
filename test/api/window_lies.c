/* SPDX-License-Identifier: Apache-2.0 */
/* A rank whose window is smaller than it must be: the others do not map it, and store nowhere. A window that cannot be
 * mapped, as its owner leaves because of a third rank: that one is blamed. */
#include <criterion/criterion.h>

#include <fcntl.h>

#include "../boot/ranks.h"
#include "plugin/group/grow.h"

TestSuite(window_lies, .timeout = 60);

#define BYTES (1 << 20)
#define SMALL 4096

/* A true memory file, of a page. */
static int export_little(struct ep_dev *dev, const struct ep_mem *mem, struct ep_export *out, int *fd)
{
	(void)dev;
	(void)mem;
	*fd = memfd_create("little", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	*out = (struct ep_export){ .share = EP_SHARE_FD, .kind = EP_DEV_HOST, .size = SMALL };
	return *fd < 0 || ftruncate(*fd, SMALL) || fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK) ? -EIO : 0;
}

static void open_window(struct rank *me)
{
	struct ep_dev_ops little;
	struct ep_window win;
	struct ep_topo_dev is = { .kind = EP_DEV_HOST };
	struct ep_topo topo;
	struct ep_dev *dev;
	struct ep_window_tables tables = { NULL };
	struct ep_window_ctx ctx = { .boot = me->boot, .topo = &topo, .rank = me->rank, .tables = &tables };

	RANK_EXPECT(me, ep_dev_row(EP_DEV_HOST)->open(0, &dev) == 0);
	RANK_EXPECT(me, ep_topo_build(me->boot, me->rank, me->all->n, &is, &topo) == 0);
	little = *dev->ops;
	little.mem_export = export_little;
	if (me->rank == 0)
		dev->ops = &little;
	ctx.dev = dev;
	if (!rank_note(me, ep_window_open(&ctx, BYTES, &win))) {
		RANK_EXPECT(me, win.peer[me->rank] && (me->rank != 1 || win.peer[2]));
		for (int r = 0; r < me->all->n; r++)
			if (win.peer[r])
				((volatile uint8_t *)win.peer[r])[BYTES - 1 - me->rank] = 1;
		RANK_EXPECT(me, me->rank == 0 || !win.peer[0]);
		RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
		ep_window_close(&ctx, &win);
		ep_window_tables_close(&ctx);
	}
	ep_topo_free(&topo);
}

Test(window_lies, a_smaller_window_is_not_mapped)
{
	struct ranks *all = ranks_new(3, open_window);

	cr_expect_eq(ranks_processes(all), 0);
	ranks_free(all);
}

#define DIES 0
#define MAPS 1
#define LEFT 2

/* That of rank LEFT, the second one. */
static int import_one(struct ep_dev *dev, const struct ep_export *from, int fd, struct ep_mem *out)
{
	static int imported;

	if (imported++)
		return EP_FAIL(EP_DEV, EP_EREMOTE, "model: nothing to import");
	return ep_dev_row(EP_DEV_HOST)->mem_import(dev, from, fd, out);
}

/* As a group does, without the rest of one. */
static void grow(struct rank *me)
{
	struct ncclEpGroup *group = calloc(1, sizeof(*group));
	struct ep_topo_dev is = { .kind = EP_DEV_HOST };
	struct ep_window_ctx ctx;
	struct ep_dev_ops one;

	if (!group)
		abort();
	group->boot = me->boot;
	group->rank = me->rank;
	group->nranks = me->all->n;
	RANK_EXPECT(me, ep_dev_row(EP_DEV_HOST)->open(0, &group->dev) == 0);
	RANK_EXPECT(me, ep_topo_build(me->boot, me->rank, me->all->n, &is, &group->topo) == 0);
	ctx = ep_group_window_ctx(group);
	RANK_EXPECT(me, ep_window_open(&ctx, BYTES, &group->control) == 0 && group->control.peer[LEFT]);
	one = *group->dev->ops;
	one.mem_import = import_one;
	if (me->rank == MAPS)
		group->dev->ops = &one;
	rank_note(me, ep_group_payload_add(group, BYTES));
	if (me->all->arg && me->rank == DIES) {
		nap_ms(50); /* rank MAPS has noticed what is missing, but not yet why */
		_exit(0);   /* a death: nobody was told */
	}
	if (me->rank != MAPS)
		UNTIL(me->all->stage == 1);
	me->all->stage = 1;
}

Test(window_lies, a_death_is_blamed_for_a_window_that_its_owner_withdrew)
{
	for (int dies = 0; dies < 2; dies++) {
		struct ranks *all = ranks_new(3, grow);
		const struct rank *maps = &all->rank[MAPS];

		all->arg = dies;
		cr_assert_eq(ep_boot_id_create(&all->id), 0);
		for (int i = 0; i < all->n; i++)
			rank_fork(&all->rank[i], rank_life);
		cr_expect_eq(ranks_reap(all, 0), 0);
		for (int i = 0; i < all->n; i++)
			cr_expect_eq(all->rank[i].bad, 0);
		/* Without a death rank LEFT, whose window is not mapped either way, may be the first to give up. */
		cr_expect(dies ? maps->rc == -EP_EREMOTE && !strncmp(maps->why, "rank 0 died", 11)
			       : (maps->rc == -EP_EDEVICE || maps->rc == -EP_EREMOTE) &&
					  strstr(maps->why, "though it maps its control page"),
			  "dies %d: %d, %s", dies, maps->rc, maps->why);
		ranks_free(all);
	}
}
