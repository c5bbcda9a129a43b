/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A star over rank 0 by TCP. Both sides of a connection prove that they have the same NCCL_EP_TOKEN, by keyed hashes of
 * each other's random numbers, before anything is told: the unique id that travels here is the key to the communicator.
 * Without the variable the token is empty.
 */
#ifndef EP_PERF_LAUNCH_TCP_H
#define EP_PERF_LAUNCH_TCP_H

#include "perf/launch_env.h"

struct launch_tcp;

int launch_tcp_open(const struct launch_env *env, struct launch_tcp **out, char *text, size_t size);
void launch_tcp_close(struct launch_tcp *tcp);
int launch_tcp_gather(struct launch_tcp *tcp, const void *mine, size_t bytes, void *all, char *text, size_t size);

#endif
