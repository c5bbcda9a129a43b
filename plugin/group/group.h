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
#include "plugin/ht/reach.h"
#include "plugin/link/link.h"

/* ncclEpGroupConfig_t after the checks: fields a short struct lacks are zero, enums' AUTO is resolved where the
 * contract says to what. Compared between the ranks byte for byte, so it has no padding and no pointers. */
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
	uint32_t pad;
};
_Static_assert(sizeof(struct ep_group_cfg) == 72, "no padding");

struct ncclEpGroup {
	struct ep_group_cfg cfg;
	int rank, nranks;
	int experts_per_rank; /* El */
	uint64_t timeout_ns;  /* of every wait: variable, else config, else 100 s */

	struct ep_comm comm;
	struct ep_boot *boot;
	struct ep_topo topo;
	struct ep_dev *dev;
	void *stream; /* for set-up; one per group: a GPU's queues are few, and two streams in one wait for each other
		       */
	struct ep_window control;      /* never moves */
	struct ep_window_list payload; /* grows; old ones stay until the end */

	struct ep_uplink *uplink; /* to ranks that are not mapped; NULL: all are */
	struct ep_reach *reach;	  /* HT: tensors of other processes; may be NULL */
	struct ep_mem state;	  /* counters and epochs of the kernels; this rank's own */
	struct ep_page page;
	struct ep_pool pool; /* memory of handles: freed only at the end */

	pthread_mutex_t lock; /* handles, windows and pool; never held in an operation */
	int handles;
	int staged;

	/* Late failures, see section 3 of the contract: flags fail no call, an error fails all later ones. */
	atomic_int async_flag;
	atomic_int error; /* negative errno, 0 none; error_text is written before it (E1, release) */
	pthread_mutex_t error_lock;
	char error_text[512];
};

/* Collective. A rank whose own checks failed takes part all the same, with check_rc (a negative errno, sentence in
 * ep_last_error()), so that every rank gets the error instead of waiting for it. */
int ep_group_create(ncclComm_t comm, const struct ep_group_cfg *cfg, const ncclEpAllocConfig_t *alloc, int check_rc,
		    struct ncclEpGroup **out);

/* Collective. Everything is released whatever the result says. -EP_EUSAGE (and nothing done) while handles live. */
int ep_group_destroy(struct ncclEpGroup *group);

/* Bytes a handle needs: of the payload window, and of one buffer each of what the net writes, and reads for one rank.
 */
struct ep_group_need {
	size_t window;
	size_t far_window, far_send;
};

/* Whether the group has as much. */
bool ep_group_holds(const struct ncclEpGroup *group, const struct ep_group_need *need);
/* Collective when it has not (the same on all ranks by construction), local otherwise. key is what the ranks must agree
 * on; a difference is -EP_EARG on all of them. An explicit rdma_buffer_size never grows. */
int ep_group_reserve(struct ncclEpGroup *group, const struct ep_group_need *need, const void *key, size_t key_size);

/* Ranks a rank maps, and those it does not: of the rank that has most of them. */
uint32_t ep_group_near(const struct ncclEpGroup *group);
uint32_t ep_group_far(const struct ncclEpGroup *group);

/* From any thread: a rank is out of reach, or nothing of this rank moves any more. */
void ep_group_rank_lost(struct ncclEpGroup *group, int rank, const char *why);
void ep_group_lost(struct ncclEpGroup *group, int err, const char *why);

/* 0, or the late error of the group with its sentence: every call on the group starts with it. */
int ep_group_check(struct ncclEpGroup *group);
void ep_group_set_error(struct ncclEpGroup *group, int err, const char *sentence);

#endif
