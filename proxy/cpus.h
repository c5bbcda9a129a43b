/* SPDX-License-Identifier: Apache-2.0 */
/* CPU affinity of engines, within that of the process. */
#ifndef EP_PROXY_CPUS_H
#define EP_PROXY_CPUS_H

#include <pthread.h>
#include <sched.h>

#define EP_CPUS_MAX 8192

struct ep_cpus {
	cpu_set_t set[EP_CPUS_MAX / CPU_SETSIZE];
};

/* A list as in sysfs: "0-3,8". Anything else, or a CPU >= EP_CPUS_MAX, fails with a message. */
int ep_cpus_parse(const char *list, struct ep_cpus *out);

/* CPUs this process may use, not the caller: a rank's thread may be bound to one of them. */
int ep_cpus_count(void);

/* Pins an engine's thread to the CPUs of the list that the process may use. Failures cost speed only and are logged. */
void ep_cpus_pin(pthread_t thread, int engine, const char *list);

#endif
