/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of NCCL_EP_NET without the library, for the reference program: one context and one thread, as a rank
 * has one engine, which posts puts and counts arrivals. Every put has an immediate, by which the receiver waits for it.
 */
#ifndef EP_PERF_EP_PERF_WIRE_H
#define EP_PERF_EP_PERF_WIRE_H

#include "test/oracle/world.h"

struct wire;

/*
 * Collective. `window` bytes that others put to, the same on every rank, and `send` bytes to put from. 0, or -1 after
 * seat_fail.
 */
int wire_open(struct seat *seat, size_t window, size_t send, struct wire **out);
/* Collective; NULL is accepted. */
void wire_close(struct wire *wire);

uint8_t *wire_window(const struct wire *wire);
/* A new round: staging memory is reused. */
void wire_begin(struct wire *wire);
/* Staging memory for the next wire_put. */
uint8_t *wire_stage(struct wire *wire, size_t bytes);
void wire_put(struct wire *wire, int peer, size_t to, const uint8_t *from, size_t bytes);
/* Until this many more puts have arrived than at the last call; 0, or -1 after seat_fail. */
int wire_wait(struct wire *wire, uint64_t puts);

#endif
