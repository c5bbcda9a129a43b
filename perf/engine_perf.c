/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command rate of one engine: this thread pushes as a kernel does, the engine pops, puts and completes, until the ring
 * is quiet. For comparison, in the same run, the net alone, driven by a loop of this thread with a completion every 32
 * puts. "apart": no two puts are adjacent; "neighbours": all are, and get merged.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf/perf_tool.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define COVER 32u
#define AREA ((size_t)4 << 20)	 /* larger than one core's caches */
#define BYTES_MAX (256ull << 20) /* per row */
#define BATCH 32u		 /* commands per claim */

struct options {
	const char *net;
	size_t first, last, factor;
	size_t puts;
};

struct row {
	size_t size;
	bool apart;
	unsigned long n;
	double raw, rate; /* puts per second */
	uint64_t puts;	  /* given to the net */
	long wrong;
};

/* Destination of put i; puts that are apart leave a gap of their size. */
static uint64_t place_of(const struct row *r, unsigned long i)
{
	size_t step = r->apart ? 2 * r->size : r->size;

	return i % (AREA / step) * step;
}

static uint8_t byte_of(uint64_t at)
{
	return (uint8_t)(at * 7 + at / 4096 + 3);
}

static double raw_run(struct eng_rank *me, const struct row *r)
{
	const struct ep_region *region = me->regions.region;
	void *ctx = me->port[0].probe.ctx, *request;
	uint64_t start = ep_now_ns();
	uint32_t none[16];
	int done, count;

	for (unsigned long i = 0; i < r->n; i++) {
		ncclEpNetPut_v1_t put = { .peer = 1,
					  .srcMr = region->mr,
					  .dstMr = region->mr,
					  .srcOffset = place_of(r, i),
					  .dstOffset = AREA + place_of(r, i),
					  .size = r->size };

		put.flags = (i + 1) % COVER && i + 1 < r->n ? NCCL_EP_NET_QUIET : 0;
		for (request = NULL; !request;) {
			if (me->net->hot.iput(ctx, &put, &request))
				return 0;
			if (!request)
				me->net->hot.progress(ctx, none, 16, &count);
		}
		for (done = request == NCCL_EP_NET_QUIET_REQUEST; !done;) {
			if (me->net->hot.test(ctx, request, &done))
				return 0;
			if (!done)
				me->net->hot.progress(ctx, none, 16, &count);
		}
	}
	return (double)r->n / (double)(ep_now_ns() - start) * 1e9;
}

static double engine_run(struct eng_rank *me, const struct row *r)
{
	const struct ep_cmd_ring *ring = eng_ring_to(me, 1);
	uint64_t start = ep_now_ns(), end = ep_deadline_ms(60000);
	struct ep_cmd cmd[BATCH];

	for (unsigned long i = 0; i < r->n;) {
		uint32_t n = 0;

		for (; n < BATCH && i < r->n; n++, i++)
			cmd[n] = ep_cmd_put(1, AREA + place_of(r, i), place_of(r, i), (uint32_t)r->size);
		if (eng_push_all(me, 1, cmd, n))
			return 0;
	}
	/* Sleep: spinning might take the engine's core. */
	while (__atomic_load_n(&ring->tail->done, __ATOMIC_ACQUIRE) != ring->head->claim) {
		if (ep_now_ns() > end)
			return 0;
		usleep(20);
	}
	return (double)r->n / (double)(ep_now_ns() - start) * 1e9;
}

static long count_wrong(struct eng_rank *from, struct eng_rank *to, const struct row *r)
{
	long wrong = 0;

	for (unsigned long i = 0; i < r->n && (i == 0 || place_of(r, i)); i++)
		wrong += memcmp(to->mem + AREA + place_of(r, i), from->mem + place_of(r, i), r->size) != 0;
	return wrong;
}

static int measure(const struct options *opt, struct row *r)
{
	struct eng_opts o = { .spec = opt->net,
			      .ranks = 2,
			      .entries = 8192,
			      .window = 4096,
			      .bytes = 2 * AREA,
			      .max_inline = ENG_INLINE_MAX,
			      .detached = true,
			      .bare = true };
	struct eng_rig *rig = eng_open(&o);
	struct eng_rank *me = &rig->rank[0];
	int rc = 0;

	for (uint64_t i = 0; i < AREA; i++)
		me->mem[i] = byte_of(i);
	memset(rig->rank[1].mem + AREA, 0xee, AREA);
	r->raw = raw_run(me, r);
	memset(rig->rank[1].mem + AREA, 0xee, AREA);
	for (int k = 0; k < 2; k++)
		rc |= ep_engine_attach(rig->rank[k].port[0].engine, rig->rank[k].port[0].port);
	if (!rc)
		r->rate = engine_run(me, r);
	r->puts = eng_counts(me).puts;
	r->wrong = count_wrong(me, &rig->rank[1], r);
	eng_close(rig);
	return rc || r->rate == 0 || r->raw == 0;
}

static void print(const struct row *r)
{
	printf("%12zu %11s %12.3f %12.3f %9.2f %12.1f %7ld\n", r->size, r->apart ? "apart" : "neighbours", r->raw / 1e6,
	       r->rate / 1e6, r->rate * (double)r->size / 1e9, (double)r->n / (double)r->puts, r->wrong);
}

/* clang-format off */
static const struct perf_arg args_rows[] = {
#define AT(member) offsetof(struct options, member)
	{ "net", 'n', 0, ARG_TEXT, AT(net), 0, 0, NULL, "as NCCL_EP_NET (loop)" },
	{ "minbytes", 'b', 0, ARG_SIZE, AT(first), EP_CMD_UNIT, AREA / 2, NULL, "bytes per put, first row (64)" },
	{ "maxbytes", 'e', 0, ARG_SIZE, AT(last), EP_CMD_UNIT, AREA / 2, NULL, "bytes per put, last row (32768)" },
	{ "stepfactor", 'f', 0, ARG_SIZE, AT(factor), 2, 1 << 20, NULL, "factor between rows (8)" },
	{ "puts", 'i', 0, ARG_SIZE, AT(puts), 1, LONG_MAX, NULL, "puts per row at most (2000000)" },
	{ "help", 'h', 0, ARG_HELP, 0, 0, 0, NULL, "this text" },
#undef AT
};
/* clang-format on */

static int parse(int argc, char **argv, struct options *opt)
{
	struct perf_args args = { .program = "engine_perf", .rows = args_rows, .count = PERF_ARGS_COUNT(args_rows) };
	int rc;

	*opt = (struct options){ .net = "loop", .first = 64, .last = 32768, .factor = 8, .puts = 2000000 };
	rc = perf_args_take(&args, opt, argc, argv);
	if (!rc && (opt->first % EP_CMD_UNIT || opt->last < opt->first)) {
		fprintf(stderr, "engine_perf: -b must be a multiple of %u, and -e at least -b\n", EP_CMD_UNIT);
		return -1;
	}
	return rc;
}

int main(int argc, char **argv)
{
	struct options opt;
	long wrong = 0;
	int rc = parse(argc, argv, &opt);

	if (rc)
		return rc < 0;
	printf("# engine_perf " EP_VERSION ", net %s, one engine thread, %u commands for each claim\n#\n", opt.net,
	       BATCH);
	printf("#%11s %11s %12s %12s %9s %12s %7s\n", "size", "puts are", "net alone", "engine", "algbw", "joined",
	       "#wrong");
	printf("#%11s %11s %12s %12s %9s %12s %7s\n", "(B)", "", "(M/s)", "(M/s)", "(GB/s)", "(per put)", "");
	for (size_t size = opt.first; size <= opt.last; size *= opt.factor)
		for (int apart = 1; apart >= 0; apart--) {
			struct row r = { .size = size, .apart = apart, .n = opt.puts };

			if (r.n > BYTES_MAX / size)
				r.n = (unsigned long)(BYTES_MAX / size);
			if (measure(&opt, &r)) {
				printf("# FAILED: %s\n", ep_last_error());
				return 1;
			}
			print(&r);
			wrong += r.wrong;
		}
	return perf_end(-1, wrong);
}
