/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/check/check.h"
#include "plugin/check/tensor.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "util/error.h"

#define FN "anyEpHandleBias"

static const char *const names[EP_BIASES_MAX] = { "bias[0]", "bias[1]" };
/* clang-format off */
#define ROW(t) \
	{ .tensor = t, .need = EP_REQUIRED, .ndim = 2, .alike = EP_ALIKE_TOKENS, .dtypes = EP_DT_TOKEN, \
	  .dim = { EP_D_T, EP_D_H } }
/* clang-format on */
static const struct ep_slot slots[EP_BIASES_MAX] = { ROW(0), ROW(1) };

int ep_check_bias(const struct ncclEpHandle *handle, const ncclEpTensor_t *const *bias, int count)
{
	struct ep_env env;
	int rc;

	if (!ep_group_ht(handle->group))
		return EP_BAD_USE(FN ": handle: is %s; only HT combines add a bias", ep_handle_mode(handle));
	if (count < 0 || count > EP_BIASES_MAX)
		return EP_BAD_ARG(FN ": count: is %d, must be 0 to %d", count, EP_BIASES_MAX);
	if (!count)
		return 0;
	if ((rc = ep_check_pointer(FN, "bias", bias)))
		return rc;
	ep_env_init(&env, FN, names, handle);
	env.sym[EP_D_T].known = false; /* they may be for the next Update: combine compares with its own T */
	return ep_slots_check(&env, slots, (size_t)count, bias);
}
