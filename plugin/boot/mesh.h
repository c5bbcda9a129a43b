/* SPDX-License-Identifier: Apache-2.0 */
/* Joining, the edges of the mesh, leaving. All with the lock held, except start. */
#ifndef EP_PLUGIN_BOOT_MESH_H
#define EP_PLUGIN_BOOT_MESH_H

#include "plugin/boot/endpoint.h"

int ep_mesh_start(struct ep_boot *b, const struct ep_boot_id *id); /* before the thread starts, no lock */
/* Fails and tells all ranks; blame: whoever is at fault, perhaps this rank. */
void ep_mesh_give_up(struct ep_boot *b, int err, struct ep_blame blame, const char *why);
/* For a reason of this rank's own. */
void ep_mesh_quit(struct ep_boot *b, int err, const char *why);
int ep_mesh_begin(struct ep_boot *b, const void *mine, size_t n);
void ep_mesh_leave(struct ep_boot *b);
bool ep_mesh_left(struct ep_boot *b);	  /* nothing more to send or to wait for */
uint64_t ep_mesh_tick(struct ep_boot *b); /* when to call again at the latest */

#endif
