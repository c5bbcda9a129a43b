/* SPDX-License-Identifier: Apache-2.0 */
/* Where a thread should run, inside what the process may use. */
#ifndef EP_PROXY_CPUS_H
#define EP_PROXY_CPUS_H

#include <pthread.h>
#include <sched.h>

#define EP_CPUS_MAX 8192

struct ep_cpus {
	cpu_set_t set[EP_CPUS_MAX / CPU_SETSIZE];
};

/* A list as in sysfs: "0-3,8". Refused with a sentence: anything else, and CPUs from EP_CPUS_MAX on. */
int ep_cpus_parse(const char *list, struct ep_cpus *out);

/* Pins an engine's thread to those of the list that the process may use. A failure costs speed only: it is logged. */
void ep_cpus_pin(pthread_t thread, int engine, const char *list);

#endif
