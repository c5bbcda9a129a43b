/* SPDX-License-Identifier: Apache-2.0 */
/* Every datatype, every reduction, every collective against a model that shares no code with the library. */
#include <criterion/criterion.h>

#include <math.h>
#include <stdint.h>

#include "model.h"
#include "ranks.h"

TestSuite(standin_coll, .timeout = 120);

#define COUNT 1000
#define ROOM 8 /* bytes of the widest element */

/* Element i of what a rank sends: any bits, the same on every rank that computes it. */
static void fill(ncclDataType_t dtype, int rank, size_t n, unsigned seed, void *out)
{
	uint64_t state = seed * 1000003u + (unsigned)rank * 7919u + 1;

	for (size_t i = 0; i < n; i++)
		model_random(dtype, &state, (char *)out + i * model_size(dtype));
}

/* The expected result, from all ranks' inputs, element by element. */
static void expect_reduced(ncclDataType_t dtype, ncclRedOp_t op, int nranks, size_t total, unsigned seed, char *out)
{
	size_t size = model_size(dtype);
	char *in = malloc((size_t)nranks * total * size + 1);

	for (int r = 0; r < nranks; r++)
		fill(dtype, r, total, seed, in + (size_t)r * total * size);
	for (size_t i = 0; i < total; i++)
		model_reduce(dtype, op, in + i * size, total * size, nranks, out + i * size);
	free(in);
}

static int differs(ncclDataType_t dtype, const char *got, const char *want, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!model_same(dtype, got + i * model_size(dtype), want + i * model_size(dtype))) {
			fprintf(stderr, "datatype %d: element %zu of %zu differs\n", dtype, i, n);
			return 1;
		}
	return 0;
}

struct cell {
	ncclDataType_t dtype;
	ncclRedOp_t op;
	bool in_place;
	size_t count;
	unsigned seed;
};

static int cell_allreduce(struct rank *me, const struct cell *c, char *send, char *recv, char *want)
{
	int bad = 0;

	fill(c->dtype, me->rank, c->count, c->seed, send);
	expect_reduced(c->dtype, c->op, me->n, c->count, c->seed, want);
	char *to = c->in_place ? send : recv;
	EXPECT_OK(ncclAllReduce(send, to, c->count, c->dtype, c->op, me->comm, NULL));
	EXPECT(!differs(c->dtype, to, want, c->count));
	return bad;
}

static int cell_reduce_scatter(struct rank *me, const struct cell *c, char *send, char *recv, char *want)
{
	size_t part = c->count * model_size(c->dtype);
	int bad = 0;

	fill(c->dtype, me->rank, (size_t)me->n * c->count, c->seed, send);
	expect_reduced(c->dtype, c->op, me->n, (size_t)me->n * c->count, c->seed, want);
	char *to = c->in_place ? send + (size_t)me->rank * part : recv;
	EXPECT_OK(ncclReduceScatter(send, to, c->count, c->dtype, c->op, me->comm, NULL));
	EXPECT(!differs(c->dtype, to, want + (size_t)me->rank * part, c->count));
	return bad;
}

static int cell_allgather(struct rank *me, const struct cell *c, char *send, char *recv, char *want)
{
	size_t part = c->count * model_size(c->dtype);
	int bad = 0;

	for (int r = 0; r < me->n; r++)
		fill(c->dtype, r, c->count, c->seed, want + (size_t)r * part);
	char *from = c->in_place ? recv + (size_t)me->rank * part : send;
	fill(c->dtype, me->rank, c->count, c->seed, from);
	EXPECT_OK(ncclAllGather(from, recv, c->count, c->dtype, me->comm, NULL));
	EXPECT(!memcmp(recv, want, (size_t)me->n * part));
	return bad;
}

static int cell_broadcast(struct rank *me, const struct cell *c, char *send, char *recv, char *want)
{
	size_t part = c->count * model_size(c->dtype);
	int bad = 0;

	for (int root = 0; root < me->n; root++) {
		fill(c->dtype, root, c->count, c->seed + (unsigned)root, want);
		if (me->rank == root)
			memcpy(c->in_place ? recv : send, want, part);
		if (c->in_place)
			EXPECT_OK(ncclBcast(recv, c->count, c->dtype, root, me->comm, NULL));
		else
			EXPECT_OK(ncclBroadcast(me->rank == root ? send : NULL, recv, c->count, c->dtype, root,
						me->comm, NULL));
		EXPECT(!memcmp(recv, want, part));
	}
	return bad;
}

static int cells_of_type(struct rank *me, ncclDataType_t dtype, char *send, char *recv, char *want)
{
	static const size_t counts[] = { 0, 1, COUNT };
	int bad = 0;

	for (int i = 0; i < 6; i++) {
		struct cell c = {
			.dtype = dtype, .in_place = i & 1, .count = counts[i / 2], .seed = (unsigned)(dtype * 100)
		};

		for (int op = 0; op < ncclNumOps; op++) {
			c.op = (ncclRedOp_t)op;
			c.seed++;
			bad += cell_allreduce(me, &c, send, recv, want);
			bad += cell_reduce_scatter(me, &c, send, recv, want);
		}
		bad += cell_allgather(me, &c, send, recv, want);
		bad += cell_broadcast(me, &c, send, recv, want);
	}
	return bad;
}

static int all_cells(struct rank *me)
{
	size_t bytes = (size_t)me->n * COUNT * ROOM;
	char *send = malloc(bytes), *recv = malloc(bytes), *want = malloc(bytes);
	int bad = 0;

	for (int dtype = 0; dtype < ncclNumTypes; dtype++)
		bad += cells_of_type(me, (ncclDataType_t)dtype, send, recv, want);
	free(send);
	free(recv);
	free(want);
	return bad;
}

Test(standin_coll, one_rank)
{
	cr_expect(ranks_threads(1, all_cells, NULL) == 0);
}

Test(standin_coll, two_ranks)
{
	cr_expect(ranks_threads(2, all_cells, NULL) == 0);
}

Test(standin_coll, three_ranks)
{
	cr_expect(ranks_threads(3, all_cells, NULL) == 0);
}

Test(standin_coll, five_ranks)
{
	cr_expect(ranks_threads(5, all_cells, NULL) == 0);
}

/* Longer than one staged chunk, and not a multiple of it. */
static int long_cells(struct rank *me)
{
	struct cell c = { .dtype = ncclInt32, .op = ncclSum, .count = 1500001, .seed = 5 };
	size_t bytes = (size_t)me->n * c.count * 4;
	char *send = malloc(bytes), *recv = malloc(bytes), *want = malloc(bytes);
	int bad = cell_allreduce(me, &c, send, recv, want) + cell_reduce_scatter(me, &c, send, recv, want) +
		  cell_allgather(me, &c, send, recv, want);

	c.in_place = true;
	bad += cell_reduce_scatter(me, &c, send, recv, want) + cell_allgather(me, &c, send, recv, want);
	free(send);
	free(recv);
	free(want);
	return bad;
}

Test(standin_coll, longer_than_a_chunk)
{
	cr_expect(ranks_threads(3, long_cells, NULL) == 0);
}

/* A reduction over one rank is the number itself: every pattern of the small types survives decoding and encoding. */
static int every_pattern(struct rank *me)
{
	static const ncclDataType_t types[] = { ncclFloat16, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2 };
	uint16_t *all = malloc(65536 * sizeof(*all)), *out = malloc(65536 * sizeof(*all));
	int bad = 0;

	for (int t = 0; t < 4; t++) {
		size_t n = model_size(types[t]) == 1 ? 256 : 65536;

		for (size_t i = 0; i < n; i++)
			memcpy((char *)all + i * model_size(types[t]), &(uint16_t){ (uint16_t)i },
			       model_size(types[t]));
		EXPECT_OK(ncclAllReduce(all, out, n, types[t], ncclSum, me->comm, NULL));
		for (size_t i = 0; i < n; i++) {
			const char *a = (char *)all + i * model_size(types[t]),
				   *b = (char *)out + i * model_size(types[t]);

			EXPECT(model_is_nan(types[t], a) ? model_is_nan(types[t], b)
							 : !memcmp(a, b, model_size(types[t])));
		}
	}
	free(all);
	free(out);
	return bad;
}

Test(standin_coll, every_pattern_of_the_small_floats)
{
	cr_expect(ranks_threads(1, every_pattern, NULL) == 0);
}

/* Mismatched calls name the rank instead of hanging, and the communicator stays usable. */
static int mismatch(struct rank *me)
{
	int bad = 0, x[2] = { 1, 1 }, y[8];

	EXPECT(ncclAllReduce(x, y, me->rank == 1 ? 2 : 1, ncclInt32, ncclSum, me->comm, NULL) == ncclInvalidUsage);
	EXPECT(strstr(ncclGetLastError(NULL), me->rank == 1 ? "rank 0 calls" : "rank 1 calls"));
	EXPECT((me->rank ? ncclAllReduce(x, y, 1, ncclInt32, ncclSum, me->comm, NULL)
			 : ncclAllGather(x, y, 1, ncclInt32, me->comm, NULL)) == ncclInvalidUsage);
	return bad + ranks_sum(me->comm, 1, me->n);
}

Test(standin_coll, calls_that_do_not_match)
{
	cr_expect(ranks_threads(3, mismatch, NULL) == 0);
}
