/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU device's launch: a function call. One block of one thread runs, whatever the grid: kernels take work by
 * ticket, so one block can do all of it.
 */
#include "kernels/host/launch.h"

#include <stdlib.h>

#include "kernels/gx/env.h"
#include "util/error.h"

const struct gx_host_shape gx_host_shape = { .warp = 1, .sms = 1, .shared_max = 1 << 20 };

static _Thread_local void *shared_now;

void *gx_host_shared(void)
{
	return shared_now;
}

int gx_host_launch(gx_host_fn fn, const void *args, unsigned grid, unsigned block, size_t shared)
{
	void *outer = shared_now, *mine = NULL;

	(void)grid;
	(void)block;
	if (shared > 0) {
		mine = aligned_alloc(128, (shared + 127) / 128 * 128);
		if (!mine)
			return EP_FAIL(EP_DEV, ENOMEM, "out of memory: %zu bytes for a kernel's shared memory", shared);
	}
	shared_now = mine;
	fn(args);
	shared_now = outer;
	free(mine);
	return 0;
}
