/* SPDX-License-Identifier: Apache-2.0 */
/* A rank whose window is smaller than it must be: the others do not map it, and store nowhere. */
#include <criterion/criterion.h>

#include <fcntl.h>

#include "../boot/ranks.h"
#include "plugin/group/window.h"

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
