/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "net/verbs/profile.h"
#include "perf/ep_info.h"

static void limit_print(const ncclEpNetFlow_v1_t *flow)
{
	char text[32] = "-";

	if (flow->maxBytes || flow->maxPuts)
		snprintf(text, sizeof(text), "%llu/%u", (unsigned long long)flow->maxBytes >> 10, flow->maxPuts);
	printf(" %11s", text);
}

void ep_info_profiles(void)
{
	const struct ep_verbs_profile *p;

	printf("#\n# %-20s %-16s %-9s %6s %11s %11s\n", "NIC driver", "family", "order", "inline", "in flight",
	       "in flight");
	printf("# %-20s %-16s %-9s %6s %11s %11s\n", "", "", "", "(B)", "LL (KiB/n)", "HT (KiB/n)");
	for (int i = 0; (p = ep_verbs_profile(i)); i++) {
		printf("  %-20s %-16s %-9s %6u", p->driver ? p->driver : "any other", p->family,
		       p->ordered ? "ordered" : "unordered", p->max_inline);
		limit_print(&p->lowLatency);
		limit_print(&p->throughput);
		printf("\n");
		if (p->refused)
			printf("#     not used by verbs: %s\n", p->refused);
		if (p->lowLatency.ringPuts)
			printf("#     LL: %u puts in flight per ring\n", p->lowLatency.ringPuts);
		if (p->tc || p->sl)
			printf("#     traffic class %u, service level %u\n", p->tc, p->sl);
		if (p->v2_only)
			printf("#     GIDs: RoCE v2 only\n");
		if (p->note)
			printf("#     %s\n", p->note);
	}
}
