/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/link/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/link/spot.h"
#include "proxy/cpus.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

#define WINDOW 512u   /* puts of a channel on the way, of an unordered net; where rows cross in large puts, more: */
#define WINDOWS 4096u /* of all channels together: a net's latency is many puts */
/* In flight where the net names no limit for large transfers: what is beyond waits in the engine, where credits
 * overtake it. 400 Gb/s need 335 us for it. */
#define THROUGHPUT_BYTES (16u << 20)
#define LANES_GPU 4 /* rings per port: warps that push at once do not queue up for one counter */
#define ENTRIES_GPU 2048u
#define ENTRIES_HOST 1024u
#define DETACH_MS 10000 /* a turn takes microseconds */

static bool on_cpu(const struct ep_link *link)
{
	return link->ctx.dev->ops->kind == EP_DEV_HOST;
}

/* ---- failures, reported by engine threads ---- */

static void peer_failed(void *arg, int peer, int err, const char *why)
{
	struct ep_link *link = arg;

	(void)err;
	if (!atomic_load_explicit(&link->closing, memory_order_acquire))
		link->ctx.rank_lost(link->ctx.arg, peer, why);
}

/* A net without queryLastError has no error to tell. */
static int peer_error(void *arg, int peer, const char **why)
{
	struct ep_link *link = arg;
	int rc = link->net->ops.queryLastError(link->comm, peer, why);

	return rc == -ENOTSUP ? 0 : rc;
}

static void port_failed(void *arg, int err, const char *why)
{
	struct ep_link *link = arg;

	if (!atomic_load_explicit(&link->closing, memory_order_acquire))
		link->ctx.failed(link->ctx.arg, err, why);
}

/* ---- rings ---- */

static uint32_t entries_wanted(const struct ep_link *link)
{
	int64_t n = ep_param_int(EP_P_RING_ENTRIES);
	uint32_t entries = EP_CMD_ENTRIES_MIN;

	if (n == 0)
		return on_cpu(link) ? ENTRIES_HOST : ENTRIES_GPU;
	while (entries < n)
		entries *= 2;
	return entries;
}

/* Device memory: heads (a cache line each), rings, seats. */
static int rings_make(struct ep_link *link)
{
	struct ep_dev *dev = link->ctx.dev;
	size_t n = (size_t)link->ports * (size_t)link->lanes, heads = n * sizeof(struct ep_cmd_head);
	size_t seats = (size_t)link->ctx.nranks * sizeof(*link->seat);
	struct ep_pinned staging;
	struct ep_cmd_ring *ring;
	int rc;

	link->rings_at = heads;
	link->seats_at = heads + n * sizeof(struct ep_cmd_ring);
	if ((rc = dev->ops->mem_alloc(dev, link->seats_at + seats, &link->device)) ||
	    (rc = dev->ops->pinned_alloc(dev, link->seats_at + seats, &staging)))
		return rc;
	rc = dev->ops->pinned_alloc(dev, sizeof(struct ep_cmd_open), &link->open);
	if (!rc)
		memset(link->open.host, 0, sizeof(struct ep_cmd_open));
	ring = (struct ep_cmd_ring *)((uint8_t *)staging.host + link->rings_at);
	for (size_t i = 0; !rc && i < n; i++) {
		struct ep_pinned *mem = &link->ring_mem[i];
		uint32_t entries = entries_wanted(link);

		if ((rc = dev->ops->pinned_alloc(dev, ep_cmd_pinned_size(entries), mem)) ||
		    (rc = ep_ring_init(&link->ring[i], mem->host, entries, 0)))
			break;
		ring[i] = ep_ring_for_device(&link->ring[i], mem->dev, (struct ep_cmd_head *)link->device.ptr + i);
		ring[i].bell = on_cpu(link) ? ep_engine_bell(link->port[i % (size_t)link->ports].engine) : NULL;
	}
	memcpy((uint8_t *)staging.host + link->seats_at, link->seat, seats);
	if (!rc)
		rc = dev->ops->copy(dev, link->device.ptr, staging.host, link->seats_at + seats, link->ctx.stream);
	if (!rc)
		rc = dev->ops->sync(dev, link->ctx.stream, ep_deadline_ms(10000));
	dev->ops->pinned_free(dev, &staging);
	return rc;
}

/* ---- ports ---- */

/* Rank threads of a process share its engines: a quarter of its CPUs at most, since engines spin. */
static int engines_take(struct ep_link *link)
{
	const struct ep_topo_rank *rank = link->ctx.topo->rank;
	int before = 0, most = ep_cpus_count() / 4, rc = 0;
	char near[1024];

	ep_spot_cpulist(link->props.pciPath ? link->props.pciPath : "", near, sizeof(near));
	for (int r = 0; r < link->ctx.rank; r++)
		before += rank[r].pid_rank == rank[link->ctx.rank].pid_rank;
	most = most < link->ports ? link->ports : most;
	most = most > EP_LINK_PORTS ? EP_LINK_PORTS : most;
	for (int i = 0; !rc && i < link->ports; i++)
		rc = ep_engine_take((before * link->ports + i) % most, near, &link->port[i].engine);
	return rc;
}

static uint32_t link_window(const struct ep_link *link)
{
	uint32_t want = link->ctx.throughput ? WINDOWS / (uint32_t)link->far : WINDOW;

	return ep_port_window((uint32_t)link->far, want > WINDOW ? want : WINDOW);
}

static int port_open(struct ep_link *link, int i, const uint32_t *mail, const struct ep_port_peer *peer)
{
	struct ep_ring *ring[EP_LINK_LANES];
	const ncclEpNetFlow_v1_t *flow = link->ctx.throughput ? &link->props.throughput : &link->props.lowLatency;
	struct ep_port_opts opts = {
		.hot = &link->net->hot,
		.ctx = link->port[i].ctx,
		.ordered = link->props.ordered != 0,
		.max_inline = link->props.maxInline,
		.max_put = link->props.maxPutSize,
		.rank = link->ctx.rank,
		.nranks = link->ctx.nranks,
		.peer = peer,
		.peers = link->peers,
		.seats = link->far,
		.window = link_window(link),
		.regions = &link->regions,
		.mail = mail[i],
		.ring = ring,
		.rings = link->lanes,
		.rung = on_cpu(link),
		.open = link->open.host,
		.trace = link->ctx.trace,
		.trace_row = EP_TRACE_ENGINE + (unsigned)i,
		.flush = link->flush.mr,
		.peer_failed = peer_failed,
		.peer_error = peer_error,
		.failed = port_failed,
		.arg = link,
	};

	/* Flow limits are per rank: its ports share them. */
	opts.flow.maxBytes = flow->maxBytes ? flow->maxBytes : link->ctx.throughput ? THROUGHPUT_BYTES : 0;
	opts.flow.maxBytes = opts.flow.maxBytes ? opts.flow.maxBytes / (uint64_t)link->ports + 1 : 0;
	opts.flow.maxPuts = flow->maxPuts ? (flow->maxPuts + (uint32_t)link->ports - 1) / (uint32_t)link->ports : 0;
	opts.flow.ringPuts = flow->ringPuts;
	for (int lane = 0; lane < link->lanes; lane++)
		ring[lane] = &link->ring[lane * link->ports + i];
	return ep_port_open(&opts, &link->port[i].port);
}

static int ports_open(struct ep_link *link, const uint32_t *mail)
{
	struct ep_port_peer *peer = EP_CALLOC(EP_GROUP, (size_t)link->ctx.nranks, sizeof(*peer), "peers");
	int rc = peer ? 0 : -ENOMEM;

	link->peers = 0;
	for (int r = 0; !rc && r < link->ctx.nranks; r++)
		if (ep_link_puts_to(link, r)) /* as many as its seat says */
			peer[link->peers++] = (struct ep_port_peer){ .rank = r, .there = link->seat[r].there };
	for (int i = 0; !rc && i < link->ports; i++) {
		rc = port_open(link, i, mail, peer);
		if (!rc)
			rc = ep_engine_attach(link->port[i].engine, link->port[i].port);
		link->port[i].attached = !rc;
	}
	free(peer);
	return rc;
}

/* ---- life ---- */

static bool needed(const struct ep_link_ctx *ctx)
{
	for (int r = 0; r < ctx->nranks; r++)
		if (!ctx->mapped[r])
			return true;
	return false;
}

static int needed_agree(const struct ep_link_ctx *ctx, bool *out)
{
	uint8_t mine = needed(ctx), *all = EP_CALLOC(EP_GROUP, (size_t)ctx->nranks, 1, "the ranks' answers");
	int rc;

	if (!all)
		return -ENOMEM;
	rc = ep_boot_allgather(ctx->boot, &mine, 1, all);
	*out = false;
	for (int r = 0; r < ctx->nranks; r++)
		*out |= all[r] != 0;
	free(all);
	return rc;
}

static int link_furnish(struct ep_link *link)
{
	const struct ep_link_ctx *ctx = &link->ctx;
	uint32_t mail[EP_LINK_PORTS];
	int rc = ep_link_seats(link);

	if (!rc && !link->far)
		rc = EP_FAIL(EP_GROUP, EP_EINTERNAL, "rank %d: ranks do not map each other, and none puts to another",
			     ctx->rank);
	if (rc || (rc = ep_link_net_open(link)))
		return rc;
	link->lanes = on_cpu(link) ? 1 : LANES_GPU;
	for (int i = 0; !rc && i < link->ports; i++)
		rc = ep_link_region(link, ep_port_mail_size(link->far, link_window(link)), EP_LINK_MAIL, &mail[i]);
	if (rc || (rc = ep_link_region(link, ctx->far_size, EP_LINK_SIGNALS, &link->control)))
		return rc;
	if (!(rc = engines_take(link)) && !(rc = rings_make(link)) && !(rc = ep_link_flush_open(link)))
		rc = ports_open(link, mail);
	return ep_link_agree(link, rc, "start its engines");
}

int ep_link_open(const struct ep_link_ctx *ctx, struct ep_link **out)
{
	struct ep_link *link;
	bool need = false;
	int rc = needed_agree(ctx, &need);

	if (rc || !need) {
		*out = NULL;
		return rc;
	}
	link = EP_CALLOC(EP_GROUP, 1, sizeof(*link), "the link to remote ranks");
	if (!link)
		return -ENOMEM;
	link->ctx = *ctx;
	link->host = ctx->dev;
	if (!on_cpu(link) && (rc = ep_dev_row(EP_DEV_HOST)->open(0, &link->host))) {
		free(link);
		return rc;
	}
	if ((rc = link_furnish(link))) {
		ep_link_stop(link);
		ep_link_close(link);
		return rc;
	}
	EP_INFO(EP_GROUP, "rank %d: %u remote ranks over net %s (%s%s), %d engines, %zu KiB of words, mail and tables",
		ctx->rank, link->peers, link->net->name, link->props.ordered ? "ordered" : "unordered",
		link->flush.mr ? ", flushed" : "", link->ports, (ep_link_bytes(link) + ep_link_tables(link)) >> 10);
	*out = link;
	return 0;
}

int ep_link_reserve(struct ep_link *link, uint64_t window, uint64_t send)
{
	uint32_t index;
	int rc;

	window = window > link->window_bytes ? window : link->window_bytes;
	send = send > link->send_bytes ? send : link->send_bytes;
	if (link->payload && window == link->window_bytes && send == link->send_bytes)
		return 0;
	if ((rc = ep_link_region(link, window + send, EP_LINK_ROWS, &index)))
		return rc;
	link->payload = index;
	link->window_bytes = window;
	link->send_bytes = send;
	return 0;
}

void ep_link_args(const struct ep_link *link, struct ep_far *out)
{
	uint8_t *device, *payload;

	*out = (struct ep_far){ .ring = NULL };
	if (!link)
		return;
	device = link->device.ptr;
	payload = link->mem[link->payload].pin.dev;
	*out = (struct ep_far){
		.ring = (const struct ep_cmd_ring *)(device + link->rings_at),
		.seat = (const struct ep_seat *)(device + link->seats_at),
		.open = link->open.dev,
		.control = link->mem[link->control].pin.dev,
		.window = payload,
		.send = payload + link->window_bytes,
		.control_place = EP_REGION_AT(link->control, 0),
		.window_place = EP_REGION_AT(link->payload, 0),
		.send_place = EP_REGION_AT(link->payload, link->window_bytes),
		.ports = (uint32_t)link->ports,
		.lanes = (uint32_t)link->lanes,
		.control_pinned = link->mem[link->control].owner == link->host,
		.window_pinned = link->mem[link->payload].owner == link->host,
	};
}

void ep_link_wake(const struct ep_link *link)
{
	for (int i = 0; link && i < link->ports; i++)
		ep_engine_wake(link->port[i].engine);
}

int ep_link_clear(struct ep_link *link, uint64_t at)
{
	const struct ep_link_mem *m = link ? &link->mem[link->control] : NULL;
	struct ep_dev *dev = link ? link->ctx.dev : NULL;

	if (m && m->owner != link->host)
		return dev->ops->fill(dev, (uint8_t *)m->mem.ptr + at, 0, sizeof(uint64_t), link->ctx.stream);
	if (m)
		__atomic_store_n((uint64_t *)((uint8_t *)m->mem.ptr + at), 0, __ATOMIC_RELAXED);
	return 0;
}

void ep_link_counts(const struct ep_link *link, struct ep_port_counts *out)
{
	struct ep_port_counts sum = { 0 }, one;

	for (int i = 0; link && i < link->ports; i++) {
		ep_port_counts(link->port[i].port, &one);
		sum.commands += one.commands;
		sum.joined += one.joined;
		sum.puts += one.puts;
		sum.bytes += one.bytes;
		sum.signals += one.signals;
		sum.credits += one.credits;
		sum.dropped += one.dropped;
	}
	*out = sum;
}

void ep_link_times(const struct ep_link *link, struct ep_port_times *out)
{
	struct ep_port_times sum = { 0 }, one;

	for (int i = 0; link && i < link->ports; i++) {
		ep_port_times(link->port[i].port, &one);
		sum.operations += one.operations;
		sum.popped += one.popped;
		sum.given += one.given;
		sum.completed += one.completed;
		sum.ended += one.ended;
		sum.arrivals += one.arrivals;
		sum.arrived += one.arrived;
	}
	*out = sum;
}

size_t ep_link_bytes(const struct ep_link *link)
{
	size_t sum = 0;

	for (uint32_t i = 0; link && i < link->regions.count; i++)
		sum += link->regions.region[i].size;
	return sum;
}

size_t ep_link_tables(const struct ep_link *link)
{
	size_t sum = sizeof(*link) + (size_t)link->ctx.nranks * sizeof(*link->seat) + link->device.size;

	for (int i = 0; i < link->ports; i++)
		sum += ep_port_bytes(link->port[i].port);
	for (int i = 0; i < link->ports * link->lanes; i++)
		sum += link->ring_mem[i].size;
	return sum;
}

int ep_link_quiet(const struct ep_link *link, uint64_t deadline)
{
	int rc = 0;

	for (int i = 0; link && !rc && i < link->ports; i++)
		rc = ep_port_quiet(link->port[i].port, deadline);
	return rc;
}

void ep_link_pending(const struct ep_link *link, char *out, size_t size)
{
	size_t at = 0;
	int n = 0;

	out[0] = '\0';
	for (int r = 0; link && r < link->ctx.nranks; r++) {
		bool pending = false;

		for (int i = 0; i < link->ports && !pending; i++)
			pending = ep_port_pending(link->port[i].port, r);
		if (pending && at < size)
			at += (size_t)snprintf(out + at, size - at, "%s rank %d", n++ ? " and" : " to", r);
	}
}

int ep_link_poll(const struct ep_link *link, uint64_t deadline)
{
	int rc = 0;

	for (int i = 0; link && !rc && i < link->ports; i++)
		rc = ep_port_look(link->port[i].port, deadline);
	return rc == -EP_ETIMEOUT ? EP_FAIL(EP_GROUP, -rc, "rank %d: an engine is stuck and does not poll for arrivals",
					    link->ctx.rank)
				  : rc;
}

void ep_link_stop(struct ep_link *link)
{
	if (!link)
		return;
	atomic_store_explicit(&link->closing, true, memory_order_release);
	for (int i = 0; i < EP_LINK_PORTS; i++) {
		struct ep_link_port *p = &link->port[i];

		/* An engine stuck in the net still uses its port: both leak until the process ends. */
		if (p->attached && ep_engine_detach(p->engine, p->port, ep_deadline_ms(DETACH_MS))) {
			link->stuck = true;
			p->engine = NULL;
			p->port = NULL;
		}
		p->attached = false;
		if (p->engine)
			ep_engine_give(p->engine);
		p->engine = NULL;
		ep_port_close(p->port);
		p->port = NULL;
	}
}

void ep_link_abandon(struct ep_link *link)
{
	ep_link_stop(link);
	if (!link || link->stuck) /* a stuck engine's callbacks still use it */
		return;
	free(link->seat);
	free(link);
}

void ep_link_close(struct ep_link *link)
{
	struct ep_dev *dev;

	if (!link || link->stuck)
		return;
	dev = link->ctx.dev;
	for (int i = 0; i < EP_LINK_PORTS; i++) {
		if (link->port[i].ctx)
			link->net->ops.destroyContext(link->port[i].ctx);
		link->port[i].ctx = NULL;
	}
	ep_link_regions_free(link);
	ep_link_net_close(link);
	for (int i = 0; i < EP_LINK_PORTS * EP_LINK_LANES; i++)
		if (link->ring_mem[i].host)
			dev->ops->pinned_free(dev, &link->ring_mem[i]);
	if (link->open.host)
		dev->ops->pinned_free(dev, &link->open);
	if (link->device.ptr)
		dev->ops->mem_free(dev, &link->device);
	if (link->host && link->host != dev)
		link->host->ops->close(link->host);
	free(link->seat);
	free(link);
}
