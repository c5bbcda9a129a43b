/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire format of the bootstrap: a handshake (shake.h), then frames, each a header and at most EP_FRAME_MAX bytes,
 * in the host's byte order, which the handshake checks.
 */
#ifndef EP_PLUGIN_BOOT_WIRE_H
#define EP_PLUGIN_BOOT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/boot/types.h"

#define EP_FRAME_MAX 65536u /* of a body; larger blobs are cut into pieces */
#define EP_WHY_MAX 400	    /* of a message in a frame, without terminating zero */

/* What a connection is for; authenticated by the handshake. */
enum ep_purpose { EP_TO_ROOT = 1, EP_TO_RANK, EP_TO_FD };

enum ep_frame_type {
	/* rank -> root */
	EP_F_HELLO = 1, /* struct ep_hello */
	EP_F_DONE,	/* all edges of this rank are connected; it waited `total` ms for that of `rank` */
	/* both ways: the bootstrap failed; rank at fault or EP_NO_RANK, err, message */
	EP_F_FAIL,
	/* root -> rank */
	EP_F_HOST,  /* the rank in the root's process: if the root dies, so did the rank */
	EP_F_TABLE, /* struct ep_peer of each rank to connect to */
	EP_F_GO,    /* all are connected; the others had waited `total` ms for `rank`, until `seq` ms ago */
	/* rank <-> rank */
	EP_F_BLOCK, /* piece `index` of the blob of `rank` (`total` bytes in all) in collective `seq` */
	/* rank died (index 0) or gave up (index 1; `total` is the rank to blame, `seq` the enum ep_evidence): err,
	 * message; forwarded to all */
	EP_F_GONE,
	EP_F_LEFT,   /* rank left after `seq` collectives; forwarded to all */
	EP_F_PARTED, /* rank has lost rank `seq` on the data path: message; forwarded to all */
	EP_F_BYE,    /* the sender leaves after `seq` collectives; its last frame */
	EP_F_PING,   /* to be answered */
	EP_F_PONG,
	/* rank has not answered `index` for `total` ms (`seq` odd) or answers again (even), see silence.h; forwarded to
	 * all */
	EP_F_SILENT,
	/* file descriptors */
	EP_F_FD_GET, /* seq = key, index 1: of a note */
	EP_F_FD_PUT, /* err; if 0 the note is the body, the descriptor is attached */
	EP_F_TYPES
};

#define EP_NO_RANK UINT32_MAX

struct ep_frame {
	uint32_t bytes; /* of the body */
	uint16_t type;
	uint16_t err;
	uint32_t rank;
	uint32_t index;
	uint64_t seq;
	uint64_t total;
};
_Static_assert(sizeof(struct ep_frame) == 32, "no padding");

/* Where a rank listens. */
struct ep_peer {
	uint32_t rank;
	uint16_t port;
	uint8_t naddr;
	uint8_t pad;
	struct ep_boot_addr addr[EP_BOOT_ADDRS];
};
_Static_assert(sizeof(struct ep_peer) == 104, "no padding");

struct ep_hello {
	uint32_t nranks;
	uint32_t survive;
	uint64_t cookie;  /* of the process, see ep_boot_cookie */
	uint32_t left_ms; /* until this rank times out */
	uint32_t pad;
	struct ep_peer self;
};
_Static_assert(sizeof(struct ep_hello) == 128, "no padding");

/* 0 if a frame of this type and size is allowed on a connection of this purpose, at this end. */
int ep_frame_check(const struct ep_frame *f, enum ep_purpose purpose, bool at_server);

/* The error of a frame, a positive errno; one that is none counts as EP_EREMOTE. */
int ep_frame_err(const struct ep_frame *f);

/* Whether this is an address of that rank that can be connected to. */
bool ep_peer_ok(const struct ep_peer *peer, uint32_t rank);

/*
 * The mesh: each rank connects to rank + 2^i, so that no two ranks are more than log2 R hops apart. Ranks that are each
 * other's target (R = 3: all) share one connection, opened by the lower rank.
 */
static inline bool ep_mesh_step(uint32_t distance)
{
	return distance && !(distance & (distance - 1));
}

static inline uint32_t ep_mesh_distance(uint32_t from, uint32_t to, uint32_t nranks)
{
	return to >= from ? to - from : nranks - from + to;
}

/* Whether `from` opens the connection between the two. */
static inline bool ep_mesh_dials(uint32_t from, uint32_t to, uint32_t nranks)
{
	uint32_t d = ep_mesh_distance(from, to, nranks);

	return ep_mesh_step(d) && (!ep_mesh_step(nranks - d) || from < to);
}

#endif
