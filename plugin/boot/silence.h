/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks stand still although their sockets are open (SIGSTOP, a hung host). Each end of an edge pings the other
 * when it has heard nothing for a quarter of the timeout; a neighbour that does not answer for another quarter is
 * silent, and all ranks are told: those that are not its neighbours may wait for it, or for blocks it should forward.
 * Silence fails nothing. It decides who is blamed when a wait times out, and is withdrawn when the rank answers; it is
 * then told only where nobody else can be blamed for the time that is gone.
 */
#ifndef EP_PLUGIN_BOOT_SILENCE_H
#define EP_PLUGIN_BOOT_SILENCE_H

#include "plugin/boot/endpoint.h"

/* Of one rank. Whoever changes it counts seq up: the higher one is the newer. */
struct ep_silence {
	uint64_t seq;	/* odd: silent */
	uint64_t since; /* when its neighbour sent the ping it did not answer */
	uint64_t until; /* when the last one was withdrawn; 0: there was none */
	uint32_t by;	/* the neighbour */
};

/* All with the lock held. Pings what is due; returns when to call it again. */
uint64_t ep_silence_tick(struct ep_boot *b, uint64_t now);
/* A frame has come from this neighbour. */
void ep_silence_heard(struct ep_boot *b, struct ep_conn *c);
/* EP_F_SILENT from a neighbour; -EPROTO: malformed. */
int ep_silence_take(struct ep_boot *b, const struct ep_frame *f, struct ep_conn *from);
/* Tells the peer of a new edge. */
void ep_silence_tell(struct ep_boot *b, struct ep_conn *c);
/* Before all have met there is nobody to ping: a rank counts how long it waits for each edge to come up, and the root
 * concludes from all of them whom the ranks waited for (EP_F_GO). */
void ep_silence_edge(struct ep_boot *b, const struct ep_conn *c);
void ep_silence_met(struct ep_boot *b, const struct ep_frame *f);
/* The lowest silent rank, and in out "rank 0 and rank 3 do not answer (...)"; or -1. */
int ep_silence_find(const struct ep_boot *b, char *out, size_t size);
/* The rank that was silent longest of those that answer again since `from`, or that the others waited for longer while
 * they met, a quarter of the timeout at least; and in out how long; or -1. The latter is concluded from who came when:
 * where a rank that stood still kept others from coming, it may be one of those. */
int ep_silence_past(const struct ep_boot *b, uint64_t from, char *out, size_t size);

#endif
