/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash of all output bits of flat FWD dispatch and combine: the same in every run, with threads and processes, at
 * every warp width and on every device. It is printed, and compared with -x if given. Exit status 0 or 1.
 */
#include "test/oracle/bits.h"
#include "test/oracle/ht_rig.h"

#define ROUNDS 3

static int outputs_hash(struct ht_rig *rig, uint64_t *hash)
{
	static const enum ht_buf_id ids[] = { HT_OUT, HT_OUT_IDX, HT_OUT_WEIGHTS, HT_SUMS };
	const struct buf_env env = ht_env(rig);

	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		struct buf *buf = &rig->handle[0].buf[ids[i]];
		const uint8_t *at = buf_get(&env, buf, 0, buf->size);

		if (!at)
			return -1;
		*hash = bits_add(*hash, at, buf->size);
	}
	return 0;
}

/* One type, with rows whose sums round differently in any other order. */
static int type_play(struct seat *seat, enum num_type type, uint64_t *hash)
{
	struct ht_cfg cfg = { .handles = 1, .spare = LL_ALL, .tall = true };
	struct ht_rig rig;

	cfg.shape = (struct ht_shape){ .base = { .ranks = BITS_RANKS,
						 .experts = 8 * BITS_RANKS,
						 .topk = 8,
						 .tmax = 24,
						 .hidden = 1000,
						 .token = type,
						 .combine = type },
				       .capacity = BITS_RANKS * 24 };
	cfg.data = (struct ll_data){ .seed = 0xb175, .fill = LL_FILL_FULL, .route = LL_ROUTE_TWICE };
	if (!ht_open(&rig, seat, &cfg))
		for (int round = 0; round < ROUNDS; round++)
			if (ht_script(&rig, "UA DA CA") || outputs_hash(&rig, hash))
				break;
	ht_close(&rig);
	return ht_tell(&rig);
}

static int play(struct seat *seat, uint64_t *hash)
{
	return type_play(seat, NUM_BF16, hash) || type_play(seat, NUM_F16, hash) || type_play(seat, NUM_F32, hash) ? -1
														   : 0;
}

int main(int argc, char **argv)
{
	return bits_main("ht_bits", play, argc, argv);
}
