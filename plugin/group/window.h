/* SPDX-License-Identifier: Apache-2.0 */
/* A window: one allocation of the same size on every rank, mapped by ranks of the same node. Only offsets travel. */
#ifndef EP_PLUGIN_WINDOW_H
#define EP_PLUGIN_WINDOW_H

#include <stddef.h>

#include "kernels/dev.h"
#include "plugin/boot/boot.h"
#include "plugin/boot/topo.h"

struct ep_window {
	size_t size;
	int rank, nranks;
	struct ep_mem mine;
	struct ep_mem *imported;  /* [nranks]; ptr NULL where nothing was imported */
	struct ep_pinned *pinned; /* [nranks], of windows in host memory: as this rank's device sees them */
	bool whole;		  /* every rank maps every other; the same on all of them */
	void **peer;	 /* [nranks]: base of each rank's window as this rank's device sees it; NULL on other nodes */
	void **peer_dev; /* the same table in device memory that no other rank maps (struct ep_window_tables) */
};

/* What kernels trust of a window, apart from the window: its importers write to all of it. All windows of a group share
 * the memory: an allocation takes 2 MiB of a GPU. */
struct ep_window_tables {
	struct ep_mem *mem; /* [count]; tables are carved from the last one */
	int count;
	size_t used;
};

struct ep_window_list {
	int count;
	struct ep_window **win;
};

struct ep_window_ctx {
	struct ep_dev *dev;
	struct ep_boot *boot;
	const struct ep_topo *topo;
	int rank;
	void *stream; /* for set-up; nothing else runs on it */
	struct ep_window_tables *tables;
	struct ep_dev *host; /* windows in its memory, which every device of the node reaches; NULL: the device's own */
	/* An earlier window: only ranks that are mapped in it are mapped. NULL: mappings are tested before they are
	 * trusted, as PCIe with ACS or an IOMMU may lose what GPUs write to each other, without an error. */
	const struct ep_window *like;
};

/* Collective, the same size on all ranks. If one rank fails all do, and nothing is left allocated. */
int ep_window_open(const struct ep_window_ctx *ctx, size_t size, struct ep_window *out);
/* Local; a barrier before it ensures that nobody uses the window any more. */
void ep_window_close(const struct ep_window_ctx *ctx, struct ep_window *win);
/* After the last window was closed. */
void ep_window_tables_close(const struct ep_window_ctx *ctx);

#endif
