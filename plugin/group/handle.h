/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_HANDLE_H
#define EP_PLUGIN_HANDLE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/args.h"
#include "nccl_ep.h"
#include "plugin/group/call.h"
#include "plugin/group/group.h"

/* LL has two buffers, and a send half keeps one until ncclEpComplete. */
#define EP_STAGED_MAX 2
/* Tensors that a combine may add. */
#define EP_BIASES_MAX ((int)EP_HT_BIASES)

/*
 * One routing and what belongs to it. The host side holds only what an API call decides; everything that may change
 * from launch to launch of a captured graph lives in mem (laid out by plugin/ll/plan.h and plugin/ht/plan.h).
 */
struct ncclEpHandle {
	struct ncclEpGroup *group;
	struct ep_handle_args args;
	int k;	      /* K now: num_topk, else of the last Update; -1 not known */
	size_t t;     /* T of the last Update */
	bool updated; /* since Init */

	ncclEpTensor_t mem; /* [bytes] uint8, the caller's or from the group's pool */
	size_t mem_sizes[1];
	bool mem_owned;

	ncclEpTensor_t topk_idx; /* LL: the caller's buffer, read until combine */
	size_t topk_sizes[2];

	bool dispatched;     /* LL: there is a dispatch to combine */
	uint64_t number;     /* random: tells kernels this handle's memory from the remains of another's */
	uint64_t *waited[2]; /* LL: of dispatches and combines, by rank, what anyEpHandleWaitStats was given */
	unsigned sms[2];     /* of dispatches and combines, what anyEpHandleSms was given */
	unsigned scales;     /* LL: anyEpScales_t of dispatches */
	ncclEpTensor_t bias[EP_BIASES_MAX]; /* HT: what anyEpHandleBias was given */
	size_t bias_sizes[EP_BIASES_MAX][2];
	int biases;
	bool staged;		  /* a send half waits for ncclEpComplete */
	struct ep_ll_args second; /* what its second half will be launched with */
	enum ep_kernel second_kernel;
	unsigned second_sms;
};

/* "LL expert-major" and so on, for messages. */
const char *ep_handle_mode(const struct ncclEpHandle *handle);

/* Collective in LL where the window has to grow. handle_mem has passed its check or is NULL. */
int ep_handle_init(struct ncclEpGroup *group, const struct ep_handle_args *args, const ncclEpTensor_t *handle_mem,
		   size_t mem_size, struct ncclEpHandle **out);
/* -EP_EARG where it has been destroyed; -EP_EUSAGE, and nothing done, while something is staged. */
int ep_handle_destroy(struct ncclEpHandle *handle);
/* Local in LL; HT moves data. */
int ep_handle_update(struct ncclEpHandle *handle, const struct ep_update *update, void *stream);

#endif
