/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the root and the endpoints. */
#ifndef EP_PLUGIN_BOOT_ID_H
#define EP_PLUGIN_BOOT_ID_H

#include <pthread.h>

#include "plugin/boot/types.h"
#include "util/sock.h"

/* Sets magic and secret; the caller fills in the addresses. */
int ep_boot_id_init(struct ep_boot_id *id);

/* -EP_EARG with a message for anything ep_boot_id_create did not make. */
int ep_boot_id_check(const struct ep_boot_id *id);

void ep_boot_addr_set(struct ep_boot_addr *to, const union ep_sockaddr *from);
void ep_boot_addr_get(const struct ep_boot_addr *from, uint16_t port, union ep_sockaddr *to);

/* The same for all ranks of a process, different for other processes. */
uint64_t ep_boot_cookie(const uint8_t *secret);

/* A thread with a small stack and all signals blocked. detached: out may be NULL. */
int ep_boot_thread(pthread_t *out, void *(*fn)(void *), void *arg, bool detached);

#endif
