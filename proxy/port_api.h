/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A port is one rank's end of one context of a net: the rings its kernels push to, and one channel to each peer, which
 * carries puts and signals in the order they were pushed; a channel's number is the peer's rank, and all its commands
 * come through one ring. Where the net keeps no order, puts are numbered, and the receiving port holds a signal back
 * until everything before it has arrived (proxy/order.h). An engine drives ports (proxy/engine.h).
 *
 * A command names places by region: a registration that all ranks made alike, in the same order (EP_REGION_AT).
 */
#ifndef EP_PROXY_PORT_API_H
#define EP_PROXY_PORT_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/net.h"
#include "proxy/ring.h"

#define EP_REGION_SHIFT 36 /* 64 GiB each */
#define EP_REGIONS 256u	   /* so that an offset has the 44 bits of a command */
#define EP_REGION_AT(index, offset) ((uint64_t)(index) << EP_REGION_SHIFT | (offset))

struct ep_region {
	void *mr;      /* of the net, shared */
	uint8_t *host; /* where the CPU writes signals that arrive here; NULL: this is no place for signals */
	size_t size;
};

/* Grows while engines run: an entry is complete before count says that it is there (release). */
struct ep_regions {
	uint32_t count;
	struct ep_region region[EP_REGIONS];
};

struct ep_port_opts {
	const ncclEpNetHot_v1_t *hot;
	void *ctx;		 /* the port's from now on, until it is closed; destroying it is the caller's */
	bool ordered;		 /* as the net says, and the device that waits */
	uint32_t max_inline;	 /* bytes; 0: none */
	uint64_t max_put;	 /* bytes: what neighbours are joined to at most */
	ncclEpNetFlow_v1_t flow; /* in flight at once; 0: no limit */
	int rank, nranks;
	uint32_t window; /* puts of a channel on the way where they are numbered, a power of two from 64 */
	const struct ep_regions *regions;
	uint32_t mail;		     /* the region of ep_port_mail_size bytes that belongs to this port, host and all */
	struct ep_ring *const *ring; /* [rings] the port's from now on, memory stays the caller's */
	int rings;
	bool rung;		 /* whoever pushes to these rings rings the engine's bell: it may sleep longer */
	int (*flush)(void *arg); /* unordered: what the net wrote is visible to the device; NULL: it always is */
	/* From the engine's thread; must not block. A peer fails once; what is pushed for it later is dropped. */
	void (*peer_failed)(void *arg, int peer, int err, const char *why);
	/* What the net knows of a peer: 0, or the error that made it fail, with the sentence. Asked now and then, from
	 * the engine's thread: a peer to which nothing is put fails unseen otherwise. NULL: the net is not asked. */
	int (*peer_error)(void *arg, int peer, const char **why);
	/* What comes through this ring will not move any more (it is dead, or has a command that makes no sense), or
	 * through none: memory ran out, or the net's context broke. Once. */
	void (*failed)(void *arg, int err, const char *why);
	void *arg;
	uint64_t start; /* the first number of every channel; 0 but in tests */
};

struct ep_port;

/* What a port has given to the net so far. Bytes are those of puts, signals are not among them. */
struct ep_port_counts {
	uint64_t commands; /* popped */
	uint64_t puts;	   /* after neighbours were joined */
	uint64_t bytes;
	uint64_t signals;
	uint64_t credits; /* unordered: signals between ports */
	uint64_t dropped; /* commands for peers that had failed, never given to the net */
};

/* Bytes of the region a port needs for itself: registered by all ranks alike, as host memory. A port of an ordered net
 * that takes 8 bytes inline needs none. */
size_t ep_port_mail_size(int nranks, uint32_t window);
/* The widest window, up to `want`, that this many ranks can have; 0: not even 64 fit into an immediate. */
uint32_t ep_port_window(int nranks, uint32_t want);

int ep_port_open(const struct ep_port_opts *opts, struct ep_port **out);
/* Detached; NULL is accepted. */
void ep_port_close(struct ep_port *port);
void ep_port_counts(const struct ep_port *port, struct ep_port_counts *out);
/*
 * Any thread, while the port is attached: until everything pushed before the call is completed by the net. Claims are
 * in device memory, so this waits for more: a moment after the call at which every ring was found empty and everything
 * ever popped was completed or dropped. Who pushes on may keep it from coming. A ring that is dead counts as empty; a
 * channel to a peer that failed, as soon as the net is done with its requests. -EP_ETIMEOUT past the deadline, without
 * a sentence.
 */
int ep_port_quiet(struct ep_port *port, uint64_t deadline);
/* The same for what others sent: until everything that had arrived before the call is taken. */
int ep_port_look(struct ep_port *port, uint64_t deadline);

#endif
