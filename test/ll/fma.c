/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LL expert-major combine to the byte: one fmaf per term in ascending k, rounded to the type once, as callers that
 * compare bytes compute it. The reference is in this file. Dropped and repeated selections, masked ranks, K from 1 to
 * 13, rows that are not a multiple of 16 bytes. Also counts the values that differ from products rounded before they
 * are added: without any, the data could not tell. Exit status 0 or 1.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/rig_buf.h"

#define RANKS 4
#define MASKED (RANKS - 1)

struct job {
	struct rig_cfg cfg;
};

/* On the board. */
struct meet {
	atomic_int done;
	atomic_ullong values, apart;
};

/* One token by fmaf, and with rounded products; -1: out of memory. */
static int reference(const struct rig *rig, int token, uint8_t *fused, uint8_t *rounded)
{
	const struct ll_shape *s = &rig->cfg.shape;
	const struct rig_handle *h = &rig->handle[0];
	int rank = seat_rank(rig->seat), per_rank = s->experts / s->ranks;
	const struct ll_input *in = &h->in[rank];
	size_t size = num_info[s->combine].size;
	float *acc = calloc(2 * s->hidden, sizeof(*acc)), *plain = acc + s->hidden;
	uint8_t *row = malloc(s->hidden * size);

	for (int k = 0; acc && row && k < s->topk; k++) {
		int64_t id = in->idx[token * s->topk + k];
		float w = in->weight[token * s->topk + k];

		if (id < 0 || id >= s->experts || !rig->active[id / per_rank])
			continue;
		ll_answer(s, &h->data, h->in, (struct ll_row){ rank, token }, id, row);
		for (size_t i = 0; i < s->hidden; i++) {
			float x = num_load(s->combine, row + i * size);

			acc[i] = fmaf(w, x, acc[i]);
			plain[i] = plain[i] + w * x;
		}
	}
	for (size_t i = 0; acc && row && i < s->hidden; i++) {
		num_store(s->combine, fused + i * size, acc[i]);
		num_store(s->combine, rounded + i * size, plain[i]);
	}
	free(row);
	free(acc);
	return acc && row ? 0 : -1;
}

static int sums_check(struct rig *rig, struct meet *meet)
{
	const struct ll_shape *s = &rig->cfg.shape;
	struct buf *buf = &rig->handle[0].buf[RIG_SUMS];
	const uint8_t *got = rig_buf_get(rig, buf, 0, buf->size);
	size_t size = num_info[s->combine].size, bytes = s->hidden * size;
	uint8_t *want = malloc(2 * bytes);
	int rank = seat_rank(rig->seat);

	for (int t = 0; got && want && t < rig->handle[0].in[rank].t; t++) {
		if (reference(rig, t, want, want + bytes)) {
			got = NULL;
			break;
		}
		for (size_t i = 0; i < bytes; i += size) {
			const uint8_t *value = got + (size_t)t * bytes + i;

			ll_wrong(&rig->verdict, memcmp(value, want + i, size) != 0,
				 "rank %d: %s, top-%d: tokens[%d][%zu] is %.9g, fmaf gives %.9g", rank,
				 num_info[s->combine].name, s->topk, t, i / size, (double)num_load(s->combine, value),
				 (double)num_load(s->combine, want + i));
			atomic_fetch_add(&meet->apart, memcmp(want + i, want + bytes + i, size) != 0);
		}
		atomic_fetch_add(&meet->values, s->hidden);
	}
	free(want);
	return got ? 0 : seat_fail(rig->seat, "no memory or no tensor");
}

static int masked_round(struct rig *rig, struct meet *meet)
{
	int mask[RANKS] = { 1, 1, 1, 1 };

	mask[MASKED] = 0;
	if (seat_rank(rig->seat) == MASKED)
		return seat_meet(rig->seat, &meet->done, RANKS);
	rig->active[MASKED] = false;
	if (rig_expect(rig, "ncclEpMaskUpdate", ncclEpMaskUpdate(rig->group, mask, rig->shim.stream)) ||
	    rig_script(rig, "DA CA") || sums_check(rig, meet) ||
	    rig_expect(rig, "ncclEpMaskClean", ncclEpMaskClean(rig->group, rig->shim.stream)) || rig_sync(rig))
		return -1;
	rig->active[MASKED] = true;
	return seat_meet(rig->seat, &meet->done, RANKS);
}

static int play(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct meet *meet = seat_board(seat);
	struct rig rig;

	if (!rig_open(&rig, seat, &job->cfg) && !rig_script(&rig, "DA CA") && !sums_check(&rig, meet) &&
	    !seat_barrier(seat) && job->cfg.mask)
		masked_round(&rig, meet);
	rig_close(&rig);
	return rig_tell(&rig);
}

/* One type, on all ranks. 1: failed. */
static int type_run(struct world *world, enum num_type type)
{
	static const struct {
		int topk;
		size_t hidden;
		enum ll_route route;
		bool mask;
	} cells[] = {
		{ 1, 1000, LL_ROUTE_UNIFORM, false }, { 8, 1000, LL_ROUTE_DROPPED, false },
		{ 8, 999, LL_ROUTE_UNIFORM, false },  { 9, 1000, LL_ROUTE_TWICE, true },
		{ 13, 125, LL_ROUTE_BAD, false },
	};
	struct meet *meet = world_board(world);
	int rc = 0;

	memset(meet, 0, sizeof(*meet));
	for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]) && !rc; i++) {
		struct job job = { .cfg = { .handles = 1, .spare = LL_ALL, .mask = cells[i].mask } };

		job.cfg.shape = (struct ll_shape){ .ranks = RANKS,
						   .experts = 4 * RANKS,
						   .topk = cells[i].topk,
						   .tmax = 10,
						   .hidden = cells[i].hidden,
						   .token = type,
						   .combine = type };
		job.cfg.data = (struct ll_data){ .seed = 0xf3a + i, .fill = LL_FILL_FULL, .route = cells[i].route };
		atomic_store(&meet->done, 0);
		rc = world_run(world, RANKS, play, &job, sizeof(job), 100);
	}
	printf("%s %s: %llu values, %llu of them differ from rounded products%s%s\n", rc ? "FAILED" : "ok    ",
	       num_info[type].name, (unsigned long long)meet->values, (unsigned long long)meet->apart, rc ? ": " : "",
	       rc ? world_text(world) : "");
	return rc || !meet->apart;
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS, .board = sizeof(struct meet) };
	struct world *world;
	int c, failed = 0;

	while ((c = getopt(argc, argv, "tgo:h")) != -1) {
		if (c == 'g' || c == 't') {
			opts.processes = c == 'g';
		} else if (c != 'o') {
			printf("usage: ll_fma [-t | -g] [-o SEED]: ranks are threads or processes; see ll_bits -h\n");
			return c == 'h' ? 0 : 2;
		} else if (world_random_order(strtoull(optarg, NULL, 0))) {
			return 1;
		}
	}
	if (world_open(&opts, &world))
		return 1;
	for (int type = NUM_BF16; type <= NUM_F32; type++)
		failed += type_run(world, (enum num_type)type);
	if (world_close(world))
		failed++;
	printf("ll_fma: %s\n", failed ? "failed" : "passed");
	return failed ? 1 : 0;
}
