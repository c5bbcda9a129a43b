/* SPDX-License-Identifier: Apache-2.0 */
/* The extensions of nccl_ep_ext.h. */
#include "nccl_ep_ext.h"

#include <stdio.h>
#include <string.h>

#include "kernels/host/stream.h"
#include "plugin/boot/gather.h"
#include "plugin/check/check.h"
#include "plugin/group/algo.h"
#include "plugin/group/dump.h"
#include "plugin/group/group.h"
#include "plugin/group/handle.h"
#include "plugin/group/tensor.h"
#include "plugin/ht/state.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

#define STREAM_TIMEOUT_MS 100000
#define GRACE_MS 500

/* Until 0.3: the name a function had before extensions were called anyEp*. Same code, both exported. */
#define FORMER_NAME(now) __attribute__((alias(now)))

static ncclResult_t result(int rc)
{
	return (ncclResult_t)ep_result(rc);
}

ncclResult_t anyEpGetVersion(int *version)
{
	int rc = ep_check_pointer("anyEpGetVersion", "version", version);

	if (!rc)
		*version = ANYEP_VERSION_CODE;
	return result(rc);
}

const char *anyEpGetLastError(void)
{
	return ep_last_error();
}
const char *ncclEpGetLastError(void) FORMER_NAME("anyEpGetLastError");

ncclResult_t anyEpGroupWindowBytes(ncclEpGroup_t group, size_t *bytes)
{
	size_t sum;
	int rc;

	if ((rc = ep_check_live("anyEpGroupWindowBytes", "group", EP_LIVE_GROUP, group)) ||
	    (rc = ep_check_pointer("anyEpGroupWindowBytes", "bytes", bytes)))
		return result(rc);
	sum = group->control.size;
	for (int i = 0; i < group->payload.count; i++)
		sum += group->payload.win[i]->size;
	*bytes = sum + ep_link_bytes(group->link);
	return ncclSuccess;
}
ncclResult_t ncclEpGroupWindowBytes(ncclEpGroup_t group, size_t *bytes) FORMER_NAME("anyEpGroupWindowBytes");

ncclResult_t anyEpGroupNetCounts(ncclEpGroup_t group, anyEpNetCounts_t *counts)
{
	static const char fn[] = "anyEpGroupNetCounts";
	struct ep_port_counts sum;
	anyEpNetCounts_t all;
	int rc;

	if ((rc = ep_check_live(fn, "group", EP_LIVE_GROUP, group)) || (rc = ep_check_pointer(fn, "counts", counts)))
		return result(rc);
	if (counts->size < ANYEP_NET_COUNTS_V1_SIZE)
		return result(EP_BAD_ARG("%s: counts: size is %zu, less than %u; start from ANYEP_NET_COUNTS_INIT", fn,
					 counts->size, ANYEP_NET_COUNTS_V1_SIZE));
	ep_link_counts(group->link, &sum);
	all = (anyEpNetCounts_t){ counts->size, .puts = sum.puts, .bytes = sum.bytes, .signals = sum.signals };
	all.commands = sum.commands;
	all.joined = sum.joined;
	memcpy(counts, &all, counts->size < sizeof(all) ? counts->size : sizeof(all));
	return ncclSuccess;
}

ncclResult_t anyEpGroupNetTimes(ncclEpGroup_t group, anyEpNetTimes_t *times)
{
	static const char fn[] = "anyEpGroupNetTimes";
	struct ep_port_times sum;
	anyEpNetTimes_t all;
	int rc;

	if ((rc = ep_check_live(fn, "group", EP_LIVE_GROUP, group)) || (rc = ep_check_pointer(fn, "times", times)))
		return result(rc);
	if (times->size < ANYEP_NET_TIMES_V1_SIZE)
		return result(EP_BAD_ARG("%s: times: size is %zu, less than %u; start from ANYEP_NET_TIMES_INIT", fn,
					 times->size, ANYEP_NET_TIMES_V1_SIZE));
	rc = ep_link_quiet(group->link, ep_now_ns() + group->timeout_ns);
	if (rc == -EP_ETIMEOUT)
		rc = EP_FAIL(EP_GROUP, EP_ETIMEOUT,
			     "%s: rank %d: the transport has not completed what earlier operations sent", fn,
			     group->rank);
	if (rc)
		return result(rc);
	ep_link_times(group->link, &sum);
	all = (anyEpNetTimes_t){ times->size,
				 .operations = sum.operations,
				 .popped = sum.popped,
				 .given = sum.given,
				 .completed = sum.completed,
				 .ended = sum.ended,
				 .arrivals = sum.arrivals,
				 .arrived = sum.arrived };
	if (group->link) {
		snprintf(all.net, sizeof(all.net), "%s", group->link->net->name);
		snprintf(all.device, sizeof(all.device), "%s", group->link->props.name);
		all.ordered = group->link->props.ordered != 0;
		all.direct = group->link->direct;
	}
	memcpy(times, &all, times->size < sizeof(all) ? times->size : sizeof(all));
	return ncclSuccess;
}

ncclResult_t anyEpGroupReachCounts(ncclEpGroup_t group, anyEpReachCounts_t *counts)
{
	static const char fn[] = "anyEpGroupReachCounts";
	struct ep_ht_counts ht = { 0 };
	anyEpReachCounts_t all;
	int rc;

	if ((rc = ep_check_live(fn, "group", EP_LIVE_GROUP, group)) || (rc = ep_check_pointer(fn, "counts", counts)))
		return result(rc);
	if (counts->size < ANYEP_REACH_COUNTS_V1_SIZE)
		return result(EP_BAD_ARG("%s: counts: size is %zu, less than %u; start from ANYEP_REACH_COUNTS_INIT",
					 fn, counts->size, ANYEP_REACH_COUNTS_V1_SIZE));
	if (ep_group_ht(group) && (rc = ep_ht_counts(group, &ht)))
		return result(rc);
	all = (anyEpReachCounts_t){ counts->size,
				    .direct = ht.direct,
				    .staged = ht.staged,
				    .mapped = ht.reach.mappings,
				    .peak = ht.reach.peak,
				    .unmapped = ht.reach.ended,
				    .refused = ht.reach.refused,
				    .evicted = ht.reach.evicted,
				    .crossedDispatch = ht.crossed[0],
				    .crossedCombine = ht.crossed[1] };
	memcpy(counts, &all, counts->size < sizeof(all) ? counts->size : sizeof(all));
	return ncclSuccess;
}

ncclResult_t anyEpGroupNodes(ncclEpGroup_t group, int *nodes, size_t nranks)
{
	static const char fn[] = "anyEpGroupNodes";
	int rc;

	if ((rc = ep_check_live(fn, "group", EP_LIVE_GROUP, group)) || (rc = ep_check_pointer(fn, "nodes", nodes)))
		return result(rc);
	if (nranks != (size_t)group->nranks)
		return result(EP_BAD_ARG("%s: nranks: is %zu, but the group has %d ranks", fn, nranks, group->nranks));
	for (int r = 0; r < group->nranks; r++)
		nodes[r] = ep_group_ht(group) ? (int)ep_ht_nodes_of(ep_ht_nodes(group), r) : group->topo.rank[r].node;
	return ncclSuccess;
}

ncclResult_t anyEpGroupDump(ncclEpGroup_t group, const char *why)
{
	static const char fn[] = "anyEpGroupDump";
	int rc;

	if ((rc = ep_check_live(fn, "group", EP_LIVE_GROUP, group)) || (rc = ep_check_pointer(fn, "why", why)))
		return result(rc);
	return result(ep_dump_write(group, why));
}

ncclResult_t anyEpGroupAllGather(ncclEpGroup_t group, const void *mine, void *all, size_t bytes)
{
	static const char fn[] = "anyEpGroupAllGather";
	size_t most;
	int rc;

	if ((rc = ep_check_live(fn, "group", EP_LIVE_GROUP, group)) || (rc = ep_check_pointer(fn, "mine", mine)) ||
	    (rc = ep_check_pointer(fn, "all", all)))
		return result(rc);
	most = ep_gather_max((uint32_t)group->nranks);
	if (!bytes || bytes > most)
		return result(EP_BAD_ARG("%s: bytes: is %zu, must be 1 to %zu with %d ranks", fn, bytes, most,
					 group->nranks));
	return result(ep_boot_allgather(group->boot, mine, bytes, all));
}

ncclResult_t anyEpGroupBarrier(ncclEpGroup_t group, cudaStream_t stream)
{
	int rc = ep_check_live("anyEpGroupBarrier", "group", EP_LIVE_GROUP, group);

	if (rc || (rc = ep_group_check(group)))
		return result(rc);
	return result(group->algo->barrier(group, stream));
}

ncclResult_t anyEpHandleSources(ncclEpHandle_t handle, const ncclEpTensor_t *tokens, const ncclEpTensor_t *ranges,
				cudaStream_t stream)
{
	struct ep_sources out;
	int rc = ep_check_live("anyEpHandleSources", "handle", EP_LIVE_HANDLE, handle);

	if (rc || (rc = ep_group_check(handle->group)) || (rc = ep_check_sources(handle, tokens, ranges, &out)))
		return result(rc);
	return result(handle->group->algo->sources(handle, &out, stream));
}

ncclResult_t anyEpHandleWaitStats(ncclEpHandle_t handle, const anyEpWaitStats_t *stats)
{
	static const char fn[] = "anyEpHandleWaitStats";
	void *dispatch = NULL, *combine = NULL;
	anyEpWaitStats_t all;
	int rc = ep_check_live(fn, "handle", EP_LIVE_HANDLE, handle);

	if (rc || (rc = ep_check_wait_stats(handle, stats, &all)) ||
	    (all.dispatch && (rc = ep_tensor_counter(fn, handle->group, "dispatch", all.dispatch, &dispatch))) ||
	    (all.combine && (rc = ep_tensor_counter(fn, handle->group, "combine", all.combine, &combine))))
		return result(rc);
	handle->waited[0] = dispatch;
	handle->waited[1] = combine;
	return ncclSuccess;
}

ncclResult_t anyEpHandleSms(ncclEpHandle_t handle, unsigned int dispatch, unsigned int combine)
{
	int rc = ep_check_live("anyEpHandleSms", "handle", EP_LIVE_HANDLE, handle);

	if (rc)
		return result(rc);
	handle->sms[0] = dispatch;
	handle->sms[1] = combine;
	return ncclSuccess;
}

ncclResult_t anyEpHandleScales(ncclEpHandle_t handle, anyEpScales_t scales)
{
	static const char fn[] = "anyEpHandleScales";
	int rc = ep_check_live(fn, "handle", EP_LIVE_HANDLE, handle);

	if (rc || (rc = ep_check_enum(fn, "scales", (unsigned)scales, ANYEP_SCALES_EXPONENTS + 1)))
		return result(rc);
	if (ep_group_ht(handle->group))
		return result(
			EP_BAD_USE("%s: handle: is %s; only LL dispatches lay out scales", fn, ep_handle_mode(handle)));
	handle->scales = scales;
	return ncclSuccess;
}

ncclResult_t anyEpHandleBias(ncclEpHandle_t handle, const ncclEpTensor_t *const *bias, int count)
{
	int rc = ep_check_live("anyEpHandleBias", "handle", EP_LIVE_HANDLE, handle);

	if (rc || (rc = ep_check_bias(handle, bias, count)))
		return result(rc);
	for (int i = 0; i < count; i++)
		ep_tensor_keep(&handle->bias[i], handle->bias_sizes[i], bias[i]);
	handle->biases = count;
	return ncclSuccess;
}

/* Until 0.3; its struct has no size, so it is no alias. */
ncclResult_t ncclEpGroupNetCounts(ncclEpGroup_t group, ncclEpNetCounts_t *counts)
{
	anyEpNetCounts_t now = ANYEP_NET_COUNTS_INIT;
	ncclResult_t rc = anyEpGroupNetCounts(group, counts ? &now : NULL);

	if (rc == ncclSuccess)
		*counts = (ncclEpNetCounts_t){ .puts = now.puts, .bytes = now.bytes, .signals = now.signals };
	return rc;
}

ncclResult_t anyEpHostStreamCreate(cudaStream_t *stream)
{
	void *made;
	int rc = ep_check_pointer("anyEpHostStreamCreate", "stream", stream);

	if (rc || (rc = ep_host_stream_create(&made)))
		return result(rc);
	*stream = made;
	return ncclSuccess;
}
ncclResult_t ncclEpHostStreamCreate(cudaStream_t *stream) FORMER_NAME("anyEpHostStreamCreate");

static int stream_check(const char *fn, void *stream)
{
	if (ep_live_has(EP_LIVE_STREAM, stream))
		return 0;
	return EP_BAD_ARG("%s: stream: was not made by anyEpHostStreamCreate, or has been destroyed", fn);
}

ncclResult_t anyEpHostStreamSynchronize(cudaStream_t stream)
{
	static const char fn[] = "anyEpHostStreamSynchronize";
	int64_t ms = ep_param_int(EP_P_TIMEOUT_MS);
	int rc = stream_check(fn, stream);

	if (rc)
		return result(rc);
	/* Twice: an operation ends by its own deadline, with masks by up to twice that, and says who did not answer. */
	rc = ep_host_stream_head(stream)->sync(stream,
					       ep_deadline_ms(2 * (ms > 0 ? ms : STREAM_TIMEOUT_MS) + GRACE_MS));
	if (rc == -EDEADLK)
		rc = EP_BAD_USE("%s: stream: called by an operation of the same stream", fn);
	else if (rc == -EP_ETIMEOUT)
		rc = EP_FAIL(EP_DEV, EP_ETIMEOUT, "%s: stream: still busy after twice NCCL_EP_TIMEOUT_MS", fn);
	return result(rc);
}
ncclResult_t ncclEpHostStreamSynchronize(cudaStream_t stream) FORMER_NAME("anyEpHostStreamSynchronize");

ncclResult_t anyEpHostStreamDestroy(cudaStream_t stream)
{
	/* Of two callers one destroys it. */
	if (stream && !ep_live_hold(EP_LIVE_STREAM, stream))
		return result(stream_check("anyEpHostStreamDestroy", stream));
	ep_host_stream_destroy(stream);
	return ncclSuccess;
}
ncclResult_t ncclEpHostStreamDestroy(cudaStream_t stream) FORMER_NAME("anyEpHostStreamDestroy");
