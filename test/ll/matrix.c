/* SPDX-License-Identifier: Apache-2.0 */
/* All combinations of LL, one cell at a time, against the oracle. Exit status 0 or 1. */
#include <stdio.h>

#include "test/oracle/far.h"
#include "test/oracle/matrix.h"
#include "test/oracle/refuse.h"
#include "test/oracle/rig.h"

/* clang-format off */
enum {
	F_LAYOUT, F_DTYPE, F_QUANT, F_QTOK, F_QSCALE, F_STAGED, F_IDX, F_IDKIND, F_WINDOWS, F_ZERO_COPY, F_RANKS,
	F_HIDDEN, F_TOPK, F_LOCAL, F_TMAX, F_FILL, F_ROUTE, F_HANDLES, F_STREAM, F_COUNTS, F_CREATE, F_MEM, F_MASK,
	F_SMS, F_SKEW, F_SCALES, F_ROUNDS, F_NODES, F_NET, F_RING, FACTORS
};
/* clang-format on */

static const struct factor factors[FACTORS] = {
	[F_LAYOUT] = { "layout", "em rm", NULL, 0 },
	[F_DTYPE] = { "dtype", "bf16 fp16 fp32", NULL, 0 }, /* combine's, and dispatch's without quantisation */
	[F_QUANT] = { "quant", "none fwd ds ds_round", NULL, 0 },
	[F_QTOK] = { "qtok", "bf16 fp16 fp32 e4m3 e5m2 fp4x2 -", NULL, 6 },
	[F_QSCALE] = { "qscale", "bf16 fp16 fp32 e4m3 e5m2 fp4x2 uint8 -", NULL, 7 },
	[F_STAGED] = { "staged", NULL, "0 1 2", 0 }, /* 2: every other operation */
	[F_IDX] = { "idx", "i32 i64", NULL, 0 },
	[F_IDKIND] = { "idkind", "auto local global", NULL, 0 },
	[F_WINDOWS] = { "windows", NULL, "0 1", 0 },
	[F_ZERO_COPY] = { "zero_copy", "auto off on", NULL, 0 },
	[F_RANKS] = { "ranks", NULL, "1 2 3 4 8", 2 },
	[F_HIDDEN] = { "hidden", NULL, "1 7 64 129 512 2048 7168", 512 },
	[F_TOPK] = { "topk", NULL, "1 2 3 8 0", 2 }, /* 0: all experts */
	[F_LOCAL] = { "local", NULL, "1 2 5", 2 },   /* experts per rank */
	[F_TMAX] = { "tmax", NULL, "1 5 16", 5 },
	[F_FILL] = { "fill", "full zero random none", NULL, 0 },
	[F_ROUTE] = { "route", "uniform dropped twice bad one one_rank", NULL, 0 },
	[F_HANDLES] = { "handles", "one seq nest", NULL, 0 },
	[F_STREAM] = { "stream", NULL, "0 1", 0 },
	[F_COUNTS] = { "counts", NULL, "0 1", 1 },
	[F_CREATE] = { "create", NULL, "0 1", 0 },
	[F_MEM] = { "mem", NULL, "0 1", 0 },
	[F_MASK] = { "mask", NULL, "0 1", 0 },
	[F_SMS] = { "sms", NULL, "0 1 3", 0 },
	[F_SKEW] = { "skew", NULL, "0 1", 0 },
	[F_SCALES] = { "scales", "rows columns exponents", NULL, 0 },
	[F_ROUNDS] = { "rounds", NULL, "3 4", 3 },
	[F_NODES] = { "nodes", NULL, "2 3 4", 1 }, /* 1 is covered by cells without a net */
	[F_NET] = { "net", "loop unordered faulty", NULL, 0 },
	[F_RING] = { "ring", NULL, "0 128", 0 }, /* entries; 0: the library's default */
};

struct job {
	struct rig_cfg cfg;
	const char *script; /* constant, so equal in forked processes */
	int rounds;
	int filler;
};

static const char *cell_illegal(const int *v)
{
	bool rank_major = v[F_LAYOUT] == LL_RANK_MAJOR, fwd = v[F_QUANT] == LL_QUANT_FWD,
	     ds = v[F_QUANT] >= LL_QUANT_DS;
	int row = fwd && v[F_QTOK] < 6 ? v[F_HIDDEN] * (int)num_info[v[F_QTOK]].size : 0;

	if (fwd != (v[F_QTOK] < 6) || fwd != (v[F_QSCALE] < 7))
		return "qtok and qscale need quant=fwd";
	if (v[F_SCALES] && !ds && !(fwd && v[F_QSCALE] == NUM_F32))
		return "scales by columns need quant=ds or qscale=fp32";
	if (v[F_SCALES] == LL_SCALES_EXPONENTS && v[F_QUANT] == LL_QUANT_DS)
		return "scales=exponents needs quant=ds_round";
	if (ds && v[F_HIDDEN] % 512)
		return "quant=ds needs a multiple of 512";
	if (row % (v[F_QTOK] == NUM_E2M1X2 ? 32 : 16))
		return "quant=fwd needs rows of 16 bytes";
	if (!rank_major && (v[F_IDKIND] || !v[F_COUNTS]))
		return "idkind and counts=0 need rank-major";
	if (v[F_ZERO_COPY] == 2 && (!rank_major || !v[F_WINDOWS] || ds))
		return "zero_copy=on needs rank-major, windows, and no quantisation";
	if (v[F_LOCAL] < 1 || v[F_TMAX] < 1 || v[F_HIDDEN] < 1)
		return "local, tmax and hidden start at 1";
	if (v[F_TOPK] > v[F_LOCAL] * v[F_RANKS])
		return "more choices than experts";
	if (v[F_SKEW] && (v[F_WINDOWS] || fwd))
		return "skew needs tensors outside windows";
	if (v[F_MEM] && v[F_CREATE])
		return "ncclEpCreateHandle takes no memory";
	if (!far_splits(v[F_RANKS], v[F_NODES]))
		return "the ranks cannot be split into this many nodes";
	if (v[F_NODES] == 1 && (v[F_NET] || v[F_RING]))
		return "net and ring need several nodes";
	return NULL;
}

static const char *script_of(const int *v)
{
	/* By handles, then by staged. */
	static const char *const scripts[3][3] = {
		{ "DA CA", "dA xA cA xA", "dA xA CA" },
		{ "DA CA DB CB", "dA xA cA xA dB xB cB xB", "DA cA xA dB xB CB" },
		{ "DA DB CA CB", "dA dB xA xB cA cB xA xB", "dA DB xA cB CA xB" },
	};

	return scripts[v[F_HANDLES]][v[F_STAGED] > 2 ? 2 : v[F_STAGED]];
}

static void job_make(const int *v, uint64_t seed, int filler, void *out)
{
	struct job *job = out;
	struct rig_cfg *cfg = &job->cfg;
	size_t scale = v[F_QSCALE] < NUM_TYPES ? num_info[v[F_QSCALE]].size : 1;

	*job = (struct job){ .script = script_of(v), .rounds = v[F_ROUNDS], .filler = filler };
	cfg->shape = (struct ll_shape){
		.layout = (enum ll_layout)v[F_LAYOUT],
		.quant = (enum ll_quant)v[F_QUANT],
		.ranks = v[F_RANKS],
		.experts = v[F_LOCAL] * v[F_RANKS],
		.topk = v[F_TOPK] ? v[F_TOPK] : v[F_LOCAL] * v[F_RANKS],
		.tmax = v[F_TMAX],
		.hidden = (size_t)v[F_HIDDEN],
		.combine = (enum num_type)v[F_DTYPE],
		.token = (enum num_type)v[F_DTYPE],
		.scales = (enum ll_scales)v[F_SCALES],
		.global_ids = v[F_IDKIND] == 2,
	};
	if (v[F_QUANT] == LL_QUANT_FWD) {
		cfg->shape.token = (enum num_type)v[F_QTOK];
		cfg->shape.scale = (enum num_type)v[F_QSCALE];
		cfg->shape.scale_width = (1 + seed % 4) * 16 / scale; /* 16 to 64 bytes */
	} else if (v[F_QUANT] >= LL_QUANT_DS) {
		cfg->shape.token = NUM_BF16;
	}
	cfg->data =
		(struct ll_data){ .seed = seed, .fill = (enum ll_fill)v[F_FILL], .route = (enum ll_route)v[F_ROUTE] };
	cfg->handles = v[F_HANDLES] ? 2 : 1;
	cfg->windows = v[F_WINDOWS];
	cfg->skew = v[F_SKEW];
	cfg->own_stream = v[F_STREAM];
	cfg->no_counts = !v[F_COUNTS];
	cfg->create = v[F_CREATE];
	cfg->caller_mem = v[F_MEM];
	cfg->mask = v[F_MASK];
	cfg->id_kind = v[F_IDKIND];
	cfg->zero_copy = v[F_ZERO_COPY];
	cfg->sms = v[F_SMS];
	cfg->spare = LL_ALL;
	cfg->idx64 = v[F_IDX];
	cfg->per_node = far_split(v[F_RANKS], v[F_NODES]);
}

/* A transport given instead of loop keeps its own order: then only faulty cells differ. */
static void job_env(struct world *world, const int *v, uint64_t seed, const char *net)
{
	static const char *const nets[] = { "loop", "unordered", "faulty" };
	int which = v ? v[F_NET] : 0;
	char ring[16], spec[FAR_NET_MAX];

	if (net && which == 2)
		snprintf(spec, sizeof(spec), "faulty(%s):seed=%llu,reorder=128,delay=32", net,
			 (unsigned long long)seed);
	far_set(world, v ? far_split(v[F_RANKS], v[F_NODES]) : 0, !net ? nets[which] : which == 2 ? spec : net, seed);
	snprintf(ring, sizeof(ring), "%d", v ? v[F_RING] : 0);
	world_setenv(world, "NCCL_EP_RING_ENTRIES", ring);
}

/* ---- running ---- */

static int cell_rounds(struct rig *rig, const struct job *job)
{
	for (int round = 0; round < job->rounds; round++)
		if (rig_script(rig, job->script))
			return -1;
	return rig_check_crossed(rig);
}

/* Loading the filler waits for running kernels, and freeing memory waits for the filler, holding a lock that launches
 * need: so all ranks are idle when it starts and when it ends. */
static int cell_play(struct rig *rig, const struct job *job)
{
	int rc;

	if (!job->filler || !shim_is_gpu(&rig->shim))
		return cell_rounds(rig, job);
	if (seat_barrier(rig->seat))
		return -1;
	if (seat_rank(rig->seat) == 0 && rig->shim.ops->filler_start(&rig->shim, job->filler))
		return seat_fail(rig->seat, "filler: %s", rig->shim.text);
	if (seat_barrier(rig->seat))
		return -1;
	rc = cell_rounds(rig, job);
	return seat_barrier(rig->seat) ? -1 : rc;
}

static int cell_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig rig;

	if (!rig_open(&rig, seat, &job->cfg))
		cell_play(&rig, job);
	if (rig.shim.ops && job->filler && shim_is_gpu(&rig.shim))
		rig.shim.ops->filler_stop(&rig.shim);
	rig_close(&rig);
	matrix_wrong(seat, &rig.verdict);
	return seat_failed(seat) ? -1 : 0;
}

/* Large rows only in small numbers. */
static bool cell_heavy(const int *v)
{
	return v[F_HIDDEN] * v[F_TMAX] * v[F_RANKS] * v[F_LOCAL] > 2000000;
}

static int cell_forced(const int *v, int factor)
{
	if (factor == F_QTOK && v[F_QUANT] != LL_QUANT_FWD)
		return factors[F_QTOK].absent;
	if (factor == F_SCALES && v[F_QUANT] == LL_QUANT_NONE)
		return LL_SCALES_ROWS;
	return factor == F_QSCALE && v[F_QUANT] != LL_QUANT_FWD ? factors[F_QSCALE].absent : -1;
}

int main(int argc, char **argv)
{
	/* Calls that must be rejected: once per layout, with two ranks. */
	static const struct matrix_extra refusals[] = {
		{ "refusals layout=em", ll_refuse_job, 2, LL_EXPERT_MAJOR },
		{ "refusals layout=rm", ll_refuse_job, 2, LL_RANK_MAJOR },
	};
	static const struct matrix matrix = { .name = "ll_matrix",
					      .factor = factors,
					      .factors = FACTORS,
					      .ranks = F_RANKS,
					      .plain = F_NODES,
					      .illegal = cell_illegal,
					      .heavy = cell_heavy,
					      .forced = cell_forced,
					      .make = job_make,
					      .env = job_env,
					      .size = sizeof(struct job),
					      .fn = cell_job,
					      .extra = refusals,
					      .extras = 2 };

	return matrix_main(&matrix, argc, argv);
}
