/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/check/check.h"
#include "plugin/check/tensor.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "util/error.h"

#define FN "anyEpHandleBias"

static const char *const names[EP_BIASES_MAX] = { "bias[0]", "bias[1]" };
static const struct ep_slot slots[EP_BIASES_MAX] = { EP_BIAS_SLOT(0, EP_REQUIRED), EP_BIAS_SLOT(1, EP_REQUIRED) };

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
