/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash of all output bits of flat FWD dispatch and combine: the same in every run, with threads and processes, at
 * every warp width and on every device. It is printed, and compared with -x if given. Exit status 0 or 1.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "test/oracle/ht_rig.h"

#define RANKS 4
#define ROUNDS 3

struct board {
	uint64_t hash[RANKS];
};

/* Depends on the order, and on the position of zeros. */
static uint64_t hash_add(uint64_t hash, const uint8_t *at, size_t n)
{
	for (size_t i = 0; i < n; i++)
		hash = (hash ^ at[i]) * 0x100000001b3ull + 1;
	return hash;
}

static int outputs_hash(struct ht_rig *rig, uint64_t *hash)
{
	static const enum ht_buf_id ids[] = { HT_OUT, HT_OUT_IDX, HT_OUT_WEIGHTS, HT_SUMS };
	const struct buf_env env = ht_env(rig);

	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		struct buf *buf = &rig->handle[0].buf[ids[i]];
		const uint8_t *at = buf_get(&env, buf, 0, buf->size);

		if (!at)
			return -1;
		*hash = hash_add(*hash, at, buf->size);
	}
	return 0;
}

/* One type, with rows whose sums round differently in any other order. */
static int type_play(struct seat *seat, enum num_type type, uint64_t *hash)
{
	struct ht_cfg cfg = { .handles = 1, .spare = LL_ALL, .tall = true };
	struct ht_rig rig;

	cfg.shape = (struct ht_shape){ .base = { .ranks = RANKS,
						 .experts = 8 * RANKS,
						 .topk = 8,
						 .tmax = 24,
						 .hidden = 1000,
						 .token = type,
						 .combine = type },
				       .capacity = RANKS * 24 };
	cfg.data = (struct ll_data){ .seed = 0xb175, .fill = LL_FILL_FULL, .route = LL_ROUTE_TWICE };
	if (!ht_open(&rig, seat, &cfg))
		for (int round = 0; round < ROUNDS; round++)
			if (ht_script(&rig, "UA DA CA") || outputs_hash(&rig, hash))
				break;
	ht_close(&rig);
	return ht_tell(&rig);
}

static int bits_job(struct seat *seat, const void *arg)
{
	struct board *board = seat_board(seat);
	uint64_t *hash = &board->hash[seat_rank(seat)];

	(void)arg;
	*hash = 0xcbf29ce484222325ull;
	return type_play(seat, NUM_BF16, hash) || type_play(seat, NUM_F16, hash) || type_play(seat, NUM_F32, hash) ? -1
														   : 0;
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ht_bits [-t | -g] [-x NUMBER] [-o SEED]\n"
		     "  -t  ranks are threads (default)   -g  ranks are processes   -x  expected hash\n"
		     "  -o  under the emulator: GPU threads in random order\n");
	return status;
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS, .board = sizeof(struct board) };
	uint64_t want = 0, got = 0;
	struct world *world;
	int c, rc;

	while ((c = getopt(argc, argv, "tgx:o:h")) != -1) {
		if (c == 'h')
			return usage(stdout, 0);
		if (c == 't' || c == 'g')
			opts.processes = c == 'g';
		else if (c == 'x')
			want = strtoull(optarg, NULL, 0);
		else if (c == 'o' && world_random_order(strtoull(optarg, NULL, 0)))
			return 1;
		else if (c != 'o')
			return usage(stderr, 2);
	}
	if (optind != argc)
		return usage(stderr, 2);
	if (world_open(&opts, &world))
		return 1;
	rc = world_run(world, RANKS, bits_job, NULL, 0, 200);
	if (rc)
		printf("FAILED %s\n", world_text(world));
	got = hash_add(0, world_board(world), sizeof(struct board));
	if (world_close(world))
		rc = -1;
	printf("ht_bits: %#018llx%s; %s\n", (unsigned long long)got,
	       !want	     ? ""
	       : want == got ? ", as expected"
			     : ", not as expected",
	       opts.processes ? "processes" : "threads");
	return rc || (want && want != got) ? 1 : 0;
}
