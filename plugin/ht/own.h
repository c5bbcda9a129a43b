/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocations of this rank's caller that other processes may map: each gets an id when a tensor in it is first
 * used, and is on offer under it until it is freed or, when the slots are full, the one unused for longest. A free is
 * noticed by the driver's answer for the address: nothing else reports it.
 */
#ifndef EP_PLUGIN_OWN_H
#define EP_PLUGIN_OWN_H

#include "plugin/ht/offer.h"

struct ep_own;

int ep_own_open(const struct ep_reach_ctx *ctx, struct ep_own **out);
/* Withdraws all offers: before ep_boot_close. NULL is accepted, as in ep_own_free. */
void ep_own_close(struct ep_own *own);
void ep_own_free(struct ep_own *own);

/* The place of bytes at ptr; id 0 where other processes cannot map them. captured: in a graph, which uses the id as
 * long as the memory is there. Returns whether it is a new offer. */
bool ep_own_place(struct ep_own *own, const void *ptr, size_t bytes, bool captured, struct ep_place *out);

/* Checks a few allocations, in turn, and withdraws what the caller has freed: an offered descriptor holds memory. */
void ep_own_sweep(struct ep_own *own);

/* Offers that ended for lack of room. */
uint64_t ep_own_evicted(struct ep_own *own);

#endif
