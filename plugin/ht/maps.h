/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations of other ranks that this rank has mapped, or as a thread of their process may access, and the table in
 * which its kernels find them. All functions
 * but ep_maps_counts, ep_maps_version and ep_maps_device are for the service thread alone.
 */
#ifndef EP_PLUGIN_MAPS_H
#define EP_PLUGIN_MAPS_H

#include "plugin/ht/offer.h"

struct ep_maps;

struct ep_maps_counts {
	uint32_t now, peak; /* mappings */
	uint64_t ended;	    /* mappings closed because their owner withdrew them */
	uint64_t refused;   /* allocations that could not be mapped */
};

/* Whether rank maps memory of owner: of the node, on a device of the same kind, but of another process or device. */
bool ep_maps_peer(const struct ep_topo *topo, int rank, uint32_t owner);

int ep_maps_open(const struct ep_reach_ctx *ctx, struct ep_maps **out);
/* Waits for kernels. NULL is accepted, as in ep_maps_abandon: there the table and the mappings stay. */
void ep_maps_free(struct ep_maps *maps);
void ep_maps_abandon(struct ep_maps *maps);

/* Takes the kernels' requests and maps what it can, until stopped; returns how many there were. */
unsigned ep_maps_serve(struct ep_maps *maps, bool (*stopped)(void *), void *arg);

/* Takes what its owner no longer offers out of the table, and closes what no kernel can use any more. */
void ep_maps_tidy(struct ep_maps *maps);

struct ep_reach_table *ep_maps_device(const struct ep_maps *maps);
uint32_t ep_maps_version(const struct ep_maps *maps);
void ep_maps_counts(const struct ep_maps *maps, struct ep_maps_counts *out);

#endif
