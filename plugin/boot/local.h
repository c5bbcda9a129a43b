/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks live in this process, and their pointers: by a list of this process's own endpoints, never by what a peer
 * says of itself. A rank of another process that copies our pid, cookie or token would else be given plain loads and
 * stores to an address that it made up.
 */
#ifndef EP_PLUGIN_BOOT_LOCAL_H
#define EP_PLUGIN_BOOT_LOCAL_H

#include "plugin/boot/types.h"

/* Whether this process has the endpoint of that rank in the same mesh. token: what the rank sent, see fd.h. */
bool ep_boot_is_local(struct ep_boot *boot, int rank, const struct ep_fd_token *token);

/* Offers n bytes at ptr to ranks of this process until withdrawn; key is the caller's choice. */
int ep_boot_ptr_offer(struct ep_boot *boot, uint64_t key, void *ptr, size_t n);
void ep_boot_ptr_withdraw(struct ep_boot *boot, uint64_t key);
/* -ENOENT: the rank is in another process, or offers no n bytes under this key. Sets no last error. */
int ep_boot_ptr_find(struct ep_boot *boot, int rank, const struct ep_fd_token *token, uint64_t key, size_t n,
		     void **ptr);

/* Internal: an endpoint is in the list while it is open. */
void ep_local_add(struct ep_boot *b);
void ep_local_remove(struct ep_boot *b);

#endif
