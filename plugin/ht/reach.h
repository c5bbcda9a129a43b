/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that ranks of other processes touch in place. The owner names the allocation of a tensor in what its kernel
 * publishes (struct ep_place) and offers a note on how to open it; a kernel that misses an allocation asks for it in
 * its pinned table (struct ep_reach_table), and goes through the window meanwhile; the service thread fetches the note,
 * maps the allocation and adds it to the table.
 */
#ifndef EP_PLUGIN_REACH_H
#define EP_PLUGIN_REACH_H

#include "kernels/args.h"
#include "kernels/dev.h"

struct ncclEpGroup;
struct ep_reach;

/* Local. NULL in *out, and 0, when no rank of the node needs it: all are in this process, or zero_copy is OFF. */
int ep_reach_open(struct ncclEpGroup *group, struct ep_reach **out);

/* Ends the thread and withdraws what was offered: before ep_boot_close. The table and the mappings stay: kernels may
 * use them. NULL is accepted, as in all of these. */
void ep_reach_close(struct ep_reach *reach);

/* After ep_reach_close and the final barrier: freeing waits for kernels. */
void ep_reach_free(struct ep_reach *reach);
/* Instead of it, in a group that failed: the table and the mappings stay until the process ends. */
void ep_reach_abandon(struct ep_reach *reach);

/* The table as kernels see it. */
struct ep_reach_table *ep_reach_device(const struct ep_reach *reach);

/* Entries of the table that are there by now. */
uint32_t ep_reach_count(const struct ep_reach *reach);

/* Where ptr is, for others; id 0 where they cannot map it. Local, and quick for an allocation it has seen before.
 * Asks the driver each time: an address that was freed and given out again has another id. */
void ep_reach_place(struct ep_reach *reach, const void *ptr, struct ep_place *out);

#endif
