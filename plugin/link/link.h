/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group's way to ranks that it cannot map: a net, memory registered with it, rings that kernels push to, and ports on
 * the process's engines. Kernels write rows to that memory and read rows from it: device memory where the net takes it,
 * else host memory pinned for the device, so that any device works with any net.
 */
#ifndef EP_PLUGIN_LINK_H
#define EP_PLUGIN_LINK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/args.h"
#include "kernels/dev.h"
#include "net/net.h"
#include "plugin/boot/boot.h"
#include "plugin/boot/topo.h"
#include "proxy/engine.h"
#include "util/lines.h"

struct ep_trace;

#define EP_LINK_PORTS 8
#define EP_LINK_LANES 4

/* What a link needs of its group. Pointers stay valid until ep_link_close or ep_link_abandon. */
struct ep_link_ctx {
	struct ep_dev *dev;
	struct ep_boot *boot;
	const struct ep_topo *topo;
	int rank, nranks;
	void *stream;	     /* for set-up */
	void *const *mapped; /* [nranks]: NULL for a rank that only the net reaches */
	const bool *wanted;  /* [nranks], until ep_link_open returns: of those, who is put to, both ways; NULL: all */
	bool throughput;     /* the net's limits for large transfers, not for short ones */
	struct ep_trace *trace; /* NULL: off */
	size_t far_size;	/* of the page of words that far ranks write */
	/* From the engines' threads: a peer is lost; the net moves nothing of this rank any more. */
	void (*rank_lost)(void *arg, int rank, const char *why);
	void (*failed)(void *arg, int err, const char *why);
	void *arg;
};

/* Memory of this rank behind a region of the net. */
struct ep_link_mem {
	struct ep_dev *owner;
	struct ep_mem mem;
	struct ep_pinned pin;
	void *mr;
};

struct ep_link_port {
	void *ctx;
	struct ep_engine *engine;
	struct ep_port *port;
	bool attached;
};

struct ep_link {
	struct ep_link_ctx ctx;
	struct ep_net *net;
	ncclEpNetProperties_v1_t props;
	void *listener, *comm;
	struct ep_dev *host; /* owner of host memory; ctx.dev where that is the CPU device */

	int ports, lanes;
	struct ep_link_port port[EP_LINK_PORTS];
	struct ep_ring ring[EP_LINK_PORTS * EP_LINK_LANES]; /* [lanes][ports] */
	struct ep_pinned ring_mem[EP_LINK_PORTS * EP_LINK_LANES];
	struct ep_pinned open; /* struct ep_cmd_open */
	struct ep_mem device;  /* heads, rings and seats */
	struct ep_seat *seat;  /* [nranks] */
	size_t rings_at, seats_at;

	/* Regions: a port's mail each, then control, then payload after payload. */
	struct ep_regions regions;
	struct ep_link_mem mem[EP_REGIONS];
	uint32_t control, payload;	   /* payload 0: none yet */
	uint64_t window_bytes, send_bytes; /* of the latest: for rows that arrive, then for rows that leave */

	/* Rows lie in device memory. If the net is ordered, and so are a NIC's writes there as kernels see them,
	 * signals do too. Else they lie in host memory: a CPU cannot store to device memory. The two are not ordered,
	 * so the net counts as unordered. */
	bool direct;
	/* Engines let the net flush before they signal: the device, or the net, needs it. */
	bool flushes;
	struct ep_link_mem flush; /* what is flushed, local: there before rows are, and in the same memory */
	bool across;		  /* the NIC is on another CPU socket than the device */
	uint32_t near, far;	  /* mapped ranks and those put to, of the rank that has most of them */
	uint32_t peers;		  /* those that this rank puts to */
	bool stuck;		  /* an engine did not return from the net */
	atomic_bool closing;
};

/* Collective. NULL, and 0, when all ranks map each other: the same answer on all of them. */
int ep_link_open(const struct ep_link_ctx *ctx, struct ep_link **out);

/* Collective: bytes for rows that arrive, and for rows that leave; never shrinks. The algorithm divides them. */
int ep_link_reserve(struct ep_link *link, uint64_t window, uint64_t send);

/* Arguments of kernels; zero for NULL. The division of the memory for rows is left to the algorithm. */
void ep_link_args(const struct ep_link *link, struct ep_far *out);
/* After launching a kernel that may push: a GPU cannot wake an engine. */
void ep_link_wake(const struct ep_link *link);
/* Zeroes a word of the control page that remote ranks write. */
int ep_link_clear(struct ep_link *link, uint64_t at);
void ep_link_counts(const struct ep_link *link, struct ep_port_counts *out);
/* Sums of all ports; NULL: zero. */
void ep_link_times(const struct ep_link *link, struct ep_port_times *out);
/* Of registered memory: mail, words and rows. NULL: 0. */
size_t ep_link_bytes(const struct ep_link *link);
/* Of everything else but the net's own: tables of ranks and peers, rings. */
size_t ep_link_tables(const struct ep_link *link);

/* Waits until the net has completed everything pushed; -EP_ETIMEOUT, without a message, past the deadline. */
int ep_link_quiet(const struct ep_link *link, uint64_t deadline);
/* After a timeout of ep_link_quiet: " to rank 3 and rank 5", or "" if it is not known to whom. */
void ep_link_pending(const struct ep_link *link, char *out, size_t size);
/* Its transport, NICs and engines, in lines, for a dump; one thread at a time. */
void ep_link_describe(const struct ep_link *link, uint64_t deadline, struct ep_lines *out);
/* Waits until what has arrived shows in the control page; immediate on an ordered net. */
int ep_link_poll(const struct ep_link *link, uint64_t deadline);
/* Detaches from the engines: between two barriers, the first of them after ep_link_quiet. */
void ep_link_stop(struct ep_link *link);
/* After ep_link_stop and the second barrier. NULL is accepted, as in all of these. */
void ep_link_close(struct ep_link *link);
/* Instead, in a group that failed: engines detach, the memory leaks, as others may still put to it. */
void ep_link_abandon(struct ep_link *link);

/* seat.c: collective. Sets seat, near and far. */
int ep_link_seats(struct ep_link *link);

/* Whether this rank puts to that one. */
bool ep_link_puts_to(const struct ep_link *link, int rank);

/* choose.c: collective. The first net that works between all ranks, with a comm and the ports' contexts. */
int ep_link_net_open(struct ep_link *link);
/* In any state; after ep_link_regions_free. */
void ep_link_net_close(struct ep_link *link);

/* probe.c: a word each way between this rank and those it puts to, over a region of EP_LINK_PROBE(nranks) bytes. */
#define EP_LINK_PROBE(nranks) (((size_t)(nranks) + 1) * sizeof(uint64_t))
int ep_link_probe(struct ep_link *link, uint32_t region, uint64_t deadline);
/* Whether a rank probes this peer, of those it puts to. */
bool ep_link_probes(int nranks, int rank, int peer);

/* mem.c: sets direct where link->props and the device allow rows in device memory, and flushes. */
void ep_link_direct_probe(struct ep_link *link);
/* Rows; words that engines or, of an ordered net, NICs write; what engines write and read. */
enum ep_link_use { EP_LINK_ROWS, EP_LINK_SIGNALS, EP_LINK_MAIL };
/* Collective. A region of the same size on all ranks. */
int ep_link_region(struct ep_link *link, size_t size, enum ep_link_use use, uint32_t *index);
/* Local: what is flushed, if anything is. */
int ep_link_flush_open(struct ep_link *link);
void ep_link_regions_free(struct ep_link *link);
/* Collective: 0, or the first rank's failure with a message that names it. */
int ep_link_agree(struct ep_link *link, int rc, const char *what);

#endif
