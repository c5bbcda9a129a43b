/* SPDX-License-Identifier: Apache-2.0 */
/* The first host of Slurm's node lists. */
#include <criterion/criterion.h>

#include "perf/launch_env.h"

TestSuite(hosts, .timeout = 10);

Test(hosts, first)
{
	static const struct {
		const char *list, *first;
	} cases[] = {
		{ "node7", "node7" },
		{ "b,a", "b" },
		{ "node[3-9]", "node3" },
		{ "node[007-012,20]", "node007" },
		{ "node[5,1-2]", "node5" },
		{ "rack[2-3]n[10-11],login", "rack2n10" },
		{ "gpu-a[1-4]-ib,gpu-b[1-4]-ib", "gpu-a1-ib" },
		{ "a-b-c.example.org", "a-b-c.example.org" },
		{ "10.0.0.[17-18]", "10.0.0.17" },
	};
	char host[LAUNCH_HOST];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cr_expect_eq(launch_first_host(cases[i].list, host, sizeof(host)), 0, "%s", cases[i].list);
		cr_expect_str_eq(host, cases[i].first);
	}
}

Test(hosts, none)
{
	static const char *const cases[] = { "", ",a", "a[", "a[1-2", "a[]", "a[-3]", "a]", "[" };
	char host[LAUNCH_HOST] = "kept", small[4];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_expect_eq(launch_first_host(cases[i], host, sizeof(host)), -1, "%s", cases[i]);
	cr_expect_eq(launch_first_host(NULL, host, sizeof(host)), -1);
	cr_expect_str_eq(host, "kept");
	cr_expect_eq(launch_first_host("a[100-200]", small, sizeof(small)), -1);
	cr_expect_eq(launch_first_host("a[10-20]", small, sizeof(small)), 0);
}

Test(hosts, longer_than_a_name)
{
	char list[2 * LAUNCH_HOST], host[LAUNCH_HOST];

	memset(list, 'x', sizeof(list));
	list[sizeof(list) - 1] = '\0';
	cr_expect_eq(launch_first_host(list, host, sizeof(host)), -1);
	list[LAUNCH_HOST - 1] = '\0';
	cr_expect_eq(launch_first_host(list, host, sizeof(host)), 0);
}
