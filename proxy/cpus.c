/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/cpus.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/error.h"
#include "util/param.h"

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

/* ---- which CPUs engines may use ---- */

/* In a thread of its own, so that no other thread ever runs elsewhere than its owner said: of all CPUs the kernel keeps
 * those of the cpuset. */
static void *cpuset_read(void *out)
{
	struct ep_cpus all;

	memset(&all, 0xff, sizeof(all));
	memset(out, 0, sizeof(all));
	if (sched_setaffinity(0, sizeof(all), all.set) ||
	    sched_getaffinity(0, sizeof(all), ((struct ep_cpus *)out)->set))
		memset(out, 0, sizeof(all));
	return NULL;
}

static int cpus_number(const struct ep_cpus *cpus)
{
	return CPU_COUNT_S(sizeof(*cpus), cpus->set);
}

/* Whether they are hardware threads of one core. */
static bool is_one_core(const struct ep_cpus *cpus)
{
	struct ep_cpus core, both;
	char path[96], list[256];
	int cpu = 0, fd;
	ssize_t n;

	if (cpus_number(cpus) <= 1)
		return true;
	while (!CPU_ISSET_S((size_t)cpu, sizeof(*cpus), cpus->set))
		cpu++;
	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, list, sizeof(list) - 1);
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return false;
	list[n] = 0;
	if (ep_cpus_parse(list, &core))
		return false;
	CPU_AND_S(sizeof(both), both.set, core.set, cpus->set);
	return cpus_number(&both) == cpus_number(cpus);
}

/*
 * The process's CPUs, not the caller's: the core a thread is bound to is the last that an engine should take. Where the
 * process itself is bound to one core, as by mpirun or taskset, an engine there would take turns with the thread that
 * launches: *bound, and it may use the others of the cpuset.
 */
static void cpus_may(struct ep_cpus *may, bool *bound)
{
	struct ep_cpus all, own;
	pthread_t thread;

	*bound = false;
	memset(&own, 0, sizeof(own));
	memset(&all, 0, sizeof(all));
	if (sched_getaffinity(getpid(), sizeof(own), own.set))
		CPU_SET_S(0, sizeof(own), own.set);
	*may = own;
	if (!strcmp(ep_param_str(EP_P_ENGINE_CPUS), EP_CPUS_INHERIT) || !is_one_core(&own) ||
	    pthread_create(&thread, NULL, cpuset_read, &all))
		return;
	pthread_join(thread, NULL);
	CPU_XOR_S(sizeof(own), own.set, own.set, all.set); /* own is among them */
	CPU_AND_S(sizeof(own), own.set, own.set, all.set);
	*bound = cpus_number(&own) > 0;
	if (*bound)
		*may = own;
}

int ep_cpus_count(void)
{
	struct ep_cpus may;
	bool bound;

	cpus_may(&may, &bound);
	return cpus_number(&may) + bound;
}

static void thread_pin(pthread_t thread, int engine, const struct ep_cpus *want)
{
	int rc = pthread_setaffinity_np(thread, sizeof(*want), want->set);

	if (rc)
		EP_INFO(EP_PROXY, "engine %d is not pinned: %s", engine, strerror(rc));
}

/* The CPUs near the NIC that engines may use. False: none, or so few that it hurts. */
static bool near_take(const char *list, int engine, const struct ep_cpus *may, struct ep_cpus *want)
{
	if (!list || !*list || cpus_number(may) <= CPUS_TOO_FEW || ep_cpus_parse(list, want))
		return false;
	CPU_AND_S(sizeof(*want), want->set, want->set, may->set);
	if (cpus_number(want))
		return true;
	EP_INFO(EP_PROXY, "engine %d is not pinned to the CPUs %s: the process may use none of them", engine, list);
	return false;
}

void ep_cpus_pin(pthread_t thread, int engine, const char *list)
{
	const char *named = ep_param_str(EP_P_ENGINE_CPUS);
	struct ep_cpus may, want;
	bool bound;

	if (!strcmp(named, EP_CPUS_INHERIT))
		return;
	if (*named) {
		if (!ep_cpus_parse(named, &want))
			thread_pin(thread, engine, &want);
		return;
	}
	cpus_may(&may, &bound);
	if (near_take(list, engine, &may, &want))
		thread_pin(thread, engine, &want);
	else if (bound)
		thread_pin(thread, engine, &may);
	if (bound)
		EP_INFO(EP_PROXY, "engine %d leaves the core that the process is bound to", engine);
}
