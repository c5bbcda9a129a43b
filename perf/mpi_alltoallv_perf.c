/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference for HT on the CPU: MPI_Alltoallv of the rows that a flat dispatch with the same options moves. MPI is
 * given what dispatch has to compute: the counts, and rows packed by destination. No ids or weights are sent. Run by
 * mpirun; exit status as ep_perf.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/perf_data.h"

#define ROWS_MAX 256

struct exchange {
	const struct perf_opts *opts;
	struct ll_shape shape;
	int rank, tokens;
	size_t row; /* bytes */
	MPI_Datatype type;
	int *send_count, *send_first, *recv_count, *recv_first; /* [ranks], in rows */
	uint8_t *send, *recv;
	double *sample; /* [iterations] */
};

/* MPI's error handler aborts the job when a call fails. */
static void stop(const char *text)
{
	fprintf(stderr, "mpi_alltoallv_perf: %s\n", text);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *need(size_t size)
{
	void *at = NULL;

	if (posix_memalign(&at, 4096, size ? size : 1))
		stop("out of memory");
	memset(at, 0, size);
	return at;
}

static struct ll_input input_of(const struct exchange *x, int rank)
{
	struct ll_data data = perf_data_first(x->opts, x->tokens);
	struct ll_input in;

	if (ll_input_make(&x->shape, &data, rank, &in))
		stop("out of memory");
	return in;
}

static void row_copy(const struct exchange *x, const struct ll_input *in, int token, uint8_t *row)
{
	size_t bytes = ll_out_bytes(&x->shape), scale = ll_scale_bytes(&x->shape);

	memcpy(row, in->tokens + (size_t)token * bytes, bytes);
	if (scale)
		memcpy(row + bytes, in->scales + (size_t)token * scale, scale);
}

/* Rows of `in` for a rank, in token order; at NULL: only counted. */
static int rows_pack(const struct exchange *x, const struct ll_input *in, int rank, uint8_t *at)
{
	int rows = 0;

	for (int t = 0; t < in->t; t++) {
		if (!perf_goes_to(&x->shape, in, t, rank))
			continue;
		if (at)
			row_copy(x, in, t, at + (size_t)rows * x->row);
		rows++;
	}
	return rows;
}

static int firsts(const int *count, int *first, int n)
{
	int sum = 0;

	for (int i = 0; i < n; i++) {
		first[i] = sum;
		sum += count[i];
	}
	return sum;
}

static void exchange_open(struct exchange *x)
{
	int ranks = x->opts->ranks;
	struct ll_input in;

	perf_shape(x->opts, &x->shape);
	x->row = ll_out_bytes(&x->shape) + ll_scale_bytes(&x->shape);
	x->send_count = need((size_t)ranks * sizeof(int));
	x->send_first = need((size_t)ranks * sizeof(int));
	x->recv_count = need((size_t)ranks * sizeof(int));
	x->recv_first = need((size_t)ranks * sizeof(int));
	x->sample = need((size_t)x->opts->iterations * sizeof(double));
	/* In rows: byte counts would overflow an int. */
	MPI_Type_contiguous((int)x->row, MPI_BYTE, &x->type);
	MPI_Type_commit(&x->type);
	in = input_of(x, x->rank);
	for (int r = 0; r < ranks; r++)
		x->send_count[r] = rows_pack(x, &in, r, NULL);
	MPI_Alltoall(x->send_count, 1, MPI_INT, x->recv_count, 1, MPI_INT, MPI_COMM_WORLD);
	x->send = need((size_t)firsts(x->send_count, x->send_first, ranks) * x->row);
	x->recv = need((size_t)firsts(x->recv_count, x->recv_first, ranks) * x->row);
	for (int r = 0; r < ranks; r++)
		rows_pack(x, &in, r, x->send + (size_t)x->send_first[r] * x->row);
	ll_input_free(&in);
}

static void exchange_close(struct exchange *x)
{
	MPI_Type_free(&x->type);
	free(x->send_count);
	free(x->send_first);
	free(x->recv_count);
	free(x->recv_first);
	free(x->send);
	free(x->recv);
	free(x->sample);
}

static void exchange_time(struct exchange *x)
{
	for (int i = -x->opts->warmup; i < x->opts->iterations; i++) {
		double start;

		MPI_Barrier(MPI_COMM_WORLD);
		start = MPI_Wtime();
		MPI_Alltoallv(x->send, x->send_count, x->send_first, x->type, x->recv, x->recv_count, x->recv_first,
			      x->type, MPI_COMM_WORLD);
		if (i >= 0)
			x->sample[i] = 1e6 * (MPI_Wtime() - start);
	}
}

/* Counts rows that differ from what was sent. */
static long wrong_rows(const struct exchange *x)
{
	long wrong = 0;

	for (int src = 0; src < x->opts->ranks; src++) {
		struct ll_input in = input_of(x, src);
		uint8_t *want = need((size_t)x->recv_count[src] * x->row);
		const uint8_t *got = x->recv + (size_t)x->recv_first[src] * x->row;

		rows_pack(x, &in, x->rank, want);
		for (int i = 0; i < x->recv_count[src]; i++)
			wrong += memcmp(want + (size_t)i * x->row, got + (size_t)i * x->row, x->row) != 0;
		free(want);
		ll_input_free(&in);
	}
	return wrong;
}

static void row_make(struct exchange *x, struct perf_row *out)
{
	int rows = 0, n = x->opts->iterations;
	long sum[3] = { 0 };

	*out = (struct perf_row){
		.tokens = x->tokens, .phase = PERF_ALLTOALLV, .device_us = -1, .beside_us = -1, .wrong = -1
	};
	for (int r = 0; r < x->opts->ranks; r++)
		rows += x->recv_count[r];
	sum[0] = rows;
	sum[1] = x->opts->check ? wrong_rows(x) : 0;
	sum[2] = rows - x->recv_count[x->rank];
	MPI_Allreduce(MPI_IN_PLACE, sum, 3, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	MPI_Allreduce(MPI_IN_PLACE, x->sample, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	out->best_us = x->sample[0];
	for (int i = 0; i < n; i++) {
		out->host_us += x->sample[i] / n;
		out->best_us = x->sample[i] < out->best_us ? x->sample[i] : out->best_us;
	}
	out->bytes = (double)sum[0] * (double)x->row / x->opts->ranks;
	out->remote = (double)sum[2] * (double)x->row / x->opts->ranks;
	out->algbw = out->bytes / 1e3 / out->host_us;
	out->busbw = out->remote / 1e3 / out->host_us;
	out->p50_us = perf_percentile(x->sample, n, 0.5);
	out->p99_us = perf_percentile(x->sample, n, 0.99);
	out->wrong = x->opts->check ? sum[1] : -1;
}

static int sweep(const struct perf_opts *opts, int rank)
{
	const struct perf_facts facts = { .device = "host", .beside = "", .window = UINT64_MAX, .first_us = -1 };
	struct perf_row row[ROWS_MAX];
	int count = 0, rc = 0;

	if (!rank) {
		perf_print_head(opts);
		perf_print_facts(opts, &facts);
	}
	for (int tokens = opts->first; tokens <= opts->last && count < ROWS_MAX;
	     tokens = tokens ? tokens * opts->factor : 1) {
		struct exchange x = { .opts = opts, .rank = rank, .tokens = tokens };

		exchange_open(&x);
		exchange_time(&x);
		row_make(&x, &row[count]);
		exchange_close(&x);
		if (!rank)
			perf_print_row(opts, &row[count]);
		rc |= row[count++].wrong > 0;
	}
	if (!rank) {
		perf_print_end(&facts, row, count);
		if (opts->json && perf_write_json(&(struct perf_report){
					  .opts = opts, .facts = &facts, .rows = row, .count = count }))
			rc = 1;
	}
	return rc;
}

int main(int argc, char **argv)
{
	struct perf_opts opts = { .program = "mpi_alltoallv_perf",
				  .title = "the rows of a dispatch",
				  .algorithm = PERF_HT,
				  .processes = true,
				  .factor = 2,
				  .topk = 8,
				  .check = true,
				  .iterations = 20,
				  .warmup = 5,
				  .seed = 1 };
	int rank, rc;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &opts.ranks);
	opts.quiet = rank > 0;
	rc = perf_opts_take(&opts, PERF_FOR_MPI, argc, argv);
	if (!rc && !perf_opts_settle(&opts, PERF_FOR_MPI, false))
		rc = sweep(&opts, rank);
	else
		rc = rc > 0 ? 0 : 2;
	MPI_Finalize();
	return rc;
}
