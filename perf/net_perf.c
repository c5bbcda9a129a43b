/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The speed of a transport between two ranks with one thread each: puts and bytes per second (quiet puts, every 32nd
 * with a completion), the same with immediate data on every put, and the latency of a put with immediate data, half of
 * the round trip.
 *
 *   net_perf [-p] [-n net] [-b bytes] [-e bytes] [-f factor] [-i puts]
 *
 * Under a launcher (perf/launch.h) with two ranks these are its processes, and rank 0 prints.
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "perf/launch.h"
#include "test/rig/net_rig.h"
#include "util/error.h"

#define MAX_SIZES 64
#define COVER 32u
#define AREA ((size_t)4 << 20)	 /* at least: larger than the caches of one core */
#define BYTES_MAX (512ull << 20) /* per size and measurement */

struct row {
	size_t size;
	double puts, imms; /* per second */
	double way_us;
	long wrong;
};

struct options {
	const char *net;
	bool processes;
	size_t first, last, factor;
	unsigned long puts;
};

/* Anonymous shared memory: both ranks use it, also as processes. */
struct shared {
	struct options opt;
	struct row rows[MAX_SIZES];
	int count, skipped;
};

static struct shared *shared;

static size_t area(void)
{
	return shared->opt.last > AREA ? shared->opt.last : AREA;
}

static uint8_t byte_of(size_t size, size_t i)
{
	return (uint8_t)(size * 131 + i * 7 + 3);
}

static void imm_take(struct net_rank *me, uint32_t imm, void *arg)
{
	unsigned long *got = arg;

	(void)me;
	(void)imm;
	++*got;
}

/* Returns when all are complete. The last one always carries immediate data: the receiver waits for it. */
static double burst_send(struct net_rank *me, size_t size, unsigned long n, bool imms)
{
	ncclEpNetPut_v1_t put = { .peer = 1, .srcMr = me->mr, .dstMr = me->mr, .size = size };
	uint64_t start = ep_now_ns(), slots = area() / size;
	unsigned long stray = 0;

	for (unsigned long i = 0; i < n; i++) {
		bool last = i + 1 == n;
		void *request = NULL;

		put.flags = (last || imms ? NCCL_EP_NET_IMM : 0) | ((i + 1) % COVER && !last ? NCCL_EP_NET_QUIET : 0);
		put.imm = (uint32_t)i;
		put.dstOffset = area() + i % slots * size;
		while (!request && !me->errors) {
			EXPECT(me, me->hot->iput(me->ctx, &put, &request) == 0);
			if (!request)
				net_step(me, imm_take, &stray);
		}
		if (request && request != NCCL_EP_NET_QUIET_REQUEST)
			EXPECT(me, net_end(me, request, imm_take, &stray) == 0);
	}
	return (double)n / (double)(ep_now_ns() - start) * 1e9;
}

static void burst_take(struct net_rank *me, unsigned long n)
{
	unsigned long got = 0;

	NET_UNTIL(me, got >= n, imm_take, &got);
}

static double way_take(struct net_rank *me, size_t size, unsigned long n)
{
	ncclEpNetPut_v1_t put = {
		.peer = !me->rank,
		.flags = NCCL_EP_NET_IMM,
		.srcMr = me->mr,
		.dstMr = me->mr,
		.size = size,
	};
	uint64_t start = ep_now_ns();
	unsigned long got = 0;

	put.dstOffset = area();
	for (unsigned long i = 0; i < n; i++) {
		if (me->rank == 1)
			NET_UNTIL(me, got > i, imm_take, &got);
		EXPECT(me, net_put(me, &put, imm_take, &got) == 0);
		if (me->rank == 0)
			NET_UNTIL(me, got > i, imm_take, &got);
	}
	return (double)(ep_now_ns() - start) / 2e3 / (double)n;
}

static long count_wrong(struct net_rank *me, size_t size, unsigned long n)
{
	size_t slots = area() / size;
	long wrong = 0;

	if (slots > n)
		slots = n;
	for (size_t s = 0; s < slots; s++)
		for (size_t i = 0; i < size; i++)
			wrong += me->mem[area() + s * size + i] != byte_of(size, i);
	return wrong;
}

static void measure(struct net_rank *me, struct row *row)
{
	unsigned long n = shared->opt.puts;
	size_t size = row->size;

	if ((uint64_t)n * size > BYTES_MAX)
		n = (unsigned long)(BYTES_MAX / size) + 1;
	for (size_t i = 0; i < size; i++)
		me->mem[i] = byte_of(size, i);
	memset(me->mem + area(), 0xee, area()); /* populates the pages before the measurement */
	for (int imms = 0; imms < 2; imms++) {
		net_meet(me);
		if (me->rank == 1)
			burst_take(me, imms ? n : 1);
		else
			*(imms ? &row->imms : &row->puts) = burst_send(me, size, n, imms);
	}
	net_meet(me);
	if (me->rank == 1)
		row->wrong = count_wrong(me, size, n);
	net_meet(me);
	n = n / 20 + 1;
	if (me->rank == 0)
		row->way_us = way_take(me, size, n);
	else
		way_take(me, size, n);
}

/* Rank 1 counts what is wrong. */
static void rows_join(struct net_rank *me)
{
	struct row all[2][MAX_SIZES];

	net_meet(me); /* makes progress: the other's last put may need it */
	EXPECT(me, me->test->gather(me->test->gather_arg, shared->rows, sizeof(shared->rows), all) == 0);
	for (int i = 0; i < shared->count; i++)
		shared->rows[i].wrong = all[1][i].wrong;
}

static void rank_run(struct net_rank *me)
{
	for (int i = 0; i < shared->count && !me->errors; i++) {
		if (shared->rows[i].size <= me->props.maxPutSize)
			measure(me, &shared->rows[i]);
		else if (me->rank == 0)
			shared->skipped++;
	}
	if (me->test->gather)
		rows_join(me);
}

static int print(void)
{
	int n = shared->count - shared->skipped;
	long wrong = 0;
	double total = 0;

	printf("#%11s %12s %9s %12s %10s %7s\n", "size", "puts", "algbw", "puts + imm", "latency", "#wrong");
	printf("#%11s %12s %9s %12s %10s %7s\n", "(B)", "(M/s)", "(GB/s)", "(M/s)", "(us)", "");
	for (int i = 0; i < n; i++) {
		const struct row *r = &shared->rows[i];

		printf("%12zu %12.3f %9.2f %12.3f %10.2f %7ld\n", r->size, r->puts / 1e6,
		       r->puts * (double)r->size / 1e9, r->imms / 1e6, r->way_us, r->wrong);
		wrong += r->wrong;
		total += r->puts * (double)r->size / 1e9;
	}
	if (shared->skipped)
		printf("# %d sizes exceed the maximum put of this transport\n", shared->skipped);
	printf("# Avg algbw (GB/s) : %.3f   Out of bounds values : %ld %s\n#\n", n ? total / n : 0, wrong,
	       wrong ? "FAILED" : "OK");
	return wrong != 0;
}

static int parse(int argc, char **argv, struct options *opt)
{
	static const char *const usage =
		"net_perf [-p] [-n net] [-b bytes] [-e bytes] [-f factor] [-i puts]\n"
		"  -p  ranks are processes (default: threads)   -n  transport, as NCCL_EP_NET (loop)\n"
		"  -b, -e, -f  size of puts: from, to, factor   -i  at most so many puts per size (200000)\n";
	int c;

	*opt = (struct options){ .net = "loop", .first = 8, .last = 2 << 20, .factor = 8, .puts = 200000 };
	while ((c = getopt(argc, argv, "pn:b:e:f:i:h")) != -1) {
		switch (c) {
		case 'p':
			opt->processes = true;
			break;
		case 'n':
			opt->net = optarg;
			break;
		case 'b':
			opt->first = strtoul(optarg, NULL, 0);
			break;
		case 'e':
			opt->last = strtoul(optarg, NULL, 0);
			break;
		case 'f':
			opt->factor = strtoul(optarg, NULL, 0);
			break;
		case 'i':
			opt->puts = strtoul(optarg, NULL, 0);
			break;
		default:
			fprintf(c == 'h' ? stdout : stderr, "%s", usage);
			return c == 'h' ? 1 : -1;
		}
	}
	if (!opt->first || opt->last < opt->first || opt->last > 1ul << 32 || opt->factor < 2 || !opt->puts) {
		fprintf(stderr, "net_perf: option out of range\n%s", usage);
		return -1;
	}
	return 0;
}

static int peers_gather(void *launch, const void *mine, size_t bytes, void *all)
{
	char text[LAUNCH_TEXT];

	if (!launch_gather(launch, mine, bytes, all, text, sizeof(text)))
		return 0;
	fprintf(stderr, "net_perf: %s\n", text);
	return -1;
}

/* -1 after a message. */
static int launched(struct net_case *test, const struct options *opt, struct launch **launch)
{
	char text[LAUNCH_TEXT];

	if (launch_open(launch, text, sizeof(text))) {
		fprintf(stderr, "net_perf: %s\n", text);
		return -1;
	}
	if (!*launch)
		return 0;
	if (launch_ranks(*launch) != 2 || opt->processes) {
		if (!launch_rank(*launch))
			fprintf(stderr,
				"net_perf: a launcher must start 2 ranks, not %d, and -p starts them without one\n",
				launch_ranks(*launch));
		launch_close(*launch);
		return -1;
	}
	test->rank = launch_rank(*launch);
	test->gather = peers_gather;
	test->gather_arg = *launch;
	return 0;
}

static void print_head(const struct options *opt, const struct launch *launch)
{
	printf("# net_perf " EP_VERSION
	       ", transport %s, 2 ranks as %s%s, at most %lu puts per size, a completion every %u\n#\n",
	       opt->net,
	       launch		? "processes by "
	       : opt->processes ? "processes"
				: "threads",
	       launch ? launch_name(launch) : "", opt->puts, COVER);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct net_case test = { .ranks = 2, .run = rank_run };
	struct launch *launch = NULL;
	struct options opt;
	int rc = parse(argc, argv, &opt);

	if (rc)
		return rc < 0;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 1;
	shared->opt = opt;
	for (size_t s = opt.first; s <= opt.last && shared->count < MAX_SIZES; s *= opt.factor)
		shared->rows[shared->count++].size = s;
	if (net_absent(opt.net))
		return 77;
	test.spec = opt.net;
	test.each = opt.processes;
	test.bytes = 2 * area();
	if (launched(&test, &opt, &launch))
		return 2;
	if (!test.rank)
		print_head(&opt, launch);
	if (net_run(&test)) {
		printf("# FAILED\n");
		return 1;
	}
	rc = test.rank ? 0 : print();
	launch_close(launch);
	return rc;
}
