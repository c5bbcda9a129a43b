/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap: ranks find each other by a 128-byte id, then each keeps O(log R) TCP connections of a mesh, used for
 * allgathers of small blobs and for death notices. One service thread per endpoint owns its sockets; callers wait on it
 * with a deadline. Used by the stand-in communicator and by every group; independent of devices and NCCL.
 */
#ifndef EP_PLUGIN_BOOT_H
#define EP_PLUGIN_BOOT_H

#include "plugin/boot/fd.h"
#include "plugin/boot/local.h"
#include "plugin/boot/types.h"

/* Fills the id and starts its root in this process. The root exits when all ranks are connected, when one of them
 * fails, or when no rank is left to wait for past the bootstrap timeout. */
int ep_boot_id_create(struct ep_boot_id *out);

/* This rank will not come. err 0: nor will any other, and the root exits at once. Else ranks that wait, and for one
 * timeout those that still come, get err and why. Does nothing where the root has exited or is in another process. */
void ep_boot_id_abandon(const struct ep_boot_id *id, int rank, int err, const char *why);

struct ep_boot_opts {
	const struct ep_boot_id *id;
	int rank, nranks;
	int timeout_ms;	      /* of ep_boot_open and of every collective; 0 takes NCCL_EP_BOOTSTRAP_TIMEOUT_MS */
	uint64_t deadline;    /* of the call that opens, as by ep_boot_limit; 0: timeout_ms from now, and no limit */
	uint64_t wait_ns;     /* of other waits for these ranks: one that stands still is noticed before; 0: none */
	int maker;	      /* 1 + the rank that created the id; 0: not known */
	bool survive;	      /* collectives skip dead ranks instead of failing (groups with enable_mask) */
	ep_boot_gone_fn gone; /* may be NULL */
	void *gone_ctx;
};

/* Collective: returns when all ranks are connected. -EP_EREMOTE: a rank died meanwhile; -EP_ETIMEOUT: a rank did not
 * come. The message names it. */
int ep_boot_open(const struct ep_boot_opts *opts, struct ep_boot **out);

/* Collective: n is the same on all ranks, 0 for a barrier, at most 64 MiB / nranks (16 KiB where that is less); all has
 * room for nranks * n. With survive the blocks of dead ranks are left unchanged in all; of a rank that dies during the
 * call some ranks may get the block and others not. One collective at a time per endpoint. */
int ep_boot_allgather(struct ep_boot *boot, const void *mine, size_t n, void *all);
int ep_boot_barrier(struct ep_boot *boot);

/*
 * A call that makes several collectives has one deadline: those that follow, and fetches of descriptors, end by it. 0:
 * each has its own again. ep_boot_deadline: by when one that starts now ends.
 */
void ep_boot_limit(struct ep_boot *boot, uint64_t deadline);
uint64_t ep_boot_deadline(struct ep_boot *boot);

/* The rank to blame for ranks that died or aborted: 0, its number in *rank and the reason in why; or -ENOENT. */
int ep_boot_failed(struct ep_boot *boot, int *rank, char *why, size_t size);
bool ep_boot_alive(struct ep_boot *boot, int rank);

/*
 * For a wait that failed with the evidence `than`: 0, and whom to blame instead and why, or -ENOENT. Waits a moment for
 * stronger evidence: a socket may close a little later than a signal is missed.
 */
int ep_boot_evidence(struct ep_boot *boot, enum ep_evidence than, struct ep_blame *blame, char *why, size_t size);
/* Whom the others waited for since `from`, and is back: 0 and in why how long, or -ENOENT. */
int ep_boot_waited(struct ep_boot *boot, uint64_t from, char *why, size_t size);
/* For a call that failed with rc: 0, and in why whom to blame for that, or -ENOENT. _reason: as ep_boot_evidence.
 * _taken: in a call with a deadline, who stood still during it and is back. _explain: the first of them that has
 * somebody, before the last error; returns rc. */
int ep_boot_reason(struct ep_boot *boot, int rc, char *why, size_t size);
int ep_boot_taken(struct ep_boot *boot, int rc, char *why, size_t size);
int ep_boot_explain(struct ep_boot *boot, int rc);

/* Tells every rank that this one gives up; err and message are what they report. A timeout or another rank's failure is
 * blamed by the evidence at hand, everything else on this rank. */
void ep_boot_abort(struct ep_boot *boot, int err, const char *message);
/* The same, and the caller knows whom to blame. */
void ep_boot_accuse(struct ep_boot *boot, int err, struct ep_blame blame, const char *message);
/* The same of a rank that the net has lost, in a moment: if another rank fails until then, the lost one may just have
 * left because of it. -EALREADY: one has failed already. */
int ep_boot_accuse_lost(struct ep_boot *boot, int rank, const char *message);

/* Tells peer that this rank has lost it on the data path; peer's gone callback then names this rank. Both stay in all
 * collectives. */
void ep_boot_parted(struct ep_boot *boot, int peer, const char *why);

/* Leaves: other ranks see an error only if a later collective needs this rank. NULL is accepted. */
void ep_boot_close(struct ep_boot *boot);

#endif
