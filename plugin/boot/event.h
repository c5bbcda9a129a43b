/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine of a connection: socket events, deadlines, loss. */
#ifndef EP_PLUGIN_BOOT_EVENT_H
#define EP_PLUGIN_BOOT_EVENT_H

#include "plugin/boot/conn.h"

void ep_conn_event(struct ep_loop *l, struct ep_conn *c, uint32_t events);
void ep_conn_expire(struct ep_loop *l, struct ep_conn *c);
void ep_conn_lost(struct ep_loop *l, struct ep_conn *c, int err);
void ep_conn_rested(struct ep_loop *l); /* the pause is over: accept again */

#endif
