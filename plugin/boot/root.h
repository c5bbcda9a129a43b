/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_BOOT_ROOT_H
#define EP_PLUGIN_BOOT_ROOT_H

#include "plugin/boot/wire.h"

/* Starts the meeting point of an id in a thread of its own. The n listening sockets become its, also on failure. */
int ep_root_start(const struct ep_boot_id *id, const int *listeners, int n);

#endif
