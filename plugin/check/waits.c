/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_ep_ext.h"
#include "plugin/check/check.h"
#include "plugin/check/tensor.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "util/error.h"

#define FN "anyEpHandleWaitStats"

enum { DISPATCH, COMBINE, TENSORS };

static const char *const names[TENSORS] = { [DISPATCH] = "stats->dispatch", [COMBINE] = "stats->combine" };
static const struct ep_slot slots[TENSORS] = {
	{ .tensor = DISPATCH, .need = EP_OPTIONAL, .ndim = 1, .dtypes = EP_DT_I64, .dim = { EP_D_R } },
	{ .tensor = COMBINE, .need = EP_OPTIONAL, .ndim = 1, .dtypes = EP_DT_I64, .dim = { EP_D_R } },
};

int ep_check_wait_stats(const struct ncclEpHandle *handle, const anyEpWaitStats_t *stats, anyEpWaitStats_t *out)
{
	anyEpWaitStats_t all = ANYEP_WAIT_STATS_INIT;
	const ncclEpTensor_t *tensors[TENSORS];
	struct ep_env env;
	int rc;

	if (ep_group_ht(handle->group))
		return EP_BAD_USE(FN ": handle: is %s; only LL operations count their waits", ep_handle_mode(handle));
	if (stats && stats->size < ANYEP_WAIT_STATS_V1_SIZE)
		return EP_BAD_ARG(FN ": stats: size is %zu, less than %u; start from ANYEP_WAIT_STATS_INIT",
				  stats->size, ANYEP_WAIT_STATS_V1_SIZE);
	if (stats)
		all = *stats;
	tensors[DISPATCH] = all.dispatch;
	tensors[COMBINE] = all.combine;
	ep_env_init(&env, FN, names, handle);
	if ((rc = ep_slots_check(&env, slots, TENSORS, tensors)))
		return rc;
	*out = all;
	return 0;
}
