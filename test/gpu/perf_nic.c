/* SPDX-License-Identifier: Apache-2.0 */
/* ep_perf refuses what would not be resident together: ranks' SMs and those of the net sm. */
#include <stdio.h>

#include "perf/ep_perf.h"

static const struct {
	const char *net;
	unsigned nic;
	int ranks, sms, rc;
	bool processes;
} cases[] = {
	{ NULL, 0, 8, 32, 0, false },
	{ "loop", 0, 8, 32, 0, true },
	{ "ism:sms=9", 0, 8, 32, 0, false },
	{ "sm", 8, 8, 15, 0, false },
	{ "sm", 8, 8, 16, -1, false },
	{ "sm:rate=400", 8, 2, 62, 0, false },
	{ "sm:rate=400,latency=5000,sms=16", 16, 8, 14, 0, false },
	{ "sm:rate=400,latency=5000,sms=16", 16, 8, 15, -1, false },
	{ "sm:sms=21,unordered=1", 21, 8, 14, -1, false },
	{ "faulty(sm:sms=20):delay=3", 20, 8, 14, 0, false },
	{ "faulty(sm):delay=3", 8, 8, 0, -1, false }, /* automatic: takes all there are */
	{ "sm:sms=2", 2, 2, 4, -1, true },
};

int main(void)
{
	int errors = 0;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct perf_opts opts = { .ranks = cases[i].ranks,
					  .sms = cases[i].sms,
					  .processes = cases[i].processes };
		unsigned nic = perf_nic_sms(cases[i].net);
		int rc = perf_nic_fits(&opts, nic, 132);

		if (nic == cases[i].nic && rc == cases[i].rc)
			continue;
		fprintf(stderr, "case %u, %s: %u SMs, result %d\n", i, cases[i].net ? cases[i].net : "no net", nic, rc);
		errors++;
	}
	return errors != 0;
}
