/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An algorithm is an entry of this table: ep_ll_algo in plugin/ll, ep_ht_algo in plugin/ht. plugin/api.c picks one by
 * config->algorithm and hands it to ep_group_create; below that nobody asks which one it is.
 */
#ifndef EP_PLUGIN_ALGO_H
#define EP_PLUGIN_ALGO_H

#include <stdbool.h>
#include <stddef.h>

#include "plugin/group/call.h"

/* Bytes a handle needs: of the payload window, for rows that arrive over the net, and for rows that leave over it. */
struct ep_need {
	size_t window;
	size_t far_window, far_send;
};

struct ep_algo {
	const char *name;
	const char *mode[4]; /* for messages, by ncclEpLayout_t */
	unsigned sms;	     /* blocks of a launch unless the user says how many; 0: as many as the GPU holds */
	/* Where GPUs of one host do not map each other, its windows are in host memory; else the net connects them. */
	bool host_windows;
	bool throughput; /* rows cross nodes in large puts: the net's limits for those apply */
	bool fails_all;	 /* an error that stops an operation on one rank stops it on all */

	/* ---- of a group ---- */
	size_t (*control_size)(const struct ncclEpGroup *group);
	size_t (*far_size)(const struct ncclEpGroup *group); /* of the words that far ranks write; NULL: none */
	/* Collective, first of all: sets wanted[nranks] for the remote ranks it puts to; a pair does so both ways.
	 * NULL: all of them. */
	int (*wants)(struct ncclEpGroup *group, bool *wanted);
	/* Device state and algo_state. need: in, what the configuration asks for; out, what handles are known to need.
	 */
	int (*open)(struct ncclEpGroup *group, struct ep_need *need);
	/* Ends threads, before the bootstrap closes. */
	void (*stop)(struct ncclEpGroup *group);
	/* After stop: frees algo_state when no kernel runs any more, or leaks what kernels may still use. */
	void (*close)(struct ncclEpGroup *group);
	void (*abandon)(struct ncclEpGroup *group);
	/* Lets kernels report again, after ncclEpErrorClear. */
	int (*clear)(struct ncclEpGroup *group);
	int (*mask)(struct ncclEpGroup *group, const struct ep_mask *mask, void *stream);
	int (*barrier)(struct ncclEpGroup *group, void *stream);

	/* The last operation of which something came from the rank, as this rank sees it; of this rank itself: the last
	 * that has ended. -ENOENT: nothing here tells. Waits for no kernel. */
	int (*heard)(const struct ncclEpGroup *group, int rank, uint64_t deadline, uint64_t *epoch);

	/* ---- of a handle; fn is the API call, for messages ---- */
	int (*mem_size)(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
			size_t *bytes);
	int (*need)(const char *fn, const struct ncclEpGroup *group, const struct ep_handle_args *args,
		    struct ep_need *out);
	int (*update)(struct ncclEpHandle *handle, const struct ep_update *update, void *stream);
	int (*dispatch)(struct ncclEpHandle *handle, const struct ep_dispatch *op, void *stream);
	int (*combine)(struct ncclEpHandle *handle, const struct ep_combine *op, void *stream);
	/* Something is staged on the handle. */
	int (*complete)(struct ncclEpHandle *handle, void *stream);
	/* A dispatch has been received. */
	int (*sources)(struct ncclEpHandle *handle, const struct ep_sources *out, void *stream);
};

/* For operations that an algorithm does not have. */
void ep_algo_no_state(struct ncclEpGroup *group);
int ep_algo_no_mask(struct ncclEpGroup *group, const struct ep_mask *mask, void *stream);
int ep_algo_no_stage(struct ncclEpHandle *handle, void *stream);
int ep_algo_no_sources(struct ncclEpHandle *handle, const struct ep_sources *out, void *stream);

#endif
