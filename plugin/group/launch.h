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
	unsigned sms;	    /* what the handle asks for; 0: nothing */
};

/* Sets group->sms from the environment and the configuration. -EP_EUSAGE: the latter asks for more than there are. */
int ep_launch_budget(struct ncclEpGroup *group);

/* -EP_EUSAGE when not even one warp fits. */
int ep_launch_plan(const struct ncclEpGroup *group, const struct ep_launch_need *need, struct ep_launch_plan *out);

/* What a kernel does, as messages call it: "dispatch"; "none" of what is no operation. */
const char *ep_launch_name(int kernel);

/* Launches, and counts it for ep_launch_drain unless it is captured; counted: in the launch's arguments. Returns the
 * kernel's error where it has run already: on the CPU without a stream. */
int ep_launch_run(struct ncclEpGroup *group, struct ep_launch *launch, uint32_t *counted);

/* Until every counted launch of this rank has ended; -EP_ETIMEOUT at the deadline. */
int ep_launch_drain(struct ncclEpGroup *group, uint64_t deadline);

/* Bytes a warp stages rows of this size in. Longer rows go in pieces; whole: they are built in it and must fit. */
uint32_t ep_launch_stage(enum ep_kernel kernel, size_t row_bytes, bool whole);

#endif
