/* SPDX-License-Identifier: Apache-2.0 */
/* Checks for test programs of a single file; `failures` counts them. */
#ifndef EP_TEST_ORACLE_EXPECT_H
#define EP_TEST_ORACLE_EXPECT_H

#include <stdio.h>
#include <stdlib.h>

static int failures;

#define EXPECT(what)                                                               \
	do {                                                                       \
		if (!(what)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
			failures++;                                                \
		}                                                                  \
	} while (0)
/* Ends the program: what follows depends on it. */
#define ASSERT(what)                  \
	do {                          \
		if (!(what)) {        \
			EXPECT(what); \
			exit(1);      \
		}                     \
	} while (0)

#endif
