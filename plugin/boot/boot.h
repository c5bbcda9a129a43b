/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap: ranks meet by a 128-byte id, then keep a mesh of O(log R) TCP connections each, over which they
 * gather small blobs and learn of each other's death. One service thread per endpoint owns its sockets; callers wait
 * on it with a deadline. Used by the stand-in communicator and by every group; knows nothing of devices or NCCL.
 */
#ifndef EP_PLUGIN_BOOT_H
#define EP_PLUGIN_BOOT_H

#include "plugin/boot/fd.h"
#include "plugin/boot/types.h"

/* Fills the id and starts the meeting point for it in this process; it ends by itself when all ranks have met, when
 * one of them fails, or when no rank is left to wait for past the bootstrap timeout. */
int ep_boot_id_create(struct ep_boot_id *out);

struct ep_boot_opts {
	const struct ep_boot_id *id;
	int rank, nranks;
	int timeout_ms;	      /* for the meeting and for every later collective; 0 takes NCCL_EP_BOOTSTRAP_TIMEOUT_MS */
	bool survive;	      /* collectives skip ranks that are gone instead of failing (groups with enable_mask) */
	ep_boot_gone_fn gone; /* may be NULL */
	void *gone_ctx;
};

/* Collective: returns when all ranks are connected. -EP_EREMOTE names a rank that died meanwhile, -EP_ETIMEOUT one
 * that never came. */
int ep_boot_open(const struct ep_boot_opts *opts, struct ep_boot **out);

/* Collective: n alike on all ranks (0 is a barrier), any size; all has room for nranks * n. Blocks of ranks that are
 * gone stay as they were in all (survive only; of a rank that dies in the middle some may have the block and others
 * not). One collective at a time per endpoint. */
int ep_boot_allgather(struct ep_boot *boot, const void *mine, size_t n, void *all);
int ep_boot_barrier(struct ep_boot *boot);

/* A rank that died or aborted: 0 and its number in *rank, or -ENOENT. The sentence says who and why. */
int ep_boot_failed(struct ep_boot *boot, int *rank, char *why, size_t size);
bool ep_boot_alive(struct ep_boot *boot, int rank);

/* Tells every rank that this one gives up, with the errno and sentence they will see, and why. */
void ep_boot_abort(struct ep_boot *boot, int err, const char *sentence);

/* Tells peer that this rank does not reach it any more, by whatever way it used: there the gone callback names this
 * rank. Both stay in all collectives. */
void ep_boot_parted(struct ep_boot *boot, int peer, const char *why);

/* Leaves in good order: others see an error only if they still need this rank. NULL is accepted. */
void ep_boot_close(struct ep_boot *boot);

#endif
