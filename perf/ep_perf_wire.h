/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net of NCCL_EP_NET without the library around it, for the plain program: one context, one thread of it that gives
 * puts to the net and counts what arrives, as a rank has one engine. A put has an immediate and is waited for by it.
 */
#ifndef EP_PERF_EP_PERF_WIRE_H
#define EP_PERF_EP_PERF_WIRE_H

#include "test/oracle/world.h"

/* Bytes of a rank's card on the board, by which ranks find each other. */
#define WIRE_CARD 1024

struct wire;

/*
 * Collective. Memory of `window` bytes that others put to, the same everywhere, and of `send` bytes to put from. cards:
 * WIRE_CARD bytes for every rank, seen by all. 0, or -1 after seat_fail.
 */
int wire_open(struct seat *seat, uint8_t *cards, size_t window, size_t send, struct wire **out);
/* Collective; NULL is accepted. */
void wire_close(struct wire *wire);

uint8_t *wire_window(const struct wire *wire);
/* A new round: what was staged before is done with. */
void wire_begin(struct wire *wire);
/* Room for so many bytes that the next wire_put takes. */
uint8_t *wire_stage(struct wire *wire, size_t bytes);
void wire_put(struct wire *wire, int peer, size_t to, const uint8_t *from, size_t bytes);
/* Until so many puts more have arrived than at the last call; 0, or -1 after seat_fail. */
int wire_wait(struct wire *wire, uint64_t puts);

#endif
