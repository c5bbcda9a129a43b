/* SPDX-License-Identifier: Apache-2.0 */
/* For plain test programs (exit 0 passed, 1 failed, 77 skipped), which also run under TSan and without Criterion. */
#ifndef EP_TEST_KERNEL_CHECK_H
#define EP_TEST_KERNEL_CHECK_H

#include <stdatomic.h>
#include <stdio.h>

static atomic_int check_failures;

/* May be used in any thread; continues after a failure, and prints the first ten. */
#define CHECK(cond, ...)                                                           \
	do {                                                                       \
		if (!(cond) && atomic_fetch_add(&check_failures, 1) < 10) {        \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond); \
			fprintf(stderr, __VA_ARGS__);                              \
			fputc('\n', stderr);                                       \
		}                                                                  \
	} while (0)

static inline int check_result(const char *name)
{
	int n = atomic_load(&check_failures);

	if (n > 0)
		fprintf(stderr, "%s: %d checks failed\n", name, n);
	else
		printf("%s: ok\n", name);
	return n > 0;
}

#endif
