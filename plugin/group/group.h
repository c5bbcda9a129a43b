/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_GROUP_H
#define EP_PLUGIN_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dev.h"
#include "nccl_ep.h"
#include "plugin/boot/boot.h"
#include "plugin/boot/topo.h"
#include "plugin/group/comm.h"
#include "plugin/group/page.h"
#include "plugin/group/pool.h"
#include "plugin/group/window.h"
#include "plugin/link/link.h"

struct ep_algo;
struct ep_guard;
struct ep_trace;

/* Operations whose SMs are limited separately. */
enum ep_sms { EP_SMS_ANY, EP_SMS_UPDATE, EP_SMS_DISPATCH, EP_SMS_COMBINE, EP_SMS_KINDS };

/* ncclEpGroupConfig_t after the checks: fields missing from a short struct are zero, AUTO is resolved where the
 * contract says to what. Ranks compare it byte for byte, so it has no padding and no pointers. */
struct ep_group_cfg {
	uint32_t version;
	uint32_t algorithm;
	uint32_t num_experts;
	uint32_t max_dispatch; /* Tmax */
	uint32_t max_recv;     /* 0: eager mode */
	uint32_t max_token_bytes;
	uint64_t rdma_buffer_size; /* 0: sized by the handles */
	uint32_t num_qp_per_rank;
	uint32_t num_channels;
	uint32_t max_num_sms;
	uint32_t enable_mask;
	uint64_t timeout_ns;
	uint32_t zero_copy;
	uint32_t overflow;
	uint32_t num_topk;
	uint32_t dispatch_num_sms;
	uint32_t combine_num_sms;
	uint32_t pad;
};
_Static_assert(sizeof(struct ep_group_cfg) == 80, "no padding");

struct ncclEpGroup {
	struct ep_group_cfg cfg;
	int rank, nranks;
	int experts_per_rank;	    /* El */
	uint64_t timeout_ns;	    /* of every wait: variable, else config, else 100 s */
	uint32_t sms[EP_SMS_KINDS]; /* asked for; 0: as the algorithm prefers */
	bool sms_env[EP_SMS_KINDS]; /* by the environment, which overrides a program also where a handle asks */

	struct ep_comm comm;
	struct ep_boot *boot;
	struct ep_topo topo;
	struct ep_dev *dev;
	unsigned resident; /* blocks of a launch that fit beside those of the ranks that share the GPU */
	void *stream; /* for set-up; one per group: streams that share one of a GPU's few queues wait for each other */
	struct ep_dev *host;	       /* of windows that are in host memory; NULL: they are in the device's */
	struct ep_window control;      /* never moves */
	struct ep_window tried;	       /* a control window in the device's memory that not all ranks reach */
	struct ep_window_list payload; /* grows; old ones stay until the end */
	struct ep_window_tables tables;

	struct ep_link *link; /* to ranks that are not mapped; NULL: all are */
	const struct ep_algo *algo;
	void *algo_state;
	struct ep_mem state;   /* counters and epochs of the kernels; this rank's own */
	const uint32_t *ended; /* in state: number of the last launch that has ended */
	atomic_uint launched;  /* number of the last that was not captured */
	/* Only to be shown: the last launch, also one that is under way in its caller, its enum ep_kernel and time. */
	atomic_uint opened;
	atomic_int last_kernel;
	_Atomic uint64_t last_at;
	struct ep_trace *trace;	   /* NULL: off */
	struct ep_guard *guard;	   /* NULL: nobody asked for dumps */
	atomic_bool furnished;	   /* created: there is something to dump */
	pthread_mutex_t dump_lock; /* held while one is written */
	struct ep_page page;
	struct ep_pool pool; /* memory of handles: freed only at the end */

	pthread_mutex_t lock; /* handles, windows and pool; never held in an operation */
	int handles;
	int staged;

	atomic_int async_flag;
	atomic_int error;	    /* negative errno, 0 none; written under the lock with: */
	pthread_mutex_t error_lock; /* the next three */
	struct ep_blame blame;
	atomic_bool told; /* a caller has the error: it stays as it is */
	char error_text[512];
	struct ncclEpGroup *retired; /* list of retire.c */
};

static inline bool ep_group_ht(const struct ncclEpGroup *group)
{
	return group->cfg.algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT;
}

/* Near: ranks that a rank maps; far: those it does not. Of the rank that has most of them. */
uint32_t ep_group_near(const struct ncclEpGroup *group);
uint32_t ep_group_far(const struct ncclEpGroup *group);

/*
 * Failures that show after the call that caused them returned (section 3 of the contract): flags fail no call, an error
 * fails every later call on the group.
 */

/* 0, or the group's error with its message: every call on the group starts with it. */
int ep_group_check(struct ncclEpGroup *group);
/* The first error stays, as what follows are its consequences, unless there is stronger evidence against another rank
 * before a caller was told. */
void ep_group_set_error(struct ncclEpGroup *group, int err, struct ep_blame blame, const char *message);
/* Whether the group has an error that only ncclEpGroupDestroy ends. */
bool ep_group_failed(struct ncclEpGroup *group);

/* The same on all ranks of a group, and another for every group. */
uint32_t ep_group_key(const struct ncclEpGroup *group);
/* A word of the group's device memory, now: waits for no stream. */
int ep_group_peek(const struct ncclEpGroup *group, const uint64_t *word, uint64_t deadline, uint64_t *out);

/* A failure of this rank alone in something collective: the others are told, and the group has failed. */
void ep_group_give_up(struct ncclEpGroup *group, int rc);
/* The error of a collective step of a call that began then, with its cause where one is known. The communicator's
 * ranks ping each other all the time, those of the group only once its own mesh is up: before that there is who came
 * last, and that rank may have waited for another. */
int ep_group_explain(struct ncclEpGroup *group, uint64_t begun, int rc);

/* From any thread; arg is the group. A peer is dead (bootstrap), lost (net), or this rank's net moves nothing. */
void ep_group_rank_dead(void *arg, int rank, struct ep_blame blame, const char *why);
void ep_group_rank_lost(void *arg, int rank, const char *why);
void ep_group_net_failed(void *arg, int err, const char *why);

/* A code of ncclEpGetAsyncError (nccl_ep_ext.h) raised by kernels or by the host; 0: none. */
int ep_group_flag(const struct ncclEpGroup *group);
/* Forgets flags and error; -EP_EUSAGE when the group cannot go on. */
int ep_group_clear(struct ncclEpGroup *group);

#endif
