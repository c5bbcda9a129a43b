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

/* NCCL_EP_ENGINE_CPUS=inherit: engines stay where the process is. */
#define EP_CPUS_INHERIT "inherit"

/* CPUs for ranks and engines of this process: its own, or, if it is bound to one core, all that its cpuset has. */
int ep_cpus_count(void);

/* Pins an engine's thread to the CPUs of the list that it may use, or to those of NCCL_EP_ENGINE_CPUS; in a process
 * that is bound to one core to any others. Failures cost speed only and are logged. */
void ep_cpus_pin(pthread_t thread, int engine, const char *list);

#endif
