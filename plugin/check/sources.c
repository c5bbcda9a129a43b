/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/check/check.h"
#include "plugin/check/tensor.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "util/error.h"

#define FN "anyEpHandleSources"

enum { TOKENS, RANGES, TENSORS };

static const char *const names[TENSORS] = { [TOKENS] = "tokens", [RANGES] = "ranges" };
static const struct ep_slot slots[TENSORS] = {
	{ .tensor = TOKENS, .need = EP_REQUIRED, .ndim = 2, .dtypes = EP_DT_I32, .dim = { EP_D_EL, EP_D_RTMAX } },
	{ .tensor = RANGES, .need = EP_REQUIRED, .ndim = 2, .dtypes = EP_DT_I64, .dim = { EP_D_EL, EP_D_R } },
};

int ep_check_sources(const struct ncclEpHandle *handle, const ncclEpTensor_t *tokens, const ncclEpTensor_t *ranges,
		     struct ep_sources *out)
{
	const ncclEpTensor_t *const tensors[TENSORS] = { [TOKENS] = tokens, [RANGES] = ranges };
	struct ep_env env;
	int rc;

	if (ep_group_ht(handle->group) || handle->args.layout != NCCL_EP_LAYOUT_EXPERT_MAJOR)
		return EP_BAD_USE(FN ": handle: is %s; only LL expert-major has rows in an order of their own",
				  ep_handle_mode(handle));
	ep_env_init(&env, FN, names, handle);
	if ((rc = ep_slots_check(&env, slots, TENSORS, tensors)))
		return rc;
	if (!handle->dispatched || handle->staged)
		return EP_BAD_USE(FN
				  ": handle: no dispatch has been received: call ncclEpDispatch, and after send_only "
				  "ncclEpComplete, first");
	*out = (struct ep_sources){ tokens, ranges };
	return 0;
}
