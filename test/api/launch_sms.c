/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many blocks an operation gets: environment, the handle's own number, fields of the configuration, max_num_sms,
 * the algorithm's default, in this order, and never more than the device can run. A device of 132 SMs is made up: the
 * CPU device has none to count.
 */
#include <unistd.h>

#include "bad_args.h"
#include "plugin/group/launch.h"
#include "util/param.h"

enum { SMS = 132 };

static const char *const variables[] = { "NCCL_EP_COMM_SMS", "NCCL_EP_MAX_SMS", "NCCL_EP_DISPATCH_SMS",
					 "NCCL_EP_COMBINE_SMS", "NCCL_EP_PREPROCESS_NUM_SMS" };

static void quiet(void)
{
	bad_args_quiet();
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
		unsetenv(variables[i]);
}

TestSuite(launch_sms, .timeout = 30, .init = quiet);

struct ask {
	unsigned all, dispatch, combine; /* max_num_sms and the fields of version 3 */
};

static void gpu_init(struct fake *f, ncclEpAlgorithm_t algorithm, struct ask ask)
{
	fake_init(f, algorithm);
	f->ops.kind = EP_DEV_CUDA;
	f->ops.name = "made up";
	f->dev.sms = SMS;
	f->dev.warp = 32;
	f->dev.shared_max = 1 << 17;
	f->group.resident = SMS; /* rank 1 is on another device */
	f->group.cfg.max_num_sms = ask.all;
	f->group.cfg.dispatch_num_sms = ask.dispatch;
	f->group.cfg.combine_num_sms = ask.combine;
}

static unsigned grid_for(const struct fake *f, enum ep_kernel kernel, unsigned sms)
{
	struct ep_launch_need need = { .kernel = kernel, .blocks = SIZE_MAX, .sms = sms };
	struct ep_launch_plan plan = { 0 };

	cr_assert_eq(ep_launch_plan(&f->group, &need, &plan), 0, "%s", anyEpGetLastError());
	return plan.grid;
}

static unsigned grid_of(const struct fake *f, enum ep_kernel kernel)
{
	return grid_for(f, kernel, 0);
}

struct row {
	struct ask ask;
	const char *set[4]; /* NAME=value */
	unsigned update, dispatch, combine;
};

static void rows_check(ncclEpAlgorithm_t algorithm, const struct row *rows, size_t count)
{
	bool ht = algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT;

	for (size_t i = 0; i < count; i++) {
		unsigned update, dispatch, combine;
		struct fake f;

		quiet();
		for (int s = 0; s < 4 && rows[i].set[s]; s++)
			putenv(strdup(rows[i].set[s]));
		gpu_init(&f, algorithm, rows[i].ask);
		cr_assert_eq(ep_launch_budget(&f.group), 0, "row %zu: %s", i, anyEpGetLastError());
		update = grid_of(&f, ht ? EP_K_ht_update : EP_K_ll_mask);
		dispatch = grid_of(&f, ht ? EP_K_ht_dispatch : EP_K_ll_dispatch);
		combine = grid_of(&f, ht ? EP_K_ht_combine : EP_K_ll_combine);
		cr_expect(update == rows[i].update && dispatch == rows[i].dispatch && combine == rows[i].combine,
			  "row %zu (%s): %u %u %u blocks, must be %u %u %u", i, rows[i].set[0] ? rows[i].set[0] : "-",
			  update, dispatch, combine, rows[i].update, rows[i].dispatch, rows[i].combine);
	}
}

#define ROWS(algorithm, rows) rows_check(algorithm, rows, sizeof(rows) / sizeof((rows)[0]))

Test(launch_sms, ht)
{
	static const struct row rows[] = {
		{ { 0, 0, 0 }, { NULL }, 24, 24, 24 },
		{ { 16, 0, 0 }, { NULL }, 16, 16, 16 },
		{ { 1000, 0, 0 }, { NULL }, SMS, SMS, SMS }, /* as before version 3: bounded, no error */
		{ { 0, 8, 0 }, { NULL }, 24, 8, 24 },
		{ { 16, 8, 0 }, { NULL }, 16, 8, 16 },
		{ { 16, 0, 40 }, { NULL }, 16, 16, 40 },
		{ { 16, SMS, 1 }, { NULL }, 16, SMS, 1 },
		{ { 16, 8, 40 }, { "NCCL_EP_COMM_SMS=12" }, 12, 12, 12 },
		{ { 16, 8, 40 }, { "NCCL_EP_MAX_SMS=12" }, 12, 12, 12 },
		{ { 16, 8, 40 }, { "NCCL_EP_DISPATCH_SMS=5" }, 16, 5, 40 },
		{ { 16, 8, 40 }, { "NCCL_EP_COMBINE_SMS=6", "NCCL_EP_COMM_SMS=12" }, 12, 12, 6 },
		{ { 16, 8, 40 }, { "NCCL_EP_PREPROCESS_NUM_SMS=100" }, 100, 8, 40 },
		{ { 0, 0, 0 }, { "NCCL_EP_PREPROCESS_NUM_SMS=100", "NCCL_EP_COMM_SMS=12" }, 100, 12, 12 },
		/* ignored */
		{ { 16, 8, 40 }, { "NCCL_EP_DISPATCH_SMS=133", "NCCL_EP_COMBINE_SMS=0" }, 16, 8, 40 },
		{ { 16, 8, 40 }, { "NCCL_EP_COMM_SMS=-1" }, 16, 8, 40 },
		{ { 16, 8, 0 }, { "NCCL_EP_COMM_SMS=133", "NCCL_EP_DISPATCH_SMS=many" }, 16, 8, 16 },
	};

	ROWS(NCCL_EP_ALGO_HIGH_THROUGHPUT, rows);
}

Test(launch_sms, ll)
{
	static const struct row rows[] = {
		{ { 0, 0, 0 }, { NULL }, SMS, SMS, SMS },
		{ { 16, 8, 0 }, { NULL }, 16, 8, 16 },
		{ { 0, 0, 40 }, { "NCCL_EP_DISPATCH_SMS=7" }, SMS, 7, 40 },
		{ { 0, 0, 40 }, { "NCCL_EP_COMM_SMS=7" }, 7, 7, 7 },
	};

	ROWS(NCCL_EP_ALGO_LOW_LATENCY, rows);
}

/* Ranks that share a device must all fit: a request cannot break that. */
Test(launch_sms, shared)
{
	struct fake f;

	gpu_init(&f, NCCL_EP_ALGO_HIGH_THROUGHPUT, (struct ask){ 0, 100, 0 });
	f.group.resident = SMS / 2;
	cr_assert_eq(ep_launch_budget(&f.group), 0);
	cr_expect_eq(grid_of(&f, EP_K_ht_dispatch), SMS / 2);
	cr_expect_eq(grid_of(&f, EP_K_ht_combine), 24);
}

/* What anyEpHandleSms was given. */
Test(launch_sms, handle)
{
	struct fake f;

	gpu_init(&f, NCCL_EP_ALGO_HIGH_THROUGHPUT, (struct ask){ 16, 8, 0 });
	cr_assert_eq(ep_launch_budget(&f.group), 0);
	cr_expect_eq(grid_for(&f, EP_K_ht_dispatch, 20), 20);
	cr_expect_eq(grid_for(&f, EP_K_ht_dispatch, 0), 8);
	cr_expect_eq(grid_for(&f, EP_K_ht_combine, 2), 2);
	cr_expect_eq(grid_for(&f, EP_K_ht_combine, 1000), SMS);
	setenv("NCCL_EP_DISPATCH_SMS", "5", 1);
	gpu_init(&f, NCCL_EP_ALGO_HIGH_THROUGHPUT, (struct ask){ 16, 8, 0 });
	cr_assert_eq(ep_launch_budget(&f.group), 0);
	cr_expect_eq(grid_for(&f, EP_K_ht_dispatch, 20), 5);
	cr_expect_eq(grid_for(&f, EP_K_ht_combine, 20), 20);
	setenv("NCCL_EP_COMM_SMS", "12", 1);
	gpu_init(&f, NCCL_EP_ALGO_LOW_LATENCY, (struct ask){ 0, 0, 0 });
	cr_assert_eq(ep_launch_budget(&f.group), 0);
	cr_expect_eq(grid_for(&f, EP_K_ll_combine, 20), 12);
}

/* One line for each that is ignored, none for others. */
Test(launch_sms, warned)
{
	char path[] = "/tmp/launch_sms.XXXXXX", text[4096] = "";
	int fd = mkstemp(path);
	struct fake f;
	ssize_t n;

	cr_assert(fd >= 0);
	setenv("NCCL_EP_DEBUG", "WARN", 1);
	setenv("NCCL_EP_DEBUG_FILE", path, 1);
	setenv("NCCL_EP_DISPATCH_SMS", "133", 1);
	setenv("NCCL_EP_COMBINE_SMS", "0", 1);
	setenv("NCCL_EP_COMM_SMS", "12", 1);
	gpu_init(&f, NCCL_EP_ALGO_HIGH_THROUGHPUT, (struct ask){ 0, 0, 0 });
	cr_expect_eq(ep_launch_budget(&f.group), 0);
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	unlink(path);
	cr_expect(n > 0 && strstr(text, "NCCL_EP_DISPATCH_SMS=133 is ignored: SMs must be 1 to 132") &&
			  strstr(text, "NCCL_EP_COMBINE_SMS=0 is ignored") && !strstr(text, "COMM_SMS"),
		  "%s", text);
}

Test(launch_sms, too_many)
{
	struct fake f;

	gpu_init(&f, NCCL_EP_ALGO_HIGH_THROUGHPUT, (struct ask){ 0, SMS + 1, 0 });
	cr_expect_eq(ep_launch_budget(&f.group), -EP_EUSAGE);
	cr_expect(strstr(anyEpGetLastError(), "dispatch_num_sms is 133"), "%s", anyEpGetLastError());
	gpu_init(&f, NCCL_EP_ALGO_LOW_LATENCY, (struct ask){ 0, 0, SMS + 1 });
	cr_expect_eq(ep_launch_budget(&f.group), -EP_EUSAGE);
	cr_expect(strstr(anyEpGetLastError(), "combine_num_sms is 133"), "%s", anyEpGetLastError());
	/* A program for GPUs runs on the CPU device. */
	f.ops.kind = EP_DEV_HOST;
	cr_expect_eq(ep_launch_budget(&f.group), 0);
}
