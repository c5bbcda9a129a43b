/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap: ranks meet by a 128-byte id, then keep a mesh of O(log R) TCP connections each, over which they
 * gather small blobs and learn of each other's death. One service thread per endpoint owns its sockets; callers wait
 * on it with a deadline. Used by the stand-in communicator and by every group; knows nothing of devices or NCCL.
 */
#ifndef EP_PLUGIN_BOOT_H
#define EP_PLUGIN_BOOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EP_BOOT_ADDRS 4
#define EP_BOOT_SECRET 16
#define EP_BOOT_MAX_RANKS 65536

struct ep_boot_addr {
	uint8_t family; /* 4 or 6, 0 = unused: AF_ values differ between systems, these travel */
	uint8_t pad[3];
	uint32_t scope;
	uint8_t ip[16];
};

struct ep_boot_id {
	char magic[8];
	uint8_t secret[EP_BOOT_SECRET];
	uint16_t port;
	uint8_t naddr;
	uint8_t pad[5];
	struct ep_boot_addr addr[EP_BOOT_ADDRS];
};
_Static_assert(sizeof(struct ep_boot_id) == 128, "the unique id is 128 bytes");

/* Fills the id and starts the meeting point for it in this process; it ends by itself when all ranks have met, when
 * one of them fails, or when no rank is left to wait for past the bootstrap timeout. */
int ep_boot_id_create(struct ep_boot_id *out);

struct ep_boot;

/* A rank that went away: by death (its connection closed), by ep_boot_abort or by ep_boot_parted (its own sentence).
 * Called from the service thread, once per rank; must not block and must not call back into ep_boot_. */
typedef void (*ep_boot_gone_fn)(void *ctx, int rank, const char *why);

struct ep_boot_opts {
	const struct ep_boot_id *id;
	int rank, nranks;
	int timeout_ms;	      /* for the meeting and for every later collective; 0 takes NCCL_EP_BOOTSTRAP_TIMEOUT_MS */
	bool survive;	      /* collectives skip ranks that are gone instead of failing (groups with enable_mask) */
	ep_boot_gone_fn gone; /* may be NULL */
	void *gone_ctx;
};

/* Collective: returns when all ranks are connected. -EP_EREMOTE names a rank that died meanwhile, -EP_ETIMEOUT one
 * that never came. */
int ep_boot_open(const struct ep_boot_opts *opts, struct ep_boot **out);

/* Collective: n alike on all ranks (0 is a barrier), any size; all has room for nranks * n. Blocks of ranks that are
 * gone stay as they were in all (survive only; of a rank that dies in the middle some may have the block and others
 * not). One collective at a time per endpoint. */
int ep_boot_allgather(struct ep_boot *boot, const void *mine, size_t n, void *all);
int ep_boot_barrier(struct ep_boot *boot);

/* A rank that died or aborted: 0 and its number in *rank, or -ENOENT. The sentence says who and why. */
int ep_boot_failed(struct ep_boot *boot, int *rank, char *why, size_t size);
bool ep_boot_alive(struct ep_boot *boot, int rank);

/* Tells every rank that this one gives up, with the errno and sentence they will see, and why. */
void ep_boot_abort(struct ep_boot *boot, int err, const char *sentence);

/* Tells peer that this rank does not reach it any more, by whatever way it used: there the gone callback names this
 * rank. Both stay in all collectives. */
void ep_boot_parted(struct ep_boot *boot, int peer, const char *why);

/* Leaves in good order: others see an error only if they still need this rank. NULL is accepted. */
void ep_boot_close(struct ep_boot *boot);

/*
 * File descriptors for other processes of this host, over abstract UNIX sockets (no name in any file system, gone
 * with the process). The owner offers fds by key until withdrawn; the endpoint's service thread answers. A fetch names
 * the owner by the 16-byte token that ep_boot_fd_token gives and that the caller has sent around. -ECONNREFUSED: not
 * reachable, another host or container.
 */
struct ep_fd_token {
	uint8_t bytes[16];
};
int ep_boot_fd_offer(struct ep_boot *boot, uint64_t key, int fd); /* fd is duplicated */
void ep_boot_fd_withdraw(struct ep_boot *boot, uint64_t key);
void ep_boot_fd_token(struct ep_boot *boot, struct ep_fd_token *out);
int ep_boot_fd_fetch(struct ep_boot *boot, const struct ep_fd_token *owner, uint64_t key, int *fd);

/*
 * The same for a note: n bytes, at most EP_BOOT_NOTE, with a descriptor or without (fd -1). Notes have keys of their
 * own. A fetch gets exactly n bytes, and *fd is -1 where none came along; it leaves no sentence, because "no" is a
 * normal answer here: -ENOENT when the owner does not offer the key.
 */
#define EP_BOOT_NOTE 128
int ep_boot_note_offer(struct ep_boot *boot, uint64_t key, const void *note, size_t n, int fd);
void ep_boot_note_withdraw(struct ep_boot *boot, uint64_t key);
int ep_boot_note_fetch(struct ep_boot *boot, const struct ep_fd_token *owner, uint64_t key, uint64_t deadline,
		       void *note, size_t n, int *fd);

#endif
