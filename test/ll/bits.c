/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash of the bits of LL's sums, of both layouts: the same in every run, with threads and processes, at every warp
 * width and on every device. It is printed, and compared with -x if given. Exit status 0 or 1.
 */
#include "test/oracle/bits.h"
#include "test/oracle/rig_buf.h"

#define ROUNDS 3

static int sums_hash(struct rig *rig, uint64_t *hash)
{
	struct buf *buf = &rig->handle[0].buf[RIG_SUMS];
	const uint8_t *at = rig_buf_get(rig, buf, 0, buf->size);

	if (!at)
		return -1;
	*hash = bits_add(*hash, at, buf->size);
	return 0;
}

/* One type and layout, with rows whose sums round differently in any other order. */
static int type_play(struct seat *seat, enum ll_layout layout, enum num_type type, uint64_t *hash)
{
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL };
	struct rig rig;

	cfg.shape = (struct ll_shape){ .layout = layout,
				       .ranks = BITS_RANKS,
				       .experts = 8 * BITS_RANKS,
				       .topk = 8,
				       .tmax = 24,
				       .hidden = 1000,
				       .token = type,
				       .combine = type };
	cfg.data = (struct ll_data){ .seed = 0xb175, .fill = LL_FILL_FULL, .route = LL_ROUTE_TWICE };
	if (!rig_open(&rig, seat, &cfg))
		for (int round = 0; round < ROUNDS; round++)
			if (rig_script(&rig, "DA CA") || sums_hash(&rig, hash))
				break;
	rig_close(&rig);
	return rig_tell(&rig);
}

static int play(struct seat *seat, uint64_t *hash)
{
	static const enum num_type types[] = { NUM_BF16, NUM_F16, NUM_F32 };

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (type_play(seat, LL_EXPERT_MAJOR, types[i], hash) || type_play(seat, LL_RANK_MAJOR, types[i], hash))
			return -1;
	return 0;
}

int main(int argc, char **argv)
{
	return bits_main("ll_bits", play, argc, argv);
}
