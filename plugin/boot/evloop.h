/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop: accepts, connects, authenticates, splits the stream into checked frames, and sends what is queued.
 * What frames mean is up to the owner's operations. A loop is used under its owner's lock, which it drops while it
 * sleeps, or by one thread.
 */
#ifndef EP_PLUGIN_BOOT_LOOP_H
#define EP_PLUGIN_BOOT_LOOP_H

#include <pthread.h>

#include "plugin/boot/conn.h"

int ep_loop_init(struct ep_loop *l, const struct ep_loop_ops *ops, void *ctx, const uint8_t *secret);
void ep_loop_free(struct ep_loop *l); /* closes all connections without calling back */

/* Takes ownership of the listening socket, also on failure. */
int ep_loop_listen(struct ep_loop *l, int fd, enum ep_purpose purpose);

/* A client connection; tries the addresses in turn until one authenticates or give_up has passed. */
struct ep_conn *ep_loop_dial(struct ep_loop *l, const struct ep_shake *who, const struct ep_dial *where);

/* Sends what is queued, waits for events without the lock, at most until `until`, and handles them. */
int ep_loop_turn(struct ep_loop *l, uint64_t until, pthread_mutex_t *lock);
void ep_loop_wake(struct ep_loop *l); /* from any thread */

#endif
