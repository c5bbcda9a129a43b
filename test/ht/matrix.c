/* SPDX-License-Identifier: Apache-2.0 */
/* All combinations of HT, one cell at a time, against the oracle. Exit status 0 or 1. */
#include <stdio.h>
#include <string.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"
#include "test/oracle/matrix.h"

/* clang-format off */
enum {
	F_LAYOUT, F_PASS, F_DTYPE, F_QUANT, F_QTOK, F_QSCALE, F_BACK, F_ALIGN, F_TENSORS, F_ZERO_COPY, F_OVERFLOW,
	F_RECV, F_RANKS, F_HIDDEN, F_TOPK, F_LOCAL, F_TMAX, F_FILL, F_ROUTE, F_IDX, F_COUNTERS, F_COUNT, F_PINNED,
	F_IDKIND, F_INIT, F_MEM, F_TWIN, F_HANDLES, F_REPEAT, F_STAGED, F_STREAM, F_STALL, F_SKEW, F_SMS,
	F_BIAS, F_NODES, F_PER, F_NET, F_RING, FACTORS
};
/* clang-format on */

enum { FLAT, EXPERT_MAJOR };
enum { RECV_EAGER, RECV_WIDE, RECV_TIGHT };

static const struct factor factors[FACTORS] = {
	[F_LAYOUT] = { "layout", "flat em", NULL, 0 },
	[F_PASS] = { "pass", "fwd bwd both cross", NULL, 2 },
	[F_DTYPE] = { "dtype", "bf16 fp16 fp32", NULL, 0 }, /* of everything except quantised dispatch */
	[F_QUANT] = { "quant", "none fwd", NULL, 0 },
	[F_QTOK] = { "qtok", "bf16 fp16 fp32 e4m3 e5m2 fp4x2 -", NULL, 6 },
	[F_QSCALE] = { "qscale", "bf16 fp16 fp32 e4m3 e5m2 fp4x2 uint8 -", NULL, 7 },
	[F_BACK] = { "back", "none fwd", NULL, 0 }, /* quantisation of backward dispatch */
	[F_ALIGN] = { "align", NULL, "0 1 4 16 128", 0 },
	[F_TENSORS] = { "tensors", "plain window pointer mixed", NULL, 0 },
	[F_ZERO_COPY] = { "zero_copy", "auto off on", NULL, 0 },
	[F_OVERFLOW] = { "overflow", "auto trap drop", NULL, 0 },
	[F_RECV] = { "recv", "eager wide tight", NULL, RECV_WIDE }, /* tight: less than the worst case */
	[F_RANKS] = { "ranks", NULL, "1 2 3 4 8", 2 },		    /* of one node; else by nodes and per */
	[F_HIDDEN] = { "hidden", NULL, "1 7 64 129 512 2048 7168", 512 },
	[F_TOPK] = { "topk", NULL, "1 2 3 8 0", 2 }, /* 0: all experts */
	[F_LOCAL] = { "local", NULL, "1 2 5", 2 },   /* experts per rank */
	[F_TMAX] = { "tmax", NULL, "1 5 16 40", 5 }, /* 300 between nodes: rings wrap */
	[F_FILL] = { "fill", "full zero random none", NULL, 0 },
	[F_ROUTE] = { "route", "uniform dropped twice bad one one_rank nowhere", NULL, 0 },
	[F_IDX] = { "idx", "i32 i64", NULL, 0 },
	[F_COUNTERS] = { "counters", NULL, "0 32 64", 32 },
	[F_COUNT] = { "count", NULL, "0 32 64", 0 }, /* at dispatch */
	[F_PINNED] = { "pinned", NULL, "0 1", 0 },
	[F_IDKIND] = { "idkind", "auto local global", NULL, 0 },
	[F_INIT] = { "init", "topk auto create", NULL, 0 },
	[F_MEM] = { "mem", NULL, "0 1", 0 },
	[F_TWIN] = { "twin", "none topk auto", NULL, 0 }, /* a second handle over the same memory */
	[F_HANDLES] = { "handles", "one seq nest", NULL, 0 },
	[F_REPEAT] = { "repeat", NULL, "1 2 3", 1 }, /* times each operation runs */
	[F_STAGED] = { "staged", NULL, "0 1", 0 },
	[F_STREAM] = { "stream", NULL, "0 1", 0 },
	[F_STALL] = { "stall", NULL, "0 1", 0 },
	[F_SKEW] = { "skew", NULL, "0 1", 0 },
	[F_SMS] = { "sms", NULL, "0 1 3", 0 },
	[F_BIAS] = { "bias", NULL, "0 1 2", 0 },
	[F_NODES] = { "nodes", NULL, "1 2 3 4", 0 }, /* 0: without simulated nodes */
	[F_PER] = { "per", "1 2 3 4 up mix down", NULL, 0 },
	[F_NET] = { "net", "loop unordered faulty", NULL, 0 },
	[F_RING] = { "ring", NULL, "0 128", 0 }, /* entries; 0: the library's default */
};

/* Ranks of each node. */
#define NODES_MOST 4
static const uint8_t pers[][NODES_MOST] = { { 1, 1, 1, 1 }, { 2, 2, 2, 2 }, { 3, 3, 3, 3 }, { 4, 4, 4, 4 },
					    { 1, 3, 2, 4 }, { 2, 1, 4, 3 }, { 4, 1, 2, 1 } };

#define ROUNDS 4

struct job {
	struct ht_cfg cfg;
	char script[256];
	int filler;
};

static void cell_derive(int *v)
{
	if (v[F_NODES] < 1 || v[F_NODES] > NODES_MOST)
		return;
	v[F_RANKS] = 0;
	for (int i = 0; i < v[F_NODES]; i++)
		v[F_RANKS] += pers[v[F_PER]][i];
}

static const char *cell_illegal(const int *v)
{
	bool fwd = v[F_QUANT] == LL_QUANT_FWD, em = v[F_LAYOUT] == EXPERT_MAJOR;
	int row = fwd && v[F_QTOK] < 6 ? v[F_HIDDEN] * (int)num_info[v[F_QTOK]].size : 0;

	if (fwd != (v[F_QTOK] < 6) || fwd != (v[F_QSCALE] < 7))
		return "qtok and qscale need quant=fwd";
	if (row % (v[F_QTOK] == NUM_E2M1X2 ? 32 : 16))
		return "quant=fwd needs rows of 16 bytes";
	if (v[F_BACK] && !fwd)
		return "back=fwd needs quant=fwd";
	if ((v[F_ALIGN] && !em) || (v[F_IDKIND] && em))
		return "align needs expert-major, idkind needs flat";
	if (v[F_ALIGN] & (v[F_ALIGN] - 1))
		return "align is a power of two";
	if (v[F_ZERO_COPY] == 2 && v[F_TENSORS] != HT_WINDOW && v[F_TENSORS] != HT_MIXED)
		return "zero_copy=on needs windows";
	if (v[F_RECV] == RECV_EAGER ? v[F_OVERFLOW] == 2 : v[F_RECV] == RECV_TIGHT && v[F_OVERFLOW] != 2)
		return "overflow=drop needs a capacity, and recv=tight needs it";
	if (v[F_LOCAL] < 1 || v[F_TMAX] < 1 || v[F_HIDDEN] < 1 || v[F_REPEAT] < 1 || v[F_REPEAT] > 3)
		return "local, tmax, hidden and repeat start at 1; repeat ends at 3";
	if (v[F_TOPK] > v[F_LOCAL] * v[F_RANKS])
		return "more choices than experts";
	if (v[F_SKEW] && (fwd || v[F_TENSORS] == HT_WINDOW || v[F_TENSORS] == HT_POINTER))
		return "skew needs tensors outside windows";
	if ((v[F_MEM] && v[F_INIT] == HT_INIT_CREATE) || (v[F_TWIN] && !v[F_MEM]))
		return "ncclEpCreateHandle takes no memory, and a twin needs it";
	if (v[F_COUNTERS] % 32 || v[F_COUNTERS] > 64 || v[F_COUNT] % 32 || v[F_COUNT] > 64)
		return "counters and count must be 32, 64 or 0";
	if (v[F_COUNT] && !em)
		return "count needs expert-major";
	if (v[F_BIAS] > 2)
		return "at most two biases";
	if (v[F_NODES] > NODES_MOST)
		return "too many nodes";
	if (v[F_NODES] < 2 && (v[F_NET] || v[F_RING]))
		return "net and ring need several nodes";
	return NULL;
}

static bool cell_heavy(const int *v)
{
	int square = v[F_RANKS] * v[F_RANKS];

	return v[F_HIDDEN] * v[F_TMAX] * square * v[F_LOCAL] > 1000000 ||
	       v[F_HIDDEN] * v[F_ALIGN] * v[F_RANKS] * v[F_LOCAL] > 1000000;
}

static int cell_forced(const int *v, int factor)
{
	static const struct {
		int factor, by, not; /* absent unless factor `by` has this value */
	} rules[] = {
		{ F_QTOK, F_QUANT, LL_QUANT_FWD },
		{ F_QSCALE, F_QUANT, LL_QUANT_FWD },
		{ F_BACK, F_QUANT, LL_QUANT_FWD },
		{ F_ALIGN, F_LAYOUT, EXPERT_MAJOR },
		{ F_COUNT, F_LAYOUT, EXPERT_MAJOR },
		{ F_IDKIND, F_LAYOUT, FLAT },
		{ F_TWIN, F_MEM, 1 },
	};

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (rules[i].factor == factor && v[rules[i].by] != rules[i].not)
			return factors[factor].words ? factors[factor].absent : 0;
	return -1;
}

/* ---- what a cell does ---- */

static size_t word_put(char *to, char op, int handle, bool staged)
{
	const char whole[] = { op, (char)('A' + handle), ' ', 0 };
	const char half[] = { (char)(op | 0x20), (char)('A' + handle), ' ', 'x', (char)('A' + handle), ' ', 0 };
	const char *text = staged && op != 'U' ? half : whole;

	memcpy(to, text, strlen(text) + 1);
	return strlen(text);
}

static void script_make(const int *v, char *to)
{
	static const char *const passes[] = { "UDC", "UEB", "UDCEB", "UDEBC" };
	const char *ops = passes[v[F_PASS]];
	int steps = (int)strlen(ops), handles = v[F_HANDLES] ? 2 : 1, nest = v[F_HANDLES] == 2;

	*to = '\0';
	for (int i = 0; i < steps * handles; i++) {
		int step = nest ? i / handles : i % steps, handle = nest ? i % handles : i / steps;

		for (int r = 0; r < v[F_REPEAT]; r++)
			to += word_put(to, ops[step], handle, v[F_STAGED] && (step + r) % 2);
	}
}

static void shape_make(const int *v, uint64_t seed, struct ht_shape *shape)
{
	size_t scale = v[F_QSCALE] < NUM_TYPES ? num_info[v[F_QSCALE]].size : 1;
	int bound;

	*shape = (struct ht_shape){
		.base = { .quant = (enum ll_quant)v[F_QUANT],
			  .ranks = v[F_RANKS],
			  .experts = v[F_LOCAL] * v[F_RANKS],
			  .topk = v[F_TOPK] ? v[F_TOPK] : v[F_LOCAL] * v[F_RANKS],
			  .tmax = v[F_TMAX],
			  .hidden = (size_t)v[F_HIDDEN],
			  .combine = (enum num_type)v[F_DTYPE],
			  .token = (enum num_type)v[F_DTYPE] },
		.expert_major = v[F_LAYOUT] == EXPERT_MAJOR,
		.global_ids = v[F_IDKIND] == 2,
		.align = v[F_ALIGN],
	};
	if (v[F_QUANT] == LL_QUANT_FWD) {
		shape->base.token = (enum num_type)v[F_QTOK];
		shape->base.scale = (enum num_type)v[F_QSCALE];
		shape->base.scale_width = (1 + seed % 4) * 16 / scale; /* 16 to 64 bytes */
	}
	for (int i = 0; v[F_NODES] > 1 && i < v[F_NODES]; i++)
		shape->nodes.size[i] = pers[v[F_PER]][i];
	bound = ht_bound(shape);
	if (v[F_RECV] == RECV_WIDE)
		shape->capacity = bound;
	else if (v[F_RECV] == RECV_TIGHT)
		shape->capacity = v[F_TMAX] + (int)(seed % (uint64_t)(bound - v[F_TMAX] + 1)) / 3;
}

static void job_make(const int *v, uint64_t seed, int filler, void *out)
{
	struct job *job = out;
	struct ht_cfg *cfg = &job->cfg;

	*job = (struct job){ .filler = filler };
	script_make(v, job->script);
	shape_make(v, seed, &cfg->shape);
	cfg->data =
		(struct ll_data){ .seed = seed, .fill = (enum ll_fill)v[F_FILL], .route = (enum ll_route)v[F_ROUTE] };
	cfg->handles = v[F_HANDLES] ? 2 : 1;
	cfg->where = (enum ht_where)v[F_TENSORS];
	cfg->init = (enum ht_init)v[F_INIT];
	cfg->twin = (enum ht_twin)v[F_TWIN];
	cfg->caller_mem = v[F_MEM];
	cfg->skew = v[F_SKEW];
	cfg->own_stream = v[F_STREAM];
	cfg->stall = v[F_STALL];
	cfg->scribble = true;
	cfg->idx64 = v[F_IDX];
	cfg->counters = v[F_COUNTERS];
	cfg->count = v[F_COUNT];
	cfg->pinned = v[F_PINNED];
	cfg->id_kind = v[F_IDKIND];
	cfg->zero_copy = v[F_ZERO_COPY];
	cfg->overflow = v[F_OVERFLOW];
	cfg->biases = v[F_BIAS];
	cfg->sms = v[F_SMS];
	if (v[F_SMS]) {
		cfg->dispatch_sms = (int)(seed / 64 % 5);
		cfg->combine_sms = (int)(seed / 512 % 5);
	}
	cfg->extra = (int)(seed / 8 % 3);
	cfg->spare = LL_ALL;
	cfg->backward = v[F_PASS] > 0;
	cfg->back_quant = v[F_BACK];
	/* Required in eager expert-major mode, optional elsewhere. */
	cfg->tell_topk = (v[F_RECV] == RECV_EAGER && v[F_LAYOUT] == EXPERT_MAJOR) || seed / 32 % 2;
}

/* A transport given instead of loop keeps its own order: then only faulty cells differ. */
static void job_env(struct world *world, const int *v, uint64_t seed, const char *net)
{
	static const char *const nets[] = { "loop", "unordered", "faulty" };
	struct ht_shape shape;
	char ring[16], spec[FAR_NET_MAX];

	if (!v)
		return;
	shape_make(v, seed, &shape);
	if (net && v[F_NET] == 2)
		snprintf(spec, sizeof(spec), "faulty(%s):seed=%llu,reorder=128,delay=32", net,
			 (unsigned long long)seed);
	far_set_nodes(world, &shape.nodes, !net ? nets[v[F_NET]] : v[F_NET] == 2 ? spec : net, seed);
	snprintf(ring, sizeof(ring), "%d", v[F_RING]);
	world_setenv(world, "NCCL_EP_RING_ENTRIES", ring);
}

/* ---- running ---- */

static int cell_rounds(struct ht_rig *rig, const struct job *job)
{
	for (int round = 0; round < ROUNDS; round++)
		if (ht_script(rig, job->script))
			return -1;
	return ht_check_crossed(rig, 0);
}

/* Freeing memory waits for the filler, holding a lock that launches need: no rank opens or closes while it runs. */
static int cell_play(struct ht_rig *rig, const struct job *job)
{
	int rc;

	if (!job->filler || !shim_is_gpu(&rig->shim))
		return cell_rounds(rig, job);
	if (seat_barrier(rig->seat))
		return -1;
	if (seat_rank(rig->seat) == 0 && rig->shim.ops->filler_start(&rig->shim, job->filler))
		return seat_fail(rig->seat, "filler: %s", rig->shim.text);
	rc = cell_rounds(rig, job);
	return seat_barrier(rig->seat) ? -1 : rc;
}

static int cell_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ht_rig rig;

	if (!ht_open(&rig, seat, &job->cfg))
		cell_play(&rig, job);
	if (rig.shim.ops && job->filler && shim_is_gpu(&rig.shim))
		rig.shim.ops->filler_stop(&rig.shim);
	ht_close(&rig);
	matrix_wrong(seat, &rig.verdict);
	return seat_failed(seat) ? -1 : 0;
}

int main(int argc, char **argv)
{
	static const struct matrix matrix = { .name = "ht_matrix",
					      .factor = factors,
					      .factors = FACTORS,
					      .ranks = F_RANKS,
					      .plain = F_NODES,
					      .derive = cell_derive,
					      .illegal = cell_illegal,
					      .heavy = cell_heavy,
					      .forced = cell_forced,
					      .make = job_make,
					      .env = job_env,
					      .size = sizeof(struct job),
					      .fn = cell_job };

	_Static_assert(sizeof(struct job) <= WORLD_ARG, "a job must fit into the world's argument");
	return matrix_main(&matrix, argc, argv);
}
