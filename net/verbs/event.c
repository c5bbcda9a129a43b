/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device events, and the state of the port. A port that is down, or has another address, loses every peer at once:
 * retransmissions last for NCCL_EP_IB_TIMEOUT and NCCL_EP_IB_RETRY_CNT (9 s), and their error says nothing of the port.
 * An event only says that something changed: the decision is by the state that is read then, since the port may be up
 * again, and the GID that changed may be another. A port that raises no event is read when a peer acknowledges nothing;
 * not by the clock, because a read may be a command to the firmware, of up to a millisecond.
 */
#include <arpa/inet.h>
#include <sched.h>
#include <stdio.h>

#include "net/verbs/verbs.h"
#include "util/clock.h"
#include "util/error.h"

#define PORT_GAP_NS 250000000ull    /* between two reads of the port's state */
#define PORT_DOUBT_NS 1000000000ull /* after an event that the state did not confirm: some drivers report it early */

/* Fails all contexts of the comm. */
static void comm_break(struct vb_comm *comm, const char *why)
{
	char gid[INET6_ADDRSTRLEN];
	int none = 0;

	if (!__atomic_compare_exchange_n(&comm->broken, &none, -1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return;
	snprintf(comm->why, sizeof(comm->why), "verbs: rank %d: %s (%s): %s", comm->base.rank, comm->dev->name,
		 vb_gid_text(&comm->dev->gid.gid, gid), why);
	/* R2: pairs with A2 in vb_look: the message is complete. */
	__atomic_store_n(&comm->broken, EIO, __ATOMIC_RELEASE);
}

/* All but this rank itself, which the NIC reaches without the wire. */
static void peers_lose(struct vb_comm *comm, const char *why)
{
	for (int r = 0; r < comm->base.nranks; r++)
		if (r != comm->base.rank && !ep_base_is_lost(&comm->base, r))
			vb_peer_lost(comm, r, "%s", why);
}

/* Whether the state could be read. */
static bool port_check(struct vb_comm *comm)
{
	const struct vb_dev *dev = comm->dev;
	struct ib_port_attr now;
	char why[160];

	if (vb_api()->query_port(comm->context, dev->port, &now))
		return false;
	if (!vb_port_is_up(now.state)) {
		snprintf(why, sizeof(why), "port %s is %s; check the cable or ip link", dev->name,
			 vb_port_state(now.state));
		peers_lose(comm, why);
	} else if (!dev->roce && now.lid != dev->link.lid) {
		snprintf(why, sizeof(why),
			 "the LID of port %s changed from %u to %u; was the subnet manager restarted?", dev->name,
			 dev->link.lid, now.lid);
		peers_lose(comm, why);
	}
	return true;
}

static void port_down(struct vb_comm *comm)
{
	char why[160];

	if (!port_check(comm)) {
		snprintf(why, sizeof(why), "port %s is down, says the NIC; check the cable or ip link",
			 comm->dev->name);
		peers_lose(comm, why);
	}
	comm->port_until = ep_now_ns() + PORT_DOUBT_NS;
}

static void gid_check(struct vb_comm *comm)
{
	const struct vb_gid_choice *mine = &comm->dev->gid;
	char why[160], old[INET6_ADDRSTRLEN], new[INET6_ADDRSTRLEN];
	union ib_gid now;

	if (vb_api()->query_gid(comm->context, comm->dev->port, mine->index, &now))
		now = (union ib_gid){ 0 };
	if (!memcmp(&now, &mine->gid, sizeof(now)))
		return;
	snprintf(why, sizeof(why), "GID %d of port %s changed from %s to %s; check its addresses (ip addr)",
		 mine->index, comm->dev->name, vb_gid_text(&mine->gid, old), vb_gid_text(&now, new));
	peers_lose(comm, why);
}

static void qp_failed(struct vb_comm *comm, const struct ib_event *event)
{
	const struct vb_qp *qp = event->element.qp->own;

	if (!qp)
		comm_break(comm, "the UD queue pair failed");
	else
		vb_peer_lost(comm, qp->conn->peer, "queue pair error: %s",
			     event->type == IB_EVENT_QP_ACCESS_ERR ? "it accessed memory that is not registered for it"
								   : "reported by the NIC");
}

static void port_event(struct vb_comm *comm, const struct ib_event *event)
{
	if (event->element.port != comm->dev->port)
		return;
	EP_INFO(EP_NET, "verbs: rank %d: event %u of port %s", comm->base.rank, event->type, comm->dev->name);
	if (event->type == IB_EVENT_PORT_ERR)
		port_down(comm);
	else if (event->type == IB_EVENT_GID_CHANGE)
		gid_check(comm);
	else
		port_check(comm);
}

static void event_take(struct vb_comm *comm, const struct ib_event *event)
{
	switch (event->type) {
	case IB_EVENT_CQ_ERR:
		comm_break(comm, "completion queue overrun; is option cq= too small?");
		break;
	case IB_EVENT_SRQ_ERR:
		comm_break(comm, "shared receive queue failed");
		break;
	case IB_EVENT_DEVICE_FATAL:
		comm_break(comm, "device fatal error; see the kernel log");
		break;
	case IB_EVENT_QP_FATAL:
	case IB_EVENT_QP_REQ_ERR:
	case IB_EVENT_QP_ACCESS_ERR:
		qp_failed(comm, event);
		break;
	case IB_EVENT_PORT_ACTIVE:
	case IB_EVENT_PORT_ERR:
	case IB_EVENT_LID_CHANGE:
	case IB_EVENT_GID_CHANGE:
		port_event(comm, event);
		break;
	default:
		break;
	}
}

/* The descriptor is non-blocking. */
static void events_read(struct vb_comm *comm)
{
	struct ib_event event;

	while (!vb_api()->get_async_event(comm->context, &event)) {
		event_take(comm, &event);
		vb_api()->ack_async_event(&event);
	}
}

static bool look_begin(struct vb_comm *comm)
{
	int none = 0;

	/* A3: pairs with R3 in look_end. */
	return __atomic_compare_exchange_n(&comm->looking, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static void look_end(struct vb_comm *comm)
{
	/* R3: pairs with A3 in look_begin: port_next and port_until. */
	__atomic_store_n(&comm->looking, 0, __ATOMIC_RELEASE);
}

static void port_doubt(struct vb_comm *comm)
{
	uint64_t now;

	if (!comm->port_until && !__atomic_load_n(&comm->stalled, __ATOMIC_RELAXED))
		return;
	now = ep_now_ns();
	if (now < comm->port_next)
		return;
	comm->port_next = now + PORT_GAP_NS;
	if (now > comm->port_until)
		comm->port_until = 0;
	__atomic_store_n(&comm->stalled, 0, __ATOMIC_RELAXED);
	port_check(comm);
}

void vb_events_look(struct vb_comm *comm)
{
	if (!look_begin(comm))
		return;
	events_read(comm);
	port_doubt(comm);
	look_end(comm);
}

void vb_port_blame(struct vb_comm *comm)
{
	while (!look_begin(comm)) /* for a few reads at most */
		sched_yield();
	events_read(comm);
	port_check(comm);
	look_end(comm);
}
