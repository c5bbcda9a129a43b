/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A port is one rank's end of one net context: the rings its kernels push to, and one channel per peer, which carries
 * puts and signals in the order they were pushed. Commands name a channel by the peer's rank, and all of them come
 * through one ring. On an unordered net puts are numbered, and the receiving port holds a signal back until everything
 * before it has arrived (proxy/order.h). An engine drives ports (proxy/engine.h). Tables and mail grow with the peers,
 * not with the ranks.
 *
 * Commands address memory by region: a registration that every rank made in the same order (EP_REGION_AT).
 */
#ifndef EP_PROXY_PORT_API_H
#define EP_PROXY_PORT_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/net.h"
#include "proxy/ring.h"
#include "util/trace.h"

#define EP_REGION_SHIFT 36 /* 64 GiB each */
#define EP_REGIONS 256u	   /* region and offset fill the 44 address bits of a command */
#define EP_REGION_AT(index, offset) ((uint64_t)(index) << EP_REGION_SHIFT | (offset))

struct ep_region {
	void *mr;      /* the net's registration, shared by all ports */
	uint8_t *host; /* host address for signals that arrive here; NULL: signals are not allowed */
	size_t size;
};

/* Grows while engines run: an entry is complete before count includes it (release). */
struct ep_regions {
	uint32_t count;
	struct ep_region region[EP_REGIONS];
};

/* Whom a port puts to, and who puts to it. */
struct ep_port_peer {
	int rank;
	uint32_t there; /* this rank's index among that one's peers */
};

struct ep_port_opts {
	const ncclEpNetHot_v1_t *hot;
	void *ctx;		 /* used by the port until it is closed; the caller destroys it */
	bool ordered;		 /* both the net and the waiting device keep order */
	uint32_t max_inline;	 /* bytes; 0: none */
	uint64_t max_put;	 /* bytes; also the limit for merging adjacent puts */
	ncclEpNetFlow_v1_t flow; /* in flight at once; 0: no limit */
	int rank, nranks;
	const struct ep_port_peer *peer; /* [peers], by ascending rank; read by ep_port_open only */
	uint32_t peers, seats;		 /* seats: peers of the rank that has most of them */
	uint32_t window;		 /* unordered: puts in flight per channel, a power of two >= 64 */
	const struct ep_regions *regions;
	uint32_t mail;		     /* this port's own region: ep_port_mail_size bytes of host memory */
	struct ep_ring *const *ring; /* [rings] used by the port; the caller owns the memory */
	int rings;
	bool rung;			/* every producer rings the engine's bell, so it may sleep longer */
	const struct ep_cmd_open *open; /* the producers' operations; NULL: not counted */
	struct ep_trace *trace;		/* of its turns, puts and operations; NULL: none */
	unsigned trace_row;
	uint64_t open_ns; /* an operation that is open for longer is dead; 0: 10 s, shorter only in tests */
	/* Unordered: a registration in the device's memory; signals are stored when a flush of it has completed, as the
	 * device does not see the net's writes before. NULL: it sees them. */
	void *flush;
	/* On the engine's thread; must not block. Once per peer; commands for it are dropped from then on. */
	void (*peer_failed)(void *arg, int peer, int err, const char *why);
	/* The net's state of a peer: 0, or the error that lost it and its message. Polled on the engine's thread, since
	 * a peer that nothing is put to would be lost unnoticed. NULL: not polled. */
	int (*peer_error)(void *arg, int peer, const char **why);
	/* A ring is stopped (its producer gave up, or an invalid command), or the whole port is: out of memory, or the
	 * net context failed. Once. */
	void (*failed)(void *arg, int err, const char *why);
	void *arg;
	uint64_t start; /* first number of every channel; not 0 only in tests */
};

struct ep_port;

/* Totals given to the net. bytes counts puts only. */
struct ep_port_counts {
	uint64_t commands; /* popped */
	uint64_t joined;   /* of these, puts that were merged with the one before */
	uint64_t puts;	   /* after merging */
	uint64_t bytes;
	uint64_t signals;
	uint64_t credits; /* unordered: signals between ports */
	uint64_t dropped; /* commands for lost peers, never given to the net */
};

/* Sums over operations, in ns since the engine saw an operation begin (anyEpNetTimes_t has what each is). */
struct ep_port_times {
	uint64_t operations;
	uint64_t popped, given, completed, ended;
	uint64_t arrivals, arrived;
};

/* Bytes of the port's own region, which every rank registers as host memory. Not needed on an ordered net that takes 8
 * bytes inline. */
size_t ep_port_mail_size(uint32_t seats, uint32_t window);
/* The widest window up to `want` for this many seats; 0: not even 64 fit into the 32-bit immediate. */
uint32_t ep_port_window(uint32_t seats, uint32_t want);

int ep_port_open(const struct ep_port_opts *opts, struct ep_port **out);
/* Bytes of its tables, without what queued commands need. */
size_t ep_port_bytes(const struct ep_port *port);
/* The port must be detached. NULL is accepted. */
void ep_port_close(struct ep_port *port);
void ep_port_counts(const struct ep_port *port, struct ep_port_counts *out);
/* Times are taken from the first call on. The engine then stays awake during operations, whoever the producers are. */
void ep_port_times(struct ep_port *port, struct ep_port_times *out);
/*
 * Any thread, while the port is attached: waits until the net has completed everything pushed before the call. The
 * claim counters are in device memory, so it waits for more than that: a turn after the call that finds every ring
 * empty and everything popped completed or dropped. Continued pushing can delay this indefinitely. A dead ring counts
 * as empty, and the channel of a lost peer once the net has returned its requests. -EP_ETIMEOUT past the deadline,
 * without a message.
 */
int ep_port_quiet(struct ep_port *port, uint64_t deadline);
/* After its timeout: whether puts to this peer were still in flight. */
bool ep_port_pending(const struct ep_port *port, int rank);
/* The same for the receiving side: until everything that had arrived before the call is processed. */
int ep_port_look(struct ep_port *port, uint64_t deadline);
/* Any thread, one at a time, while the port is attached: what it has in flight and queued, in lines, as of a turn after
 * the call; valid until the next call. -EP_ETIMEOUT, without a message: the engine made no turn. */
int ep_port_describe(struct ep_port *port, uint64_t deadline, const char **out);

#endif
