/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches: the embedded kernel runs with the same result in every way it can be launched; invalid launches are
 * refused; a kernel that waits for a rank that never calls ends at its own deadline, and the host's wait at its own.
 */
#include "gpu.h"
#include "test/kernels/rowsig_rank.h"

static struct rowsig_world world = {
	.kind = EP_DEV_CUDA,
	.nranks = 1,
	.epochs = 3,
	.cap = 8,
	.row = 1024,
	.grid = 2,
	.warps = 4,
	.slices = 4,
	.seed = 3,
	.timeout_ms = 10000,
};

static struct ep_launch launch_of(const struct rowsig_rank *r)
{
	return (struct ep_launch){ .kernel = EP_K_rowsig,
				   .grid = world.grid,
				   .block = world.warps * r->dev->warp,
				   .args = &r->args,
				   .args_size = sizeof(r->args),
				   .stream = r->stream };
}

/* One launch into a cleared output; rows: a copy of it. */
static void once(struct rowsig_rank *r, const struct ep_launch *l, uint8_t *rows, const char *what)
{
	const struct ep_dev_ops *ops = r->dev->ops;

	REQUIRE(ops->fill(r->dev, r->out.ptr, 0, r->out.size, r->stream) == 0, "%s: fill", what);
	REQUIRE(ops->launch(r->dev, l) == 0, "%s: launch", what);
	REQUIRE(ops->sync(r->dev, r->stream, ep_deadline_ms(20000)) == 0, "%s: sync", what);
	REQUIRE(ops->copy(r->dev, rows, r->out.ptr, r->out.size, r->stream) == 0, "%s: copy", what);
	CHECK(rowsig_report(r)->code == EP_KERR_NONE, "%s: the kernel reports %u", what, rowsig_report(r)->code);
}

static void open_ranks(struct rowsig_rank *rank, int n)
{
	void *window[2];

	world.nranks = n;
	for (int i = 0; i < n; i++) {
		REQUIRE(rowsig_open(&rank[i], &world, i) == 0, "rank %d", i);
		window[i] = rank[i].window.ptr;
	}
	for (int i = 0; i < n; i++)
		REQUIRE(rowsig_connect(&rank[i], window) == 0, "rank %d", i);
}

/* A rank alone: rows to itself, through its window. */
static void ways(void)
{
	struct rowsig_rank r;
	struct ep_launch l;
	uint8_t *first, *again;
	size_t n;

	open_ranks(&r, 1);
	n = r.out.size;
	first = calloc(1, n);
	again = calloc(1, n);
	REQUIRE(first && again, "out of memory");
	REQUIRE(rowsig_run(&r) == 0, "run");
	l = launch_of(&r);
	once(&r, &l, first, "plain");
	CHECK(memcmp(first, again, n), "nothing was moved");
	once(&r, &l, again, "again");
	CHECK(!memcmp(first, again, n), "the second run differs from the first");
	r.args.stage = 2048;
	l.shared = (size_t)r.args.stage * world.warps;
	once(&r, &l, again, "shared memory");
	CHECK(!memcmp(first, again, n), "differs with shared memory");
	r.args.stage = 0;
	l = launch_of(&r);
	l.grid = 2 * r.dev->sms;
	l.block = r.dev->warp;
	once(&r, &l, again, "two blocks per multiprocessor");
	CHECK(!memcmp(first, again, n), "differs with two blocks per multiprocessor");
	free(first);
	free(again);
	rowsig_close(&r);
}

static void refused(void)
{
	const struct ep_dev_ops *ops = ep_dev_row(EP_DEV_CUDA);
	struct rowsig_rank r;
	struct ep_launch l;

	open_ranks(&r, 1);
	l = launch_of(&r);
	l.kernel = EP_KERNELS;
	CHECK_FAILS(ops->launch(r.dev, &l), EP_EINTERNAL, "kernel");
	l = launch_of(&r);
	l.grid = 0;
	CHECK_FAILS(ops->launch(r.dev, &l), EP_EINTERNAL, "0 blocks");
	l = launch_of(&r);
	l.args_size--;
	CHECK_FAILS(ops->launch(r.dev, &l), EP_EINTERNAL, "bytes of arguments");
	l = launch_of(&r);
	l.block = 2048;
	CHECK_FAILS(ops->launch(r.dev, &l), EP_EUSAGE, "2048 threads");
	l = launch_of(&r);
	l.shared = r.dev->shared_max + 4096;
	CHECK_FAILS(ops->launch(r.dev, &l), EP_EUSAGE, "shared memory");
	CHECK(ops->sync(r.dev, r.stream, ep_deadline_ms(1000)) == 0, "nothing was launched");
	rowsig_close(&r);
}

/* The kernel's own deadline ends it; the host's wait has ended long before. */
static void lonely(void)
{
	const struct ep_dev_ops *ops = ep_dev_row(EP_DEV_CUDA);
	const struct ep_kernel_report *report;
	struct rowsig_rank r[2];
	struct ep_launch l;
	uint64_t start;

	world.timeout_ms = 600;
	open_ranks(r, 2);
	l = launch_of(r);
	REQUIRE(ops->launch(r->dev, &l) == 0, "launch");
	start = ep_now_ns();
	CHECK_FAILS(ops->sync(r->dev, r->stream, ep_deadline_ms(50)), EP_ETIMEOUT, "in time");
	CHECK(ep_now_ns() - start < 300000000, "waited %llu us", (unsigned long long)(ep_now_ns() - start) / 1000);
	REQUIRE(ops->sync(r->dev, r->stream, ep_deadline_ms(20000)) == 0, "the kernel ends by itself");
	CHECK(ep_now_ns() - start < 3000000000ull, "it took %llu us", (unsigned long long)(ep_now_ns() - start) / 1000);
	report = rowsig_report(r);
	CHECK(report->code == EP_KERR_TIMEOUT && report->rank == 1 && report->phase == EP_KPHASE_RECV,
	      "code %u, rank %u, phase %u", report->code, report->rank, report->phase);
	rowsig_close(&r[1]);
	rowsig_close(&r[0]);
}

/* The host's abort word ends it at once. */
static void aborted(void)
{
	const struct ep_dev_ops *ops = ep_dev_row(EP_DEV_CUDA);
	struct rowsig_rank r[2];
	struct ep_launch l;

	world.timeout_ms = 20000;
	open_ranks(r, 2);
	l = launch_of(r);
	REQUIRE(ops->launch(r->dev, &l) == 0, "launch");
	CHECK_FAILS(ops->sync(r->dev, r->stream, ep_deadline_ms(20)), EP_ETIMEOUT, "in time");
	__atomic_store_n(rowsig_abort(r), 1, __ATOMIC_RELEASE);
	REQUIRE(ops->sync(r->dev, r->stream, ep_deadline_ms(5000)) == 0, "the kernel does not see the abort");
	CHECK(rowsig_report(r)->code == EP_KERR_ABORTED, "code %u", rowsig_report(r)->code);
	rowsig_close(&r[1]);
	rowsig_close(&r[0]);
}

int main(void)
{
	struct ep_dev *other = gpu_open(0);

	ways();
	refused();
	lonely();
	aborted();
	other->ops->close(other);
	/* Code is shared by context: the last close unloaded it, the next open loads it again. */
	world.timeout_ms = 10000;
	ways();
	return gpu_end("gpu_launch");
}
