/* SPDX-License-Identifier: Apache-2.0 */
/* Small things that the meeting point and the endpoints share. */
#ifndef EP_PLUGIN_BOOT_ID_H
#define EP_PLUGIN_BOOT_ID_H

#include <pthread.h>

#include "plugin/boot/types.h"
#include "util/sock.h"

/* Magic and secret; the addresses are the caller's to fill in. */
int ep_boot_id_init(struct ep_boot_id *id);

/* -EP_EARG with its sentence for anything ep_boot_id_create did not make. */
int ep_boot_id_check(const struct ep_boot_id *id);

void ep_boot_addr_set(struct ep_boot_addr *to, const union ep_sockaddr *from);
void ep_boot_addr_get(const struct ep_boot_addr *from, uint16_t port, union ep_sockaddr *to);

/* The same number for all ranks of one process, another one for other processes. */
uint64_t ep_boot_cookie(const uint8_t *secret);

/* A thread for the library's own work: small stack, no signals. detached: nobody joins it, out may be NULL. */
int ep_boot_thread(pthread_t *out, void *(*fn)(void *), void *arg, bool detached);

#endif
