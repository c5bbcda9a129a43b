/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time of the bootstrap, and bandwidth of windows: rows copied into every peer's window, a signal after them, and the
 * rows copied out by the peer (the rowsig kernel), on the CPU device. Ranks are processes, or threads with -t.
 */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/args.h"
#include "perf/perf_tool.h"
#include "plugin/boot/boot.h"
#include "plugin/boot/topo.h"
#include "plugin/group/window.h"
#include "util/clock.h"
#include "util/error.h"

#define MAX_RANKS 1024
#define MAX_SIZES 64
#define MAX_COUNTS 16

struct options {
	bool threads;
	const char *ranks; /* as given */
	int counts[MAX_COUNTS], ncounts;
	size_t first, last, factor;
	int iterations, warmup;
};

/* Shared between the ranks of a run: each writes its own entry. */
struct result {
	int failed;
	double meet_ms;
	double us[MAX_SIZES];
	long wrong[MAX_SIZES];
};

struct run {
	const struct options *opt;
	struct ep_boot_id id;
	int nranks;
	struct result *result; /* [nranks] */
};

struct rank {
	const struct run *run;
	int rank;
	struct ep_boot *boot;
	struct ep_topo topo;
	struct ep_dev *dev;
	struct ep_window_tables tables;
	struct ep_window control, window;
	struct ep_mem state, in, out, counts;
	struct ep_pinned pinned;
};

static int sizes(const struct options *opt, size_t *out)
{
	int n = 0;

	for (size_t s = opt->first; s <= opt->last && n < MAX_SIZES; s *= opt->factor)
		out[n++] = s;
	return n;
}

static int rank_open(struct rank *r)
{
	const struct run *run = r->run;
	size_t n = (size_t)run->nranks, rows = n * run->opt->last;
	struct ep_boot_opts opts = { .id = &run->id, .rank = r->rank, .nranks = run->nranks };
	uint64_t start = ep_now_ns();
	struct ep_window_ctx ctx;
	const struct ep_dev_ops *ops;

	if (ep_boot_open(&opts, &r->boot))
		return -1;
	run->result[r->rank].meet_ms = (double)(ep_now_ns() - start) / 1e6;
	if (ep_dev_row(EP_DEV_HOST)->open(0, &r->dev) ||
	    ep_topo_build(r->boot, r->rank, run->nranks, &(struct ep_topo_dev){ .kind = EP_DEV_HOST }, &r->topo))
		return -1;
	ctx = (struct ep_window_ctx){
		.dev = r->dev, .boot = r->boot, .topo = &r->topo, .rank = r->rank, .tables = &r->tables
	};
	ops = r->dev->ops;
	return ep_window_open(&ctx, ep_rowsig_control_size((uint32_t)n), &r->control) ||
	       ep_window_open(&ctx, ep_rowsig_window_size(run->opt->last, 1, (uint32_t)n), &r->window) ||
	       ops->mem_alloc(r->dev, ep_rowsig_state_size((uint32_t)n), &r->state) ||
	       ops->mem_alloc(r->dev, rows, &r->in) || ops->mem_alloc(r->dev, rows, &r->out) ||
	       ops->mem_alloc(r->dev, 2 * n * sizeof(uint32_t), &r->counts) ||
	       ops->pinned_alloc(r->dev, sizeof(struct ep_kernel_report) + sizeof(uint64_t), &r->pinned);
}

static void rank_close(struct rank *r)
{
	struct ep_window_ctx ctx = { .dev = r->dev, .tables = &r->tables };
	const struct ep_dev_ops *ops = r->dev->ops;

	ep_boot_barrier(r->boot);
	ep_window_close(&ctx, &r->control);
	ep_window_close(&ctx, &r->window);
	ep_window_tables_close(&ctx);
	ops->mem_free(r->dev, &r->state);
	ops->mem_free(r->dev, &r->in);
	ops->mem_free(r->dev, &r->out);
	ops->mem_free(r->dev, &r->counts);
	ops->pinned_free(r->dev, &r->pinned);
	ops->close(r->dev);
	ep_topo_free(&r->topo);
	ep_boot_close(r->boot);
}

static uint8_t byte_of(int source, int dest, size_t size, size_t i)
{
	return (uint8_t)(source * 31 + dest * 7 + (int)(size % 251) + (int)(i * 2654435761u >> 13));
}

static long count_wrong(const struct rank *r, size_t size)
{
	const uint8_t *out = r->out.ptr;
	long wrong = 0;

	for (int s = 0; s < r->run->nranks; s++)
		for (size_t i = 0; i < size; i++)
			wrong += out[(size_t)s * size + i] != byte_of(s, r->rank, size, i);
	return wrong;
}

static int measure(struct rank *r, size_t size, int index)
{
	const struct options *opt = r->run->opt;
	struct ep_kernel_report *report = r->pinned.host;
	uint32_t *count = r->counts.ptr;
	uint8_t *in = r->in.ptr;
	struct ep_rowsig_args args = {
		.in = in,
		.out = r->out.ptr,
		.count = count,
		.got = count + r->run->nranks,
		.window = (uint8_t *const *)r->window.peer_dev,
		.control = (uint64_t *const *)r->control.peer_dev,
		.state = r->state.ptr,
		.report = report,
		.abort = (uint64_t *)(report + 1),
		.timeout_ns = 30000000000ull,
		.row = size,
		.rank = (uint32_t)r->rank,
		.nranks = (uint32_t)r->run->nranks,
		.cap = 1,
		.slices = 1,
	};
	struct ep_launch launch = {
		.kernel = EP_K_rowsig, .grid = 1, .block = 1, .args = &args, .args_size = sizeof(args)
	};
	uint64_t start = 0;

	for (int d = 0; d < r->run->nranks; d++) {
		count[d] = 1;
		for (size_t i = 0; i < size; i++)
			in[(size_t)d * size + i] = byte_of(r->rank, d, size, i);
	}
	memset(r->out.ptr, 0xee, (size_t)r->run->nranks * size);
	if (ep_boot_barrier(r->boot))
		return -1;
	for (int i = -opt->warmup; i < opt->iterations; i++) {
		if (i == 0)
			start = ep_now_ns();
		if (r->dev->ops->launch(r->dev, &launch) || report->code)
			return -1;
	}
	r->run->result[r->rank].us[index] = (double)(ep_now_ns() - start) / 1e3 / opt->iterations;
	r->run->result[r->rank].wrong[index] = count_wrong(r, size);
	return 0;
}

static int rank_run(const struct run *run, int rank)
{
	struct rank r = { .run = run, .rank = rank };
	size_t size[MAX_SIZES];
	int n = sizes(run->opt, size);

	run->result[rank].failed = 1;
	if (rank_open(&r)) {
		fprintf(stderr, "window_perf: rank %d: %s\n", rank, ep_last_error());
		return 1;
	}
	for (int i = 0; i < n; i++)
		if (measure(&r, size[i], i)) {
			fprintf(stderr, "window_perf: rank %d: %zu bytes: %s\n", rank, size[i], ep_last_error());
			return 1;
		}
	rank_close(&r);
	run->result[rank].failed = 0;
	return 0;
}

struct thread {
	const struct run *run;
	int rank;
	pthread_t id;
};

static void *thread_main(void *arg)
{
	struct thread *t = arg;

	rank_run(t->run, t->rank);
	return NULL;
}

/* Children are forked before the id is created, which starts threads. */
static int run_processes(struct run *run)
{
	int fds[MAX_RANKS], pipefd[2];
	pid_t pid[MAX_RANKS];

	for (int r = 0; r < run->nranks; r++) {
		if (pipe(pipefd))
			return -1;
		pid[r] = fork();
		if (pid[r] == 0) {
			ssize_t n;

			/* Otherwise no pipe would close when the parent exits. */
			close(pipefd[1]);
			for (int q = 0; q < r; q++)
				close(fds[q]);
			n = read(pipefd[0], &run->id, sizeof(run->id));

			_exit(n == (ssize_t)sizeof(run->id) ? rank_run(run, r) : 1);
		}
		close(pipefd[0]);
		fds[r] = pipefd[1];
	}
	if (ep_boot_id_create(&run->id))
		return -1;
	for (int r = 0; r < run->nranks; r++) {
		if (write(fds[r], &run->id, sizeof(run->id)) != (ssize_t)sizeof(run->id))
			fprintf(stderr, "window_perf: rank %d has exited\n", r);
		close(fds[r]);
	}
	for (int r = 0; r < run->nranks; r++)
		waitpid(pid[r], NULL, 0);
	return 0;
}

static int run_threads(struct run *run)
{
	struct thread t[MAX_RANKS];

	if (ep_boot_id_create(&run->id))
		return -1;
	for (int r = 0; r < run->nranks; r++) {
		t[r] = (struct thread){ .run = run, .rank = r };
		if (pthread_create(&t[r].id, NULL, thread_main, &t[r]))
			return -1;
	}
	for (int r = 0; r < run->nranks; r++)
		pthread_join(t[r].id, NULL);
	return 0;
}

/* Slowest rank, as in nccl-tests; bytes are those one rank sends to all ranks, including itself. */
static int print_run(const struct run *run)
{
	size_t size[MAX_SIZES];
	int n = sizes(run->opt, size), failed = 0;
	double meet = 0, total = 0;
	long all_wrong = 0;

	for (int r = 0; r < run->nranks; r++) {
		failed += run->result[r].failed;
		meet = run->result[r].meet_ms > meet ? run->result[r].meet_ms : meet;
	}
	printf("# %d ranks as %s: bootstrap %.1f ms\n", run->nranks, run->opt->threads ? "threads" : "processes", meet);
	if (failed) {
		printf("# FAILED on %d ranks\n", failed);
		return 1;
	}
	for (int i = 0; i < n; i++) {
		double us = 0, bytes = (double)size[i] * run->nranks;
		long wrong = 0;

		for (int r = 0; r < run->nranks; r++) {
			us = run->result[r].us[i] > us ? run->result[r].us[i] : us;
			wrong += run->result[r].wrong[i];
		}
		printf("%12zu %8d %12.2f %8.2f %8.2f %7ld\n", size[i], run->nranks, us, bytes / us / 1e3,
		       bytes / us / 1e3 * (run->nranks - 1) / run->nranks, wrong);
		total += bytes / us / 1e3;
		all_wrong += wrong;
	}
	return perf_end(n ? total / n : 0, all_wrong);
}

/* clang-format off */
static const struct perf_arg args_rows[] = {
#define AT(member) offsetof(struct options, member)
	{ "threads", 't', 0, ARG_SWITCH, AT(threads), 0, 1, NULL, "ranks are threads (0: processes)" },
	{ "ranks", 'n', 0, ARG_TEXT, AT(ranks), 0, 0, NULL, "numbers of ranks, one table each (2,8)" },
	{ "minbytes", 'b', 0, ARG_SIZE, AT(first), 1, LONG_MAX, NULL, "bytes per peer, first row (16)" },
	{ "maxbytes", 'e', 0, ARG_SIZE, AT(last), 1, LONG_MAX, NULL, "bytes per peer, last row (1 MiB)" },
	{ "stepfactor", 'f', 0, ARG_SIZE, AT(factor), 2, LONG_MAX, NULL, "factor between rows (4)" },
	{ "iters", 'i', 0, ARG_INT, AT(iterations), 1, INT_MAX, NULL, "timed iterations (200)" },
	{ "warmup_iters", 'w', 0, ARG_INT, AT(warmup), 0, INT_MAX, NULL, "warm-up iterations (20)" },
	{ "help", 'h', 0, ARG_HELP, 0, 0, 0, NULL, "this text" },
#undef AT
};
/* clang-format on */

/* "2,8" into counts; false: malformed, too many or out of range. */
static bool counts_take(struct options *opt)
{
	const char *at = opt->ranks;
	char *end;

	for (opt->ncounts = 0; opt->ncounts < MAX_COUNTS; at = end + 1) {
		long n = strtol(at, &end, 10);

		if (end == at || n < 1 || n > MAX_RANKS)
			return false;
		opt->counts[opt->ncounts++] = (int)n;
		if (*end != ',')
			return *end == '\0';
	}
	return false;
}

static int parse(int argc, char **argv, struct options *opt)
{
	struct perf_args args = { .program = "window_perf", .rows = args_rows, .count = PERF_ARGS_COUNT(args_rows) };
	int rc;

	*opt = (struct options){
		.ranks = "2,8", .first = 16, .last = 1 << 20, .factor = 4, .iterations = 200, .warmup = 20
	};
	rc = perf_args_take(&args, opt, argc, argv);
	if (!rc && (!counts_take(opt) || opt->last < opt->first)) {
		fprintf(stderr, "window_perf: -n must be up to %d numbers from 1 to %d, and -e at least -b\n",
			MAX_COUNTS, MAX_RANKS);
		return -1;
	}
	return rc;
}

int main(int argc, char **argv)
{
	struct options opt;
	int rc = parse(argc, argv, &opt), failed = 0;

	if (rc)
		return rc < 0;
	printf("# window_perf: %d iterations, %d warm-up, CPU device; time is the slowest rank's\n#\n", opt.iterations,
	       opt.warmup);
	printf("#%11s %8s %12s %8s %8s %7s\n#%11s %8s %12s %8s %8s %7s\n", "size", "ranks", "time", "algbw", "busbw",
	       "#wrong", "(B/peer)", "", "(us)", "(GB/s)", "(GB/s)", "");
	for (int i = 0; i < opt.ncounts; i++) {
		struct run run = { .opt = &opt, .nranks = opt.counts[i] };

		fflush(stdout);
		run.result = mmap(NULL, sizeof(struct result) * (size_t)run.nranks, PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (run.result == MAP_FAILED)
			return 1;
		if (opt.threads ? run_threads(&run) : run_processes(&run)) {
			fprintf(stderr, "window_perf: %s\n", ep_last_error());
			return 1;
		}
		failed += print_run(&run);
		munmap(run.result, sizeof(struct result) * (size_t)run.nranks);
	}
	return failed != 0;
}
