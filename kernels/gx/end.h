/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a launch on the host: ordered behind all that its threads did, for the memory is unmapped after it. */
#ifndef EP_KERNELS_GX_END_H
#define EP_KERNELS_GX_END_H

GX_DEV void gx_end(uint32_t *ended, uint32_t number)
{
	gx_syncthreads();
	if (gx_tid() == 0)
		gx_dev_st_release_u32(ended, number); /* R: all of the launch -> ended; pairs with the host's peek */
}

#endif
