/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/cpus.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/error.h"

/* With few CPUs pinning hurts: a pinned thread that naps loses its CPU to threads that are not pinned. */
#define CPUS_TOO_FEW 4

static bool number_take(const char **text, unsigned long *out)
{
	char *end;

	if (**text < '0' || **text > '9')
		return false;
	*out = strtoul(*text, &end, 10);
	*text = end;
	return *out < EP_CPUS_MAX;
}

int ep_cpus_parse(const char *list, struct ep_cpus *out)
{
	const char *at = list;
	unsigned long first, last;
	struct ep_cpus cpus;

	memset(&cpus, 0, sizeof(cpus));
	do {
		if (!number_take(&at, &first))
			goto malformed;
		last = first;
		if (*at == '-' && (at++, !number_take(&at, &last) || last < first))
			goto malformed;
		for (; first <= last; first++)
			CPU_SET_S(first, sizeof(cpus), cpus.set);
	} while (*at == ',' && *++at);
	if (*at && strcmp(at, "\n") != 0)
		goto malformed;
	*out = cpus;
	return 0;

malformed:
	return EP_FAIL(EP_PROXY, EP_EARG, "\"%.80s\" is not a CPU list such as \"0-3,8\" with CPUs below %d", list,
		       EP_CPUS_MAX);
}

int ep_cpus_count(void)
{
	struct ep_cpus may;

	memset(&may, 0, sizeof(may));
	return sched_getaffinity(getpid(), sizeof(may), may.set) ? 1 : CPU_COUNT_S(sizeof(may), may.set);
}

void ep_cpus_pin(pthread_t thread, int engine, const char *list)
{
	struct ep_cpus may, want;
	int rc;

	if (!list || !*list || ep_cpus_parse(list, &want))
		return;
	memset(&may, 0, sizeof(may));
	/* The process's, not the caller's: the core a caller is bound to is the last that an engine should take. */
	if (sched_getaffinity(getpid(), sizeof(may), may.set) || CPU_COUNT_S(sizeof(may), may.set) <= CPUS_TOO_FEW)
		return;
	CPU_AND_S(sizeof(want), want.set, want.set, may.set);
	if (!CPU_COUNT_S(sizeof(want), want.set)) {
		EP_INFO(EP_PROXY, "engine %d is not pinned: the process may use none of the CPUs %s", engine, list);
		return;
	}
	rc = pthread_setaffinity_np(thread, sizeof(want), want.set);
	if (rc)
		EP_INFO(EP_PROXY, "engine %d is not pinned: %s", engine, strerror(rc));
}
