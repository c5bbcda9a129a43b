/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules of threads and blocks: one on a device, several under the emulator. */
#ifndef EP_TEST_ROWSIG_ORDER_H
#define EP_TEST_ROWSIG_ORDER_H

#ifdef GX_WARP

#include "kernels/simt/simt.h"

/* In order; two random ones; and one block at a time, so that the others start late and find no work. */
static inline int rowsig_orders(void)
{
	return 4;
}

static inline void rowsig_order(int pass)
{
	struct simt_options options = { .seed = pass == 1 || pass == 2 ? 77u + (unsigned)pass : 0,
					.resident = pass == 3 };

	simt_configure(&options);
}

#else

static inline int rowsig_orders(void)
{
	return 1;
}

static inline void rowsig_order(int pass)
{
	(void)pass;
}

#endif

#endif
