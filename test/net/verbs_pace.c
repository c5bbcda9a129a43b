/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pacing of the Broadcom profile: more than half of the limit is reached, and it is never exceeded. The profile is
 * forced by an option; net, port and engine are as in a group. Counted between port and net. 77: no device.
 */
#include <stdlib.h>
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "test/rig/engine_rig.h"
#include "util/clock.h"
#include "util/error.h"

#define SPEC "verbs:profile=bnxt_re"
#define AREA (4u << 20)
enum { PUTS = 120 };

static void limit_run(const ncclEpNetFlow_v1_t *flow, uint32_t size, uint64_t puts, uint64_t bytes)
{
	struct eng_opts o = {
		.spec = SPEC, .ranks = 3, .rings = 2, .bytes = 2 * AREA, .max_inline = ENG_INLINE_MAX, .flow = *flow
	};
	struct eng_rig *rig = eng_open(&o);
	struct eng_rank *me = &rig->rank[0];
	struct eng_probe *probe = &me->port[0].probe;
	uint32_t apart = size + 64; /* not adjacent: adjacent puts are merged */

	for (int i = 0; i < PUTS; i++)
		for (int peer = 1; peer < 3; peer++)
			CHECK(eng_put(me, peer, 4096 + (uint64_t)(i % 8) * apart, AREA, size) == 0, "put %d", i);
	for (int peer = 1; peer < 3; peer++) {
		CHECK(eng_signal(me, peer, 0, 1) == 0, "signal");
		CHECK(eng_wait(&rig->rank[peer], 0, 1), "%u bytes: nothing arrived at rank %d", size, peer);
	}
	CHECK(eng_quiet(me) == 0, "%s", ep_last_error());
	ep_engine_detach(me->port[0].engine, me->port[0].port, ep_deadline_ms(ENG_WAIT_MS));
	/* until then the probe belonged to the thread */
	printf("puts of %u bytes: at most %llu in flight (limit %u), %llu bytes (limit %llu)\n", size,
	       probe->puts_max + 0ull, flow->maxPuts, probe->bytes_max + 0ull, flow->maxBytes + 0ull);
	for (int ring = 0; ring < 2; ring++)
		CHECK(!flow->ringPuts || probe->ring_max[ring] <= flow->ringPuts, "%llu puts of a ring, must be %u",
		      probe->ring_max[ring] + 0ull, flow->ringPuts);
	CHECK(probe->puts_max <= flow->maxPuts && probe->bytes_max <= flow->maxBytes, "more than the profile allows");
	CHECK(probe->puts_max > puts / 2 && probe->bytes_max > bytes / 2, "not half of %llu puts, %llu bytes",
	      puts + 0ull, bytes + 0ull);
	eng_close(rig);
}

int main(void)
{
	ncclEpNetProperties_v1_t props;
	struct ep_net *net;

	if (ep_net_open(SPEC, &net)) {
		fprintf(stderr, "skipped: %s\n", ep_last_error());
		return 77;
	}
	CHECK(net->ops.getProperties(net->net, 0, &props) == 0, "%s", ep_last_error());
	ep_net_close(net);
	CHECK(props.lowLatency.maxBytes == 1536 << 10 && props.lowLatency.maxPuts == 1024 &&
		      props.lowLatency.ringPuts == 32,
	      "%llu bytes, %u puts, %u of a ring", props.lowLatency.maxBytes + 0ull, props.lowLatency.maxPuts,
	      props.lowLatency.ringPuts);
	alarm(200);
	limit_run(&props.throughput, 4096, 32, 32 * 4096);
	limit_run(&props.lowLatency, 1024, 2 * 32, 0); /* more than 32: of two rings */
	limit_run(&props.lowLatency, 128 << 10, 12, 1536 << 10);
	return check_result("verbs_pace");
}
