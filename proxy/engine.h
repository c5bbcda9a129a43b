/* SPDX-License-Identifier: Apache-2.0 */
/* Engines: proxy threads, each driving ports. Rank threads of one process share engines. */
#ifndef EP_PROXY_ENGINE_H
#define EP_PROXY_ENGINE_H

#include <stdint.h>

#include "proxy/port_api.h"

struct ep_engine;

/*
 * The process's engine with this number, reference counted: the first take starts the thread, the last give ends it.
 * cpus: a sysfs list ("0-3,8") to pin it to, within the process's affinity; NULL or empty: not pinned.
 */
int ep_engine_take(int number, const char *cpus, struct ep_engine **out);
void ep_engine_give(struct ep_engine *engine);

int ep_engine_attach(struct ep_engine *engine, struct ep_port *port);
/*
 * Returns once the thread no longer uses the port, which is at its next turn, whatever the port's state.
 * -EP_ETIMEOUT: the thread is stuck in the transport. The port, its rings, its context and the engine must then not be
 * freed unless a later call succeeds.
 */
int ep_engine_detach(struct ep_engine *engine, struct ep_port *port, uint64_t deadline);

/* The word by which producers on the host wake a sleeping engine (struct ep_cmd_ring, bell). */
uint32_t *ep_engine_bell(struct ep_engine *engine);
void ep_engine_wake(struct ep_engine *engine);

#endif
