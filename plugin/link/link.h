/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group's way to ranks that cannot be mapped: a net, memory that it reads and writes, rings that kernels push to, and
 * ports of the process's engines. Kernels leave rows in that memory and take them from it themselves: it is the GPU's
 * where the net takes that, else the CPU's, pinned for the device, so that any device works with any net.
 */
#ifndef EP_PLUGIN_UPLINK_H
#define EP_PLUGIN_UPLINK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kernels/args.h"
#include "kernels/dev.h"
#include "net/net.h"
#include "proxy/engine.h"

#define EP_UPLINK_PORTS 8
#define EP_UPLINK_LANES 4

struct ncclEpGroup;

/* Memory of this rank that a region of the net lies in. */
struct ep_uplink_mem {
	struct ep_dev *owner;
	struct ep_mem mem;
	struct ep_pinned pin;
	void *mr;
};

struct ep_uplink_port {
	void *ctx;
	struct ep_engine *engine;
	struct ep_port *port;
	bool attached;
};

struct ep_uplink {
	struct ncclEpGroup *group;
	struct ep_net *net;
	ncclEpNetProperties_v1_t props;
	void *listener, *comm;
	struct ep_dev *host; /* whose memory it is; the group's device where that is the CPU */

	int ports, lanes;
	struct ep_uplink_port port[EP_UPLINK_PORTS];
	struct ep_ring ring[EP_UPLINK_PORTS * EP_UPLINK_LANES]; /* [lanes][ports] */
	struct ep_pinned ring_mem[EP_UPLINK_PORTS * EP_UPLINK_LANES];
	struct ep_mem device; /* heads, rings and seats */
	size_t rings_at, seats_at;

	/* Regions: a port's mail each, then control, then payload after payload. */
	struct ep_regions regions;
	struct ep_uplink_mem mem[EP_REGIONS];
	uint32_t control, payload;	    /* payload 0: none yet */
	uint64_t window_bytes, send_stride; /* of one buffer of the latest, and of one receiver's part of it */

	/* Rows lie in memory of the GPU. A NIC's writes there keep no order with those to signals, so then the net is
	 * unordered, and engines flush before they signal. */
	bool direct;
	uint32_t near, far; /* mapped ranks and others, of the rank that has most of them */
	bool stuck;	    /* an engine did not come back */
	atomic_bool closing;
};

/* Collective. NULL, and 0, when all ranks map each other: the same answer on all of them. */
int ep_uplink_open(struct ncclEpGroup *group, struct ep_uplink **out);

/* Collective: room for rows that arrive, and for those that leave for one rank, in one buffer of two; never shrinks. */
int ep_uplink_reserve(struct ep_uplink *link, uint64_t window, uint64_t send);

/* What kernels are told; zero for NULL. */
void ep_uplink_args(const struct ep_uplink *link, struct ep_far *out);
/* A kernel was launched that may push: a GPU cannot wake an engine. */
void ep_uplink_wake(const struct ep_uplink *link);
/* Sets a word of what the net writes for this rank back to 0. */
int ep_uplink_clear(struct ep_uplink *link, uint64_t at);
void ep_uplink_counts(const struct ep_uplink *link, struct ep_port_counts *out);
size_t ep_uplink_bytes(const struct ep_uplink *link);

/* Everything pushed is completed by the net; -EP_ETIMEOUT, without a sentence, past the deadline. */
int ep_uplink_quiet(const struct ep_uplink *link, uint64_t deadline);
/* What others sent and has arrived shows in the control page: at once where the net keeps order. */
int ep_uplink_look(const struct ep_uplink *link, uint64_t deadline);
/* Engines let go: between two barriers, the first of them after ep_uplink_quiet. */
void ep_uplink_stop(struct ep_uplink *link);
/* After ep_uplink_stop and the second barrier. NULL is accepted, as in all of these. */
void ep_uplink_close(struct ep_uplink *link);
/* Instead, in a group that failed: engines stop, the memory stays, as others may still put to it. */
void ep_uplink_abandon(struct ep_uplink *link);

/* uplink_net.c: collective. The best net that works between all ranks, with a comm and the ports' contexts. */
int ep_uplink_net_open(struct ep_uplink *link);
/* In any state; after ep_uplink_regions_free. */
void ep_uplink_net_close(struct ep_uplink *link);
/* CPUs this process may use. */
int ep_uplink_cpus(void);

/* uplink_mem.c: whether memory of the GPU will be tried, of link->props. */
void ep_uplink_direct_probe(struct ep_uplink *link);
/* Collective. A region of so many bytes, alike on all ranks; signals: the CPU may write words there. */
int ep_uplink_region(struct ep_uplink *link, size_t size, bool signals, uint32_t *index);
void ep_uplink_regions_free(struct ep_uplink *link);
/* Collective: 0, or the first rank's failure with a sentence that names it. */
int ep_uplink_agree(struct ep_uplink *link, int rc, const char *what);

#endif
