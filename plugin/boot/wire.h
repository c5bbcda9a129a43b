/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels between the processes of a bootstrap: a handshake (boot_shake.h), then frames. A frame is this header
 * and at most EP_FRAME_MAX bytes. Byte order is the host's: a claim says which, and the other kind is refused.
 */
#ifndef EP_PLUGIN_BOOT_WIRE_H
#define EP_PLUGIN_BOOT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/boot/types.h"

#define EP_FRAME_MAX 65536u /* of a body; blobs are cut into pieces of this size */
#define EP_WHY_MAX 400	    /* of a sentence in a frame, without a terminating zero */

/* Where a connection goes; part of what the handshake authenticates. */
enum ep_purpose { EP_TO_ROOT = 1, EP_TO_RANK, EP_TO_FD };

enum ep_frame_type {
	/* rank -> meeting point */
	EP_F_HELLO = 1, /* struct ep_hello */
	EP_F_DONE,	/* all edges of this rank are up */
	/* both ways: the meeting has failed; rank = whose fault (EP_NO_RANK: unknown), err, the sentence */
	EP_F_FAIL,
	/* meeting point -> rank */
	EP_F_HOST,  /* rank lives in the meeting point's process: if that dies, so did the rank */
	EP_F_TABLE, /* struct ep_peer of each rank that the receiver shall connect to */
	EP_F_GO,    /* all are connected */
	/* rank <-> rank */
	EP_F_BLOCK,  /* piece `index` of the blob of `rank` (`total` bytes in all) in collective `seq` */
	EP_F_GONE,   /* rank died (index 0) or gave up (index 1) with err and a sentence; passed on to everybody */
	EP_F_LEFT,   /* rank left in good order after `seq` collectives; passed on to everybody */
	EP_F_PARTED, /* rank does not reach rank `seq` by the net any more, with a sentence; passed on to everybody */
	EP_F_BYE,    /* the sender leaves after `seq` collectives; nothing follows */
	/* file descriptors */
	EP_F_FD_GET, /* seq = key, index 1: of a note */
	EP_F_FD_PUT, /* err; 0: the note is the body, the descriptor comes along */
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
	uint32_t left_ms; /* until this rank gives up */
	uint32_t pad;
	struct ep_peer self;
};
_Static_assert(sizeof(struct ep_hello) == 128, "no padding");

/* 0 when a frame of this type and size may arrive on a connection of this purpose, at this end of it. */
int ep_frame_check(const struct ep_frame *f, enum ep_purpose purpose, bool at_server);

/*
 * The mesh: each rank connects to rank + 2^i, so that everybody is at most log2 R steps from everybody. Pairs that
 * are each other's target (R = 3: all of them) share one connection, opened by the lower rank.
 */
static inline bool ep_mesh_step(uint32_t distance)
{
	return distance && !(distance & (distance - 1));
}

static inline uint32_t ep_mesh_distance(uint32_t from, uint32_t to, uint32_t nranks)
{
	return to >= from ? to - from : nranks - from + to;
}

/* True when `from` opens the connection between the two. */
static inline bool ep_mesh_dials(uint32_t from, uint32_t to, uint32_t nranks)
{
	uint32_t d = ep_mesh_distance(from, to, nranks);

	return ep_mesh_step(d) && (!ep_mesh_step(nranks - d) || from < to);
}

#endif
