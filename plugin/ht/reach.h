/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that ranks of other processes access in place. The owner names a tensor's allocation in what its kernel
 * publishes (struct ep_place) and offers notes on how to open it (plugin/ht/own.h); a kernel that has no mapping of an
 * allocation asks for it in its pinned table (struct ep_reach_table) and stages through the window meanwhile; the
 * service thread fetches the notes, maps the allocation and adds it to the table (plugin/ht/maps.h). When the owner
 * frees the memory, or needs the slot for another allocation, it withdraws the offer, and the mappings end.
 */
#ifndef EP_PLUGIN_REACH_H
#define EP_PLUGIN_REACH_H

#include "plugin/ht/offer.h"

struct ep_reach;

struct ep_reach_counts {
	uint32_t mappings, peak;
	uint64_t ended, refused; /* see struct ep_maps_counts */
	uint64_t evicted;	 /* own offers that ended for lack of room */
};

/* Local. NULL in *out, and 0, when all ranks of the node are threads of this process. */
int ep_reach_open(const struct ep_reach_ctx *ctx, struct ep_reach **out);

/* Ends the thread and withdraws its offers: before ep_boot_close. The table and the mappings stay: kernels may use
 * them. NULL is accepted, as in all of these. */
void ep_reach_close(struct ep_reach *reach);

/* After ep_reach_close and the final barrier: freeing waits for kernels. */
void ep_reach_free(struct ep_reach *reach);
/* Instead of it, in a group that failed: the table and the mappings stay until the process ends. */
void ep_reach_abandon(struct ep_reach *reach);

/* The table as kernels see it. */
struct ep_reach_table *ep_reach_device(const struct ep_reach *reach);

/* Of the table, now. */
uint32_t ep_reach_version(const struct ep_reach *reach);

void ep_reach_counts(const struct ep_reach *reach, struct ep_reach_counts *out);

/* The place of bytes at ptr for other processes; id 0 where they cannot map it. Local, and quick for a known
 * allocation. Asks the driver each time: an address that was freed and allocated again has another id. captured: the
 * place goes into a graph. */
void ep_reach_place(struct ep_reach *reach, const void *ptr, size_t bytes, bool captured, struct ep_place *out);

#endif
