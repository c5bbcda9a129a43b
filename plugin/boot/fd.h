/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_BOOT_FD_H
#define EP_PLUGIN_BOOT_FD_H

#include "plugin/boot/types.h"

/*
 * File descriptors for other processes of this host, over abstract UNIX sockets (no name in any file system, gone
 * with the process). The owner offers fds by key until withdrawn; the endpoint's service thread answers. A fetch names
 * the owner by the 16-byte token that ep_boot_fd_token gives and that the caller has sent around. -ECONNREFUSED: not
 * reachable, another host or container.
 */
int ep_boot_fd_offer(struct ep_boot *boot, uint64_t key, int fd); /* fd is duplicated */
void ep_boot_fd_withdraw(struct ep_boot *boot, uint64_t key);
void ep_boot_fd_token(struct ep_boot *boot, struct ep_fd_token *out);
int ep_boot_fd_fetch(struct ep_boot *boot, const struct ep_fd_token *owner, uint64_t key, int *fd);

/*
 * The same for a note: n bytes, at most EP_BOOT_NOTE, with a descriptor or without (fd -1). Notes have keys of their
 * own. A fetch gets exactly n bytes, and *fd is -1 where none came along; it leaves no sentence, because "no" is a
 * normal answer here: -ENOENT when the owner does not offer the key.
 */
int ep_boot_note_offer(struct ep_boot *boot, uint64_t key, const void *note, size_t n, int fd);
void ep_boot_note_withdraw(struct ep_boot *boot, uint64_t key);
int ep_boot_note_fetch(struct ep_boot *boot, const struct ep_fd_token *owner, uint64_t key, uint64_t deadline,
		       void *note, size_t n, int *fd);

/* For the endpoint, with its lock held (listen: before its thread runs). */
struct ep_conn;
struct ep_frame;
int ep_fd_listen(struct ep_boot *b);
int ep_fd_frame(struct ep_boot *b, struct ep_conn *c, const struct ep_frame *f);
void ep_fd_free(struct ep_boot *b);

#endif
