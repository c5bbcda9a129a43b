/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/launch.h"

#include <time.h>

#include "plugin/group/algo.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"
#include "util/trace.h"

/* Warps per block, and the largest stage worth its shared memory. Dispatch moves whole rows (7168 x bf16 is 14336
 * bytes); combine sums with all its threads, so it wants more warps and sends rows back in halves. */
static const struct {
	unsigned warps;
	uint32_t stage;
	enum ep_sms sms;
} shapes[EP_KERNELS] = {
	[EP_K_rowsig] = { 8, 16384, EP_SMS_ANY },
	[EP_K_ll_dispatch] = { EP_LL_DISPATCH_WARPS, 24576, EP_SMS_DISPATCH },
	[EP_K_ll_combine] = { 16, 8192, EP_SMS_COMBINE },
	[EP_K_ll_dispatch_any] = { EP_LL_DISPATCH_WARPS, 24576, EP_SMS_DISPATCH },
	[EP_K_ll_combine_any] = { 16, 8192, EP_SMS_COMBINE },
	[EP_K_ll_dispatch_far_few] = { EP_LL_DISPATCH_WARPS, 24576, EP_SMS_DISPATCH },
	[EP_K_ll_dispatch_far] = { EP_LL_DISPATCH_WARPS, 24576, EP_SMS_DISPATCH },
	[EP_K_ll_dispatch_far_any] = { EP_LL_DISPATCH_WARPS, 24576, EP_SMS_DISPATCH },
	[EP_K_ll_combine_far_few] = { 16, 8192, EP_SMS_COMBINE },
	[EP_K_ll_combine_far] = { 16, 8192, EP_SMS_COMBINE },
	[EP_K_ll_combine_far_any] = { 16, 8192, EP_SMS_COMBINE },
	[EP_K_ll_mask] = { 8, 0, EP_SMS_ANY },
	[EP_K_ll_sources] = { 8, 0, EP_SMS_ANY },
	[EP_K_ht_update] = { 16, 0, EP_SMS_UPDATE },
	[EP_K_ht_barrier] = { 4, 0, EP_SMS_ANY },
	[EP_K_ht_far_barrier] = { 4, 0, EP_SMS_ANY },
	[EP_K_ht_dispatch] = { 16, 24576, EP_SMS_DISPATCH },
	[EP_K_ht_combine] = { 16, 4096, EP_SMS_COMBINE },
	[EP_K_ht_far_update] = { 16, 0, EP_SMS_UPDATE },
	[EP_K_ht_far_dispatch] = { 16, 24576, EP_SMS_DISPATCH },
	[EP_K_ht_far_combine] = { 16, 4096, EP_SMS_COMBINE },
};

/* SMs that may be asked for. The CPU device takes the numbers of a program for GPUs, whatever it can run at once. */
static unsigned sms_max(const struct ep_dev *dev)
{
	return dev->ops->kind == EP_DEV_HOST ? 65536 : dev->sms;
}

/* 0: not set, or out of range. */
static unsigned sms_env(const struct ncclEpGroup *group, enum ep_param_id id)
{
	unsigned n = (unsigned)ep_param_int(id);

	if (n && n <= sms_max(group->dev))
		return n;
	if (ep_param_source(id))
		EP_WARN(EP_ENV, "rank %d: %s=%s is ignored: SMs must be 1 to %u", group->rank, ep_param_source(id),
			ep_param_str(id), sms_max(group->dev));
	return 0;
}

int ep_launch_budget(struct ncclEpGroup *group)
{
	const struct {
		enum ep_param_id own;
		const char *name;
		uint32_t field;
	} rows[EP_SMS_KINDS] = {
		[EP_SMS_ANY] = { EP_P_COMM_SMS, NULL, 0 },
		[EP_SMS_UPDATE] = { EP_P_PREPROCESS_NUM_SMS, NULL, 0 },
		[EP_SMS_DISPATCH] = { EP_P_DISPATCH_SMS, "dispatch_num_sms", group->cfg.dispatch_num_sms },
		[EP_SMS_COMBINE] = { EP_P_COMBINE_SMS, "combine_num_sms", group->cfg.combine_num_sms },
	};
	uint32_t all = sms_env(group, EP_P_COMM_SMS);

	for (int i = 0; i < EP_SMS_KINDS; i++) {
		uint32_t own = i == EP_SMS_ANY ? all : sms_env(group, rows[i].own);

		if (rows[i].field > sms_max(group->dev))
			return EP_FAIL(EP_GROUP, EP_EUSAGE,
				       "ncclEpCreateGroup: config->%s is %u, but the device of rank %d has %u SMs",
				       rows[i].name, rows[i].field, group->rank, group->dev->sms);
		group->sms_env[i] = own || all;
		group->sms[i] = own ? own : all ? all : rows[i].field ? rows[i].field : group->cfg.max_num_sms;
	}
	return 0;
}

uint32_t ep_launch_stage(enum ep_kernel kernel, size_t row_bytes, bool whole)
{
	size_t stage = (row_bytes + EP_STAGE_HEAD + 127) / 128 * 128;

	return whole || stage < shapes[kernel].stage ? (uint32_t)stage : shapes[kernel].stage;
}

static unsigned blocks(const struct ncclEpGroup *group, const struct ep_launch_need *need)
{
	enum ep_sms kind = shapes[need->kernel].sms;
	unsigned limit = group->sms[kind], n = group->resident;

	if (need->sms && !group->sms_env[kind])
		limit = need->sms;
	if (!limit)
		limit = group->algo->sms;
	if (limit && limit < n)
		n = limit;
	return n ? n : 1;
}

/* The CPU device runs one warp: more would only wait for each other. Under the emulator two are enough to exercise what
 * happens between warps. */
static unsigned warps_max(const struct ep_dev *dev)
{
	if (dev->ops->kind == EP_DEV_HOST)
		return dev->warp == 1 ? 1 : 2;
	return EP_THREADS_MAX / dev->warp;
}

int ep_launch_plan(const struct ncclEpGroup *group, const struct ep_launch_need *need, struct ep_launch_plan *out)
{
	size_t room = group->dev->shared_max;
	unsigned warps = shapes[need->kernel].warps, grid = blocks(group, need);

	grid = need->blocks < grid ? (unsigned)need->blocks : grid;
	/* Idle warps cost: the more shared memory a block asks for, the later it starts. */
	if (need->rows && need->rows < (size_t)warps * grid)
		warps = (unsigned)((need->rows + grid - 1) / grid);
	if (warps > warps_max(group->dev))
		warps = warps_max(group->dev);
	while (warps && warps * need->warp_bytes + need->block_bytes > room)
		warps--;
	if (!warps)
		return EP_FAIL(EP_DEV, EP_EUSAGE,
			       "a row needs %zu bytes of shared memory, and a block of this device has %zu: num_topk "
			       "or hidden is too large",
			       need->warp_bytes + need->block_bytes, room);
	out->grid = grid;
	out->block = warps * group->dev->warp;
	return 0;
}

const char *ep_launch_name(int kernel)
{
	static const char *const names[EP_KERNELS] = {
		[EP_K_ll_dispatch] = "dispatch",
		[EP_K_ll_combine] = "combine",
		[EP_K_ll_dispatch_any] = "dispatch",
		[EP_K_ll_combine_any] = "combine",
		[EP_K_ll_dispatch_far_few] = "dispatch",
		[EP_K_ll_dispatch_far] = "dispatch",
		[EP_K_ll_dispatch_far_any] = "dispatch",
		[EP_K_ll_combine_far_few] = "combine",
		[EP_K_ll_combine_far] = "combine",
		[EP_K_ll_combine_far_any] = "combine",
		[EP_K_ll_mask] = "mask",
		[EP_K_ll_sources] = "sources",
		[EP_K_ht_update] = "update",
		[EP_K_ht_barrier] = "barrier",
		[EP_K_ht_far_barrier] = "barrier",
		[EP_K_ht_dispatch] = "dispatch",
		[EP_K_ht_combine] = "combine",
		[EP_K_ht_far_update] = "update",
		[EP_K_ht_far_dispatch] = "dispatch",
		[EP_K_ht_far_combine] = "combine",
	};

	return kernel >= 0 && kernel < EP_KERNELS && names[kernel] ? names[kernel] : "none";
}

int ep_launch_run(struct ncclEpGroup *group, struct ep_launch *launch, uint32_t *counted)
{
	uint64_t since = ep_now_ns();
	int rc;

	/* By number: launches of a group run one after the other, as their counters in the state demand. 0 is none. */
	*counted = atomic_load_explicit(&group->launched, memory_order_relaxed) + 1;
	*counted += !*counted;
	launch->counted = counted;
	atomic_store_explicit(&group->opened, *counted, memory_order_relaxed);
	atomic_store_explicit(&group->last_kernel, (int)launch->kernel, memory_order_relaxed);
	atomic_store_explicit(&group->last_at, since, memory_order_relaxed);
	launch->trace = group->trace;
	rc = group->dev->ops->launch(group->dev, launch);
	if (!rc && *counted)
		atomic_store_explicit(&group->launched, *counted, memory_order_relaxed);
	atomic_store_explicit(&group->opened, atomic_load_explicit(&group->launched, memory_order_relaxed),
			      memory_order_relaxed);
	ep_trace_span(group->trace, EP_TRACE_CALLS, ep_launch_name((int)launch->kernel), since, ep_now_ns(), -1, 0);
	if (rc)
		return rc;
	ep_link_wake(group->link);
	return ep_group_check(group);
}

/* Polls: kernels end in 20 us or wait for another rank, and every look at a GPU's memory is a copy. */
int ep_launch_drain(struct ncclEpGroup *group, uint64_t deadline)
{
	uint32_t launched = atomic_load_explicit(&group->launched, memory_order_relaxed), ended = 0;
	struct timespec nap = { .tv_nsec = 20000 };
	int rc = 0;

	if (!launched)
		return 0;
	while (!(rc = group->dev->ops->peek(group->dev, group->ended, deadline, &ended)) && ended != launched) {
		if (ep_now_ns() >= deadline) {
			rc = -EP_ETIMEOUT;
			break;
		}
		nanosleep(&nap, NULL);
		if (nap.tv_nsec < 1000000)
			nap.tv_nsec *= 2;
	}
	/* A GPU counts a launch while its last stores are under way: they take a microsecond. */
	if (!rc && group->dev->ops->kind != EP_DEV_HOST)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	if (rc != -EP_ETIMEOUT)
		return rc;
	return EP_FAIL(EP_GROUP, EP_ETIMEOUT,
		       "ncclEpGroupDestroy: rank %d: %u operations have not ended: their stream is blocked, or a rank "
		       "they wait for has not made the same call. The group's memory stays mapped",
		       group->rank, launched - ended);
}
