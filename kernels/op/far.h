/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and signals to far ranks: commands to the engines (kernels/op/far_args.h). By whole warps: a command of each
 * lane that has one. */
#ifndef EP_KERNELS_FAR_H
#define EP_KERNELS_FAR_H

#include "kernels/gx/ring.h"
#include "kernels/op/far_args.h"

/* The peer of a lane that has no command. */
#define FAR_NOBODY UINT32_MAX

/* All commands for a rank go through one ring, which keeps their order. Both ranks of a pair use the same port, so that
 * one engine handles both directions. By seats, not by ranks: those of a rail differ by a multiple of the ranks per
 * node, and all of them would share one ring. */
GX_DEV uint32_t far_ring(const struct ep_far *far, uint32_t peer)
{
	struct ep_seat seat = far->seat[peer];
	uint32_t port = (seat.here + seat.there) % far->ports, lane = seat.here / far->ports % far->lanes;

	return lane * far->ports + port;
}

/* A command and its ring. Made before a fence, so that the loads overlap with what the fence waits for. */
struct far_cmd {
	uint32_t peer, ring;
	struct ep_cmd cmd;
};

/* peer FAR_NOBODY: none. */
GX_DEV struct far_cmd far_to(const struct ep_far *far, uint32_t peer, struct ep_cmd cmd)
{
	struct far_cmd to = { peer, peer == FAR_NOBODY ? GX_NO_RING : far_ring(far, peer), cmd };

	return to;
}

/*
 * All lanes. 0, or enum gx_wait_result of the lane's command. fence: of what was written before; else the caller has
 * made it. failed is polled as rarely as what may be across PCIe: who gives up leaves a dead ring, so a slow engine has
 * 2 ms to pop.
 */
GX_SLOW uint32_t far_push_lanes(const struct ep_far *far, uint32_t ring, struct ep_cmd cmd, uint64_t deadline,
				const uint64_t *abort, const uint64_t *failed, uint32_t fence)
{
	struct gx_limit limit = { deadline, abort, NULL, failed, NULL };

	return (uint32_t)gx_ring_push_lanes(&far->ring[ring == GX_NO_RING ? 0 : ring], ring, cmd, &limit, fence);
}

GX_DEV uint32_t far_push(const struct ep_far *far, const struct far_cmd *to, const struct gx_limit *limit,
			 uint32_t fence)
{
	return far_push_lanes(far, to->ring, to->cmd, limit->deadline, limit->abort, limit->failed, fence);
}

/* A word of peer's, which becomes visible there after everything pushed for it before. */
GX_DEV struct ep_cmd far_signal(const struct ep_far *far, uint32_t peer, uint64_t at, uint64_t value)
{
	return ep_cmd_signal(peer, far->control_place + at, value);
}

/* The same, and another follows that says that all has come. */
GX_DEV struct ep_cmd far_step(const struct ep_far *far, uint32_t peer, uint64_t at, uint64_t value)
{
	return ep_cmd_step(peer, far->control_place + at, value);
}

/* The same as a signal, but it overtakes what waits for the net: nothing pushed before belongs to it. */
GX_DEV struct ep_cmd far_credit(const struct ep_far *far, uint32_t peer, uint64_t at, uint64_t value)
{
	return ep_cmd_credit(peer, far->control_place + at, value);
}

#endif
