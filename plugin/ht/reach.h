/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that ranks of other processes access in place. The owner names a tensor's allocation in what its kernel
 * publishes (struct ep_place) and offers a note on how to open it; a kernel that has no mapping of an allocation asks
 * for it in its pinned table (struct ep_reach_table) and stages through the window meanwhile; the service thread
 * fetches the note, maps the allocation and adds it to the table.
 */
#ifndef EP_PLUGIN_REACH_H
#define EP_PLUGIN_REACH_H

#include "kernels/args.h"
#include "kernels/dev.h"
#include "plugin/boot/boot.h"
#include "plugin/boot/topo.h"
#include "plugin/group/comm.h"

struct ep_reach;

/* Pointers stay valid until ep_reach_free or ep_reach_abandon. */
struct ep_reach_ctx {
	struct ep_dev *dev;
	struct ep_boot *boot;
	const struct ep_topo *topo;
	const struct ep_comm_calls *calls; /* for memory that the device does not know */
	int rank;
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

/* Entries of the table so far. */
uint32_t ep_reach_count(const struct ep_reach *reach);

/* The place of ptr for other processes; id 0 where they cannot map it. Local, and quick for a known allocation. Asks
 * the driver each time: an address that was freed and allocated again has another id. */
void ep_reach_place(struct ep_reach *reach, const void *ptr, struct ep_place *out);

#endif
