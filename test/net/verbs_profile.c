/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a NIC's profile decides: order, limits, traffic class and service level, as the model of test/model/verbs sees
 * them. 77: another library is loaded.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "test/model/verbs/nic.h"
#include "test/rig/net_rig.h"

static const struct nic_stats *stats;

static const struct {
	const char *spec, *tc;
	int ordered;
	uint32_t ll_puts, ht_puts;
	uint64_t bytes;
	uint32_t traffic_class, service_level;
} wanted[] = {
	{ "verbs:profile=bnxt_re", NULL, 1, 1024, 32, 1536 << 10, 104, 3 },
	{ "verbs:profile=bnxt_re", "0", 1, 1024, 32, 1536 << 10, 0, 3 },
	{ "verbs:profile=ionic", NULL, 0, 1024, 32, 2048 << 10, 0, 0 },
	{ "verbs:profile=mlx5_core", NULL, 0, 0, 0, 0, 0, 0 },
	{ "verbs:profile=mlx5_core", "106", 0, 0, 0, 0, 106, 0 },
	{ "verbs:profile=mlx5_core,ordered=1", NULL, 1, 0, 0, 0, 0, 0 },
	{ "verbs:profile=mlx5_core,ordered=1,qps=2", NULL, 0, 0, 0, 0, 0, 0 },
	{ "verbs:profile=rdma_rxe", NULL, 1, 0, 0, 0, 0, 0 },
	{ "verbs:profile=rdma_rxe,ordered=0", NULL, 0, 0, 0, 0, 0, 0 },
	{ "verbs", NULL, 0, 0, 0, 0, 0, 0 },
};
#define WANTED ((int)(sizeof(wanted) / sizeof(wanted[0])))
static int now;

static void profile_check(struct net_rank *me)
{
	EXPECT(me, net_put_to(me, 1 - me->rank) == 0);
	net_meet(me);
	EXPECT(me, me->props.ordered == wanted[now].ordered);
	EXPECT(me, me->props.lowLatency.maxPuts == wanted[now].ll_puts);
	EXPECT(me, me->props.lowLatency.ringPuts == (wanted[now].ll_puts ? 32 : 0));
	EXPECT(me, me->props.throughput.maxPuts == wanted[now].ht_puts && !me->props.throughput.ringPuts);
	EXPECT(me, me->props.lowLatency.maxBytes == wanted[now].bytes);
	EXPECT(me, me->props.throughput.maxBytes == wanted[now].bytes);
	EXPECT(me, stats->traffic_class == wanted[now].traffic_class);
	EXPECT(me, stats->service_level == wanted[now].service_level);
}

int main(void)
{
	struct net_case test = { .ranks = 2, .bytes = 8192, .run = profile_check };
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	int errors = 0;

	stats = lib ? dlsym(lib, "ep_model_nic") : NULL;
	if (!stats)
		return 77;
	for (now = 0; now < WANTED; now++) {
		if (wanted[now].tc)
			setenv("NCCL_EP_IB_TC", wanted[now].tc, 1);
		else
			unsetenv("NCCL_EP_IB_TC");
		test.spec = wanted[now].spec;
		errors += net_run(&test);
	}
	return errors ? 1 : 0;
}
