/* SPDX-License-Identifier: Apache-2.0 */
/* The size of a launch: blocks from the group's limits and the device, warps from their shared memory. */
#ifndef EP_PLUGIN_LAUNCH_H
#define EP_PLUGIN_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "plugin/group/group.h"

struct ep_launch_plan {
	unsigned grid, block;
};

struct ep_launch_need {
	enum ep_kernel kernel;
	size_t warp_bytes;  /* of shared memory, per warp */
	size_t block_bytes; /* and once */
	size_t blocks;	    /* as many as have something to do */
	size_t rows;	    /* work of single warps; 0: whole blocks work together */
};

/* -EP_EUSAGE when not even one warp fits. */
int ep_launch_plan(const struct ncclEpGroup *group, const struct ep_launch_need *need, struct ep_launch_plan *out);

/* Bytes a warp stages rows of this size in. Longer rows go in pieces; whole: they are built in it and must fit. */
uint32_t ep_launch_stage(enum ep_kernel kernel, size_t row_bytes, bool whole);

#endif
