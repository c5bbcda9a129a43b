/* SPDX-License-Identifier: Apache-2.0 */
/* Types shared by all layers of the bootstrap. */
#ifndef EP_PLUGIN_BOOT_TYPES_H
#define EP_PLUGIN_BOOT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EP_BOOT_ADDRS 4
#define EP_BOOT_SECRET 16
#define EP_BOOT_MAX_RANKS 65536
#define EP_BOOT_NOTE 128 /* bytes of a note, see fd.h */

struct ep_boot_addr {
	uint8_t family; /* 4 or 6, 0 = unused; not AF_ values, which differ between systems */
	uint8_t pad[3];
	uint32_t scope;
	uint8_t ip[16];
};

struct ep_boot_id {
	char magic[8];
	uint8_t secret[EP_BOOT_SECRET];
	uint16_t port;
	uint8_t naddr;
	uint8_t pad[5];
	struct ep_boot_addr addr[EP_BOOT_ADDRS];
};
_Static_assert(sizeof(struct ep_boot_id) == 128, "the unique id is 128 bytes");

struct ep_boot;

/* What speaks against a rank, weakest first: a stronger one replaces a weaker one, of equals the first stays. */
enum ep_evidence {
	EP_EV_NONE,
	EP_EV_MISSING, /* its block or signal did not arrive: it, or a rank between, is slow, stopped or dead */
	EP_EV_SILENT,  /* it does not answer its neighbours' pings */
	EP_EV_LOST,    /* the net failed to reach it */
	EP_EV_CERTAIN, /* its socket closed, or it said itself why it gives up */
};

struct ep_blame {
	int rank; /* -1: not known */
	enum ep_evidence evidence;
};

/* Reports a rank that is gone: its connection closed, it called ep_boot_abort, or it called ep_boot_parted on this rank
 * (why is then its own message). The blame is for what made it go: another rank, or itself. Called once per rank, from
 * the service thread; must not block or call ep_boot_. */
typedef void (*ep_boot_gone_fn)(void *ctx, int rank, struct ep_blame blame, const char *why);

/* Names the endpoint that offers file descriptors. */
struct ep_fd_token {
	uint8_t bytes[16];
};

#endif
