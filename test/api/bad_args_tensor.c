/* SPDX-License-Identifier: Apache-2.0 */
/* Every tensor of every operation in every mode: each possible error, one at a time. */
#include <stdio.h>

#include "bad_args_op.h"

TestSuite(bad_args_tensor, .timeout = 60, .init = bad_args_quiet);

static char what[256];

static const char *say(const struct op *op, const struct spec *s, const char *change, long long value)
{
	snprintf(what, sizeof(what), "%s: %s: %s %lld", op->mode->name, s->name, change, value);
	return what;
}

/* The call must fail with InvalidArgument, name `arg`, and leave every argument as it was. */
static void refused(struct op *op, const char *arg, const char *change)
{
	struct op before = *op;

	expect_fail(op_call(op), ncclInvalidArgument, op_fn[op->mode->kind], arg, change);
	cr_expect_arr_eq(&before.in, &op->in, sizeof(*op) - offsetof(struct op, in), "%s: arguments were written",
			 change);
	cr_expect(op->handle->t == T && op->handle->k == K && !op->handle->staged, "%s: the handle was changed",
		  change);
}

static void passes(struct op *op, const char *change)
{
	cr_expect_eq(op_good(op), 0, "%s: must pass, fails with \"%s\"", change, anyEpGetLastError());
}

static void walk_pointer(struct op *op, const struct spec *s)
{
	ncclEpTensor_t **slot = op_slot(op, s->id);

	*slot = NULL;
	if (s->need == 'r')
		refused(op, s->name, say(op, s, "NULL", 0));
	else
		passes(op, say(op, s, "NULL", 0));
	*slot = &op->tensor[s->id];
}

static void walk_rank(struct op *op, const struct spec *s)
{
	ncclEpTensor_t *t = &op->tensor[s->id];
	unsigned ndim = t->ndim;
	const unsigned bad[] = { 0, ndim - 1, ndim + 1, 1000, -1u };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		t->ndim = bad[i];
		refused(op, s->name, say(op, s, "ndim", bad[i]));
	}
	t->ndim = ndim;
	t->sizes = NULL;
	refused(op, s->name, say(op, s, "sizes NULL", 0));
	t->sizes = op->sizes[s->id];
}

static void walk_dtype(struct op *op, const struct spec *s)
{
	ncclEpTensor_t *t = &op->tensor[s->id];
	bool allowed;

	for (int d = -1; d <= 14; d++) {
		if (d == (int)s->dtype)
			continue;
		t->datatype = (ncclDataType_t)d;
		allowed = d >= 0 && (s->allowed & BIT(d));
		if (!allowed)
			refused(op, s->name, say(op, s, "dtype", d));
		else if (s->alike)
			refused(op, op_fn[op->mode->kind], say(op, s, "dtype differs from the others", d));
		else
			passes(op, say(op, s, "dtype", d));
	}
	t->datatype = s->dtype;
}

static void walk_size(struct op *op, const struct spec *s, unsigned dim)
{
	size_t *size = &op->sizes[s->id][dim], keep = *size;
	const struct {
		const char *change;
		size_t value;
		const char *good; /* rules under which it passes */
	} rows[] = {
		{ "one more", keep + 1, "nmat" }, { "one less", keep - 1, "at" },  { "zero", 0, "t" },
		{ "2^63", (size_t)1 << 63, "" },  { "the largest", SIZE_MAX, "" }, { "Tmax + 1", TMAX + 1, "ma" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		/* A combine input of zero rows is accepted where nothing else has rows. */
		if (rows[i].value == keep || (s->rule[dim] == 'a' && !rows[i].value))
			continue;
		*size = rows[i].value;
		if (strchr(rows[i].good, s->rule[dim]))
			passes(op, say(op, s, rows[i].change, dim));
		else
			refused(op, op_fn[op->mode->kind], say(op, s, rows[i].change, dim));
	}
	*size = keep;
}

static void walk_data(struct op *op, const struct spec *s)
{
	ncclEpTensor_t *t = &op->tensor[s->id];
	bool bytes = BIT(s->dtype) & (BIT(0) | BIT(1) | BIT(10) | BIT(11) | BIT(12));
	ncclEpTensor_t keep = *t;

	t->data = NULL;
	refused(op, s->name, say(op, s, "data NULL", 0));
	if (!bytes || op->mode->quant == NCCL_EP_DISP_QUANT_FWD) {
		t->data = op_data + 1;
		refused(op, s->name, say(op, s, "misaligned data", 1));
	}
	t->data = NULL;
	t->win_hdl = (ncclWindow_t)op_data;
	for (uint64_t off = 0; off <= 32; off += 4) {
		t->win_offset = off;
		/* HT with QUANT_FWD: tokens and scales are both in windows or neither. */
		bool pair = op->mode->quant == NCCL_EP_DISP_QUANT_FWD &&
			    op->mode->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT &&
			    (s->id == OUT_TOKENS || s->id == OUT_SCALES);

		if (off % 16)
			refused(op, s->name, say(op, s, "win_offset", (long long)off));
		else if (pair)
			refused(op, "outputs->scales", say(op, s, "window without its pair", (long long)off));
		else
			passes(op, say(op, s, "window-backed", (long long)off));
	}
	*t = keep;
}

static void walk_tensor(struct op *op, const struct spec *s)
{
	walk_pointer(op, s);
	walk_struct(&op->tensor[s->id], 48, op_fn[op->mode->kind], s->name, op_call, op_good, op);
	walk_rank(op, s);
	walk_dtype(op, s);
	for (unsigned d = 0; d < strlen(s->rule); d++)
		walk_size(op, s, d);
	walk_data(op, s);
	passes(op, say(op, s, "put back", 0));
}

Test(bad_args_tensor, every_tensor_of_every_mode)
{
	int walked = 0, forbidden = 0, ignored = 0;

	for (size_t m = 0; m < MODES; m++) {
		struct op op;

		op_init(&op, &modes[m]);
		for (size_t i = 0; i < modes[m].count; i++) {
			const struct spec *s = &modes[m].spec[i];

			if (s->need == 'r' || s->need == 'o') {
				walk_tensor(&op, s);
				walked++;
				continue;
			}
			op_tensor(&op, s);
			if (s->need == 'f') {
				refused(&op, s->name, say(&op, s, "forbidden", 0));
				forbidden++;
			} else {
				op.tensor[s->id].magic = 0; /* ignored */
				passes(&op, say(&op, s, "ignored", s->id));
				ignored++;
			}
			*op_slot(&op, s->id) = NULL;
		}
		op_free(&op);
	}
	/* As many as the table of the contract has cells. */
	cr_expect(walked == 83 && forbidden == 41 && ignored == 19, "%d walked, %d forbidden, %d ignored", walked,
		  forbidden, ignored);
}

/* A tensor of ncclEpTensorAlloc works like a declared one. */
Test(bad_args_tensor, owned_tensor)
{
	size_t sizes[2] = { T, K };
	ncclEpTensor_t *t;
	struct op op;

	op_init(&op, &modes[0]);
	EXPECT_OK(ncclEpTensorAlloc(&t, 2, ncclInt32, sizes, NULL));
	op.topk = t;
	EXPECT_ARG(op_call(&op), "ncclEpUpdateHandle", "topk_idx"); /* no data yet */
	t->data = op_data;
	cr_expect_eq(op_good(&op), 0);
	EXPECT_OK(ncclEpTensorDestroy(t));
	op_free(&op);
}
