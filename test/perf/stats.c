/* SPDX-License-Identifier: Apache-2.0 */
/* Percentiles by the nearest rank. */
#include <criterion/criterion.h>

#include "perf/perf.h"

TestSuite(stats, .timeout = 10);

Test(stats, nearest_rank)
{
	double one[] = { 7 }, four[] = { 40, 10, 30, 20 }, hundred[100];

	for (int i = 0; i < 100; i++)
		hundred[i] = (i * 37 + 11) % 100 + 1; /* 1 to 100 in some order */
	cr_expect(perf_percentile(one, 1, 0.5) == 7 && perf_percentile(one, 1, 0.99) == 7);
	cr_expect_eq(perf_percentile(four, 4, 0.5), 20);
	cr_expect_eq(perf_percentile(four, 4, 0.51), 30);
	cr_expect(four[0] == 10 && four[3] == 40); /* sorted */
	cr_expect_eq(perf_percentile(hundred, 100, 0.5), 50);
	cr_expect_eq(perf_percentile(hundred, 100, 0.99), 99);
	cr_expect_eq(perf_percentile(hundred, 100, 1), 100);
	cr_expect_eq(perf_percentile(hundred, 100, 0), 1);
}
