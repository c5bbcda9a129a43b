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
	struct ep_mem *imported; /* [nranks]; ptr NULL where nothing was imported */
	void **peer;	 /* [nranks]: base of each rank's window as this rank's device sees it; NULL on other nodes */
	void **peer_dev; /* the same table in device memory, behind the window itself */
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
	void *stream; /* for the table; nothing else runs on it */
};

/* Collective, the same size on all ranks. If one rank fails all do, and nothing is left allocated. */
int ep_window_open(const struct ep_window_ctx *ctx, size_t size, struct ep_window *out);
/* Local; a barrier before it ensures that nobody uses the window any more. */
void ep_window_close(const struct ep_window_ctx *ctx, struct ep_window *win);

#endif
