/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/wire.h"

#include "util/error.h"
#include "util/text.h"

enum { AT_SERVER = 1, AT_CLIENT = 2, AT_BOTH = 3 };

/* A rank of EP_BOOT_MAX_RANKS has 16 targets: 2^0 .. 2^15. */
#define TABLE_MAX (16 * sizeof(struct ep_peer))

static const struct {
	uint8_t purpose;
	uint8_t where;
	uint32_t min, max;
} rules[EP_F_TYPES] = {
	[EP_F_HELLO] = { EP_TO_ROOT, AT_SERVER, sizeof(struct ep_hello), sizeof(struct ep_hello) },
	[EP_F_DONE] = { EP_TO_ROOT, AT_SERVER, 0, 0 },
	[EP_F_FAIL] = { EP_TO_ROOT, AT_BOTH, 0, EP_WHY_MAX },
	[EP_F_HOST] = { EP_TO_ROOT, AT_CLIENT, 0, 0 },
	[EP_F_TABLE] = { EP_TO_ROOT, AT_CLIENT, 0, TABLE_MAX },
	[EP_F_GO] = { EP_TO_ROOT, AT_CLIENT, 0, 0 },
	[EP_F_BLOCK] = { EP_TO_RANK, AT_BOTH, 0, EP_FRAME_MAX },
	[EP_F_GONE] = { EP_TO_RANK, AT_BOTH, 0, EP_WHY_MAX },
	[EP_F_LEFT] = { EP_TO_RANK, AT_BOTH, 0, 0 },
	[EP_F_PARTED] = { EP_TO_RANK, AT_BOTH, 0, EP_WHY_MAX },
	[EP_F_BYE] = { EP_TO_RANK, AT_BOTH, 0, 0 },
	[EP_F_PING] = { EP_TO_RANK, AT_BOTH, 0, 0 },
	[EP_F_PONG] = { EP_TO_RANK, AT_BOTH, 0, 0 },
	[EP_F_SILENT] = { EP_TO_RANK, AT_BOTH, 0, 0 },
	[EP_F_FD_GET] = { EP_TO_FD, AT_SERVER, 0, 0 },
	[EP_F_FD_PUT] = { EP_TO_FD, AT_CLIENT, 0, EP_BOOT_NOTE },
};

int ep_frame_check(const struct ep_frame *f, enum ep_purpose purpose, bool at_server)
{
	if (!f->type || f->type >= EP_F_TYPES)
		return -EPROTO;
	if (rules[f->type].purpose != purpose || !(rules[f->type].where & (at_server ? AT_SERVER : AT_CLIENT)))
		return -EPROTO;
	if (f->bytes < rules[f->type].min || f->bytes > rules[f->type].max)
		return -EPROTO;
	return 0;
}

int ep_frame_err(const struct ep_frame *f)
{
	return f->err && f->err <= EP_ERRNO_MAX ? f->err : EP_EREMOTE;
}

bool ep_peer_ok(const struct ep_peer *peer, uint32_t rank)
{
	bool ok = peer->rank == rank && peer->port && peer->naddr && peer->naddr <= EP_BOOT_ADDRS;

	for (int i = 0; ok && i < peer->naddr; i++)
		ok = peer->addr[i].family == 4 || peer->addr[i].family == 6;
	return ok;
}
