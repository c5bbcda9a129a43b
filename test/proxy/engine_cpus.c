/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where engine threads run: in a process bound to one core, as taskset or mpirun binds it, on another one; as
 * NCCL_EP_ENGINE_CPUS says; else where the process is. And that NCCL_EP_ENGINE_NAP=0 keeps them awake. Each case in a
 * process of its own, since parameters are read once. Exit status 0, 1, or 77 where there is one CPU only.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proxy/cpus.h"
#include "proxy/engine.h"
#include "util/clock.h"
#include "test/rig/thread_find.h"

static int first = -1, second = -1; /* CPUs of this process */

struct scene {
	const char *name;
	bool bound;	  /* to the first CPU */
	const char *cpus; /* NCCL_EP_ENGINE_CPUS; "1st" and "2nd" are replaced */
	const char *near; /* of the NIC */
	const char *want; /* 1st, 2nd, both */
};

static const struct scene scenes[] = {
	{ "bound to one core", true, "", "", "2nd" },
	{ "bound, inherit", true, "inherit", "", "1st" },
	{ "bound, the NIC is near that core", true, "", "1st", "2nd" },
	{ "bound, a list", true, "2nd", "", "2nd" },
	{ "bound, a list of that core", true, "1st", "", "1st" },
	{ "not bound", false, "", "", "both" },
	{ "not bound, inherit", false, "inherit", "", "both" },
	{ "not bound, a list", false, "2nd", "", "2nd" },
	{ "not bound, a list of no CPU here", false, "8190", "", "both" },
	{ "not bound, no list at all", false, "x-y", "", "both" },
};

static void cpu_text(const char *word, char *out, size_t size)
{
	if (!strcmp(word, "1st") || !strcmp(word, "2nd"))
		snprintf(out, size, "%d", word[0] == '1' ? first : second);
	else
		snprintf(out, size, "%s", word);
}

static void bind_to(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

/* Returns what is wrong, or 0. */
static int scene_run(const struct scene *scene)
{
	char text[32];
	struct ep_engine *engine;
	cpu_set_t got;
	bool a, b;

	cpu_text(scene->cpus, text, sizeof(text));
	setenv("NCCL_EP_ENGINE_CPUS", text, 1);
	if (scene->bound)
		bind_to(first);
	cpu_text(scene->near, text, sizeof(text));
	if (ep_engine_take(0, text, &engine))
		return printf("no engine\n");
	CPU_ZERO(&got);
	if (sched_getaffinity(thread_find("ep-engine-0"), sizeof(got), &got))
		return printf("no thread\n");
	a = CPU_ISSET(first, &got);
	b = CPU_ISSET(second, &got);
	ep_engine_give(engine);
	if (a != (scene->want[0] != '2') || b != (scene->want[0] != '1'))
		return printf("FAILED %s: the engine may use%s%s\n", scene->name, a ? " the first CPU" : "",
			      b ? " the second CPU" : "");
	if (ep_cpus_count() < (scene->bound && strcmp(scene->cpus, "inherit") == 0 ? 1 : 2))
		return printf("FAILED %s: %d CPUs\n", scene->name, ep_cpus_count());
	printf("ok     %s: %s\n", scene->name, scene->want);
	return 0;
}

/* Whether it lies down, in 100 ms without work. */
static int nap_run(bool naps)
{
	struct ep_engine *engine;
	int slept = 0;

	setenv("NCCL_EP_ENGINE_NAP", naps ? "1" : "0", 1);
	if (ep_engine_take(0, "", &engine))
		return printf("no engine\n");
	for (int i = 0; i < 100; i++, usleep(1000))
		slept += __atomic_load_n(ep_engine_bell(engine), __ATOMIC_RELAXED) != 0;
	ep_engine_give(engine);
	printf("%s NCCL_EP_ENGINE_NAP=%d: asleep at %d of 100 looks\n", (slept > 0) == naps ? "ok    " : "FAILED", naps,
	       slept);
	return (slept > 0) != naps;
}

static int in_child(const struct scene *scene, bool naps)
{
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int wrong = scene ? scene_run(scene) : nap_run(naps);

		fflush(stdout);
		_exit(wrong != 0);
	}
	return pid < 0 || waitpid(pid, &status, 0) != pid || status != 0;
}

int main(void)
{
	int failed = 0;
	cpu_set_t mine;

	CPU_ZERO(&mine);
	sched_getaffinity(0, sizeof(mine), &mine);
	for (int i = 0; i < CPU_SETSIZE && second < 0; i++) {
		if (!CPU_ISSET(i, &mine))
			continue;
		if (first < 0)
			first = i;
		else
			second = i;
	}
	if (second < 0) {
		printf("skipped: this process may use one CPU only\n");
		return 77;
	}
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
		failed += in_child(&scenes[i], false);
	failed += in_child(NULL, true) + in_child(NULL, false);
	printf("engine_cpus: %d failed\n", failed);
	return failed != 0;
}
