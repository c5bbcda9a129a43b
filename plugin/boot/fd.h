/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_BOOT_FD_H
#define EP_PLUGIN_BOOT_FD_H

#include "plugin/boot/types.h"

/*
 * Passing file descriptors to other processes of this host over abstract UNIX sockets (no file system name, closed with
 * the process). The owner offers an fd under a key until withdrawn; its service thread answers. A fetch names the owner
 * by its token, which the caller has exchanged. -ECONNREFUSED: not reachable, another host or container.
 */
int ep_boot_fd_offer(struct ep_boot *boot, uint64_t key, int fd); /* fd is duplicated */
void ep_boot_fd_withdraw(struct ep_boot *boot, uint64_t key);
void ep_boot_fd_token(struct ep_boot *boot, struct ep_fd_token *out);
int ep_boot_fd_fetch(struct ep_boot *boot, const struct ep_fd_token *owner, uint64_t key, int *fd);

/*
 * The same for a note: n bytes, at most EP_BOOT_NOTE, with a descriptor or without (fd -1), in a key space of its own.
 * A fetch returns exactly n bytes and sets *fd to -1 if there was no descriptor. Sets no last error: -ENOENT, the owner
 * does not offer the key, is a normal answer.
 */
int ep_boot_note_offer(struct ep_boot *boot, uint64_t key, const void *note, size_t n, int fd);
void ep_boot_note_withdraw(struct ep_boot *boot, uint64_t key);
int ep_boot_note_fetch(struct ep_boot *boot, const struct ep_fd_token *owner, uint64_t key, uint64_t deadline,
		       void *note, size_t n, int *fd);

/* Internal, with the endpoint's lock held (listen: before its thread starts). */
struct ep_conn;
struct ep_frame;
int ep_fd_listen(struct ep_boot *b);
int ep_fd_frame(struct ep_boot *b, struct ep_conn *c, const struct ep_frame *f);
void ep_fd_free(struct ep_boot *b);

#endif
