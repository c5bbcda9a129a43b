/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/algo.h"

void ep_algo_no_state(struct ncclEpGroup *group)
{
	(void)group;
}

int ep_algo_no_mask(struct ncclEpGroup *group, const struct ep_mask *mask, void *stream)
{
	(void)group;
	(void)mask;
	(void)stream;
	return EP_BAD_USE("group: this algorithm has no masks: use NCCL_EP_ALGO_LOW_LATENCY");
}

int ep_algo_no_stage(struct ncclEpHandle *handle, void *stream)
{
	(void)handle;
	(void)stream;
	return EP_FAIL(EP_HANDLE, EP_EINTERNAL, "ncclEpComplete: handle: this algorithm stages nothing");
}

int ep_algo_no_sources(struct ncclEpHandle *handle, const struct ep_sources *out, void *stream)
{
	(void)handle;
	(void)out;
	(void)stream;
	return EP_FAIL(EP_HANDLE, EP_EINTERNAL, "anyEpHandleSources: handle: this algorithm keeps no sources");
}
