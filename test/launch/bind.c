/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Under a launcher that binds ranks to cores: the engine runs elsewhere, and the rank where the launcher put it; with
 * NCCL_EP_ENGINE_CPUS=inherit both are there. One line per rank. 0, 1, or 77: the process is not bound.
 */
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proxy/cpus.h"
#include "proxy/engine.h"
#include "test/rig/thread_find.h"

static void cpus_print(const char *what, const cpu_set_t *cpus)
{
	printf(" %s", what);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, cpus))
			printf(" %d", i);
}

int main(void)
{
	const char *mode = getenv("NCCL_EP_ENGINE_CPUS");
	bool inherit = mode && !strcmp(mode, "inherit"), ok;
	cpu_set_t before, after, there, both;
	struct ep_engine *engine;
	pid_t thread;

	if (sched_getaffinity(0, sizeof(before), &before) || CPU_COUNT(&before) >= sysconf(_SC_NPROCESSORS_ONLN))
		return 77;
	if (ep_engine_take(0, "", &engine))
		return 1;
	thread = thread_find("ep-engine-0");
	if (!thread || sched_getaffinity(thread, sizeof(there), &there) || sched_getaffinity(0, sizeof(after), &after))
		return 1;
	CPU_AND(&both, &before, &there);
	ok = CPU_EQUAL(&before, &after) && CPU_COUNT(&there) > 0 &&
	     (inherit ? CPU_EQUAL(&before, &there) : CPU_COUNT(&both) == 0) &&
	     (inherit || ep_cpus_count() > CPU_COUNT(&before));
	ep_engine_give(engine);
	printf("%s:", ok ? "ok" : "FAILED");
	cpus_print("rank on", &before);
	cpus_print("engine on", &there);
	printf("\n");
	return ok ? 0 : 1;
}
