/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's communicator (ep_sc_): one bootstrap endpoint, one device, and the order of calls on it. */
#ifndef EP_PLUGIN_STANDIN_COMM_H
#define EP_PLUGIN_STANDIN_COMM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <nccl.h>
#include <nccl_device.h>

#include "plugin/boot/boot.h"
#include "plugin/standin/device.h"

struct ncclWindow_vidmem {
	struct ncclWindow_vidmem *next;
	void *base;
	size_t size;
	int flags;
};

struct ncclComm {
	struct ncclComm *next; /* in the registry */
	int rank, nranks;
	struct ep_sc_device device;
	struct ep_dev *dev;
	struct ep_boot *boot;
	ncclTeam_t lsa;
	struct ep_pinned stage; /* coll.c's; allocated once, as freeing waits for running kernels */

	pthread_mutex_t lock; /* all below */
	pthread_cond_t moved; /* users, serving, steps, error */
	int users;
	uint64_t tickets, serving;
	uint64_t steps; /* of operations: tells waiters that there is progress */
	bool finalized;
	int error; /* of the first failure; every later call returns it */
	char text[512];
	struct ncclWindow_vidmem *windows;
};

/* Exchanged before every call: a mismatch is an error that names the rank, where NCCL would hang or corrupt data. All
 * members but arg must be the same on all ranks. */
struct ep_sc_call {
	uint32_t kind; /* enum ep_sc_kind */
	uint32_t dtype, op;
	int32_t root;
	uint64_t count;
	int64_t arg[2];
};

enum ep_sc_kind {
	EP_SC_ALLGATHER,
	EP_SC_ALLREDUCE,
	EP_SC_REDUCE_SCATTER,
	EP_SC_BROADCAST,
	EP_SC_SPLIT,
	EP_SC_WINDOW,
	EP_SC_KINDS
};
const char *ep_sc_kind_name(unsigned kind);

struct ep_sc_opts {
	uint64_t deadline; /* of the call; 0: the timeout from now */
	ncclUniqueId id;
	int rank, nranks;
	struct ep_sc_device device;
};

/* Collective. The communicator is in the registry on return. */
int ep_sc_open(const struct ep_sc_opts *opts, struct ncclComm **out);
/* Removes it from the registry, waits for calls in progress and frees it. With why, the other ranks are told first. */
int ep_sc_close(ncclComm_t handle, const char *call, const char *why);
/* Waits for the operations submitted; refuses new ones. */
int ep_sc_finalize(ncclComm_t handle);

/* NULL is valid. Fields past config->size (another NCCL version) are not read. */
int ep_sc_config_check(const ncclConfig_t *config, const char *call);

/* A live communicator, referenced until put. Other handles are refused without dereferencing them. */
int ep_sc_get(ncclComm_t handle, const char *call, struct ncclComm **out);
void ep_sc_put(struct ncclComm *comm);
bool ep_sc_owns(ncclComm_t handle);
/* See struct ep_standin_query. */
int ep_sc_evidence(ncclComm_t handle, char *why, size_t size);
int ep_sc_waited(ncclComm_t handle, uint64_t from, char *why, size_t size);
int ep_sc_window_find(ncclWindow_t win, void **base, size_t *size);

/* Operations of a communicator run one at a time in ticket order, whatever streams and threads they come from: the
 * order must be the same on all ranks. enter waits for the ticket; leave follows a successful enter. */
int ep_sc_ticket(struct ncclComm *comm, enum ep_sc_kind kind, uint64_t *out);
int ep_sc_enter(struct ncclComm *comm, uint64_t ticket);
void ep_sc_leave(struct ncclComm *comm);
void ep_sc_step(struct ncclComm *comm);

/* 0, or the failure that broke the communicator, with its message. */
int ep_sc_check(struct ncclComm *comm);
/* Breaks the communicator with the thread's last error as the reason; returns rc. */
int ep_sc_break(struct ncclComm *comm, int rc);
/* The same for a failure of this rank alone: also tells the other ranks, which would wait for it. */
int ep_sc_give_up(struct ncclComm *comm, int rc);

/* Inside enter and leave. all has room for nranks calls, or is NULL. */
int ep_sc_meet(struct ncclComm *comm, const struct ep_sc_call *mine, struct ep_sc_call *all);

#endif
