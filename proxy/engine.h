/* SPDX-License-Identifier: Apache-2.0 */
/* Engines: threads that drive ports, between rings and a net. Rank threads of one process share engines. */
#ifndef EP_PROXY_ENGINE_H
#define EP_PROXY_ENGINE_H

#include <stdint.h>

#include "proxy/port_api.h"

struct ep_engine;

/*
 * The process's engine of this number, started by the first who takes it and ended by the last who gives it back.
 * cpus: a list as in sysfs ("0-3,8") of where it should run, inside what the process may use; NULL or empty: anywhere.
 */
int ep_engine_take(int number, const char *cpus, struct ep_engine **out);
void ep_engine_give(struct ep_engine *engine);

int ep_engine_attach(struct ep_engine *engine, struct ep_port *port);
/*
 * Returns when the thread has let go of the port; it does so at its next turn, whatever state the port is in.
 * -EP_ETIMEOUT: it has not come to a turn before the deadline, a net holds it; until a later call succeeds the port,
 * its rings, its context and the engine stay as they are, and nothing of them may be given back.
 */
int ep_engine_detach(struct ep_engine *engine, struct ep_port *port, uint64_t deadline);

/* The word that producers on the CPU ring (struct ep_cmd_ring, bell) when the engine sleeps. */
uint32_t *ep_engine_bell(struct ep_engine *engine);
void ep_engine_wake(struct ep_engine *engine);

#endif
