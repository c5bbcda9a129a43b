/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that involve other ranks. Outside a group they run in the caller. Between ncclGroupStart and ncclGroupEnd they
 * are queued and run at the end: jobs with the same key in order, different keys concurrently, each in its own thread,
 * so that one thread can act for several ranks.
 */
#ifndef EP_PLUGIN_STANDIN_JOB_H
#define EP_PLUGIN_STANDIN_JOB_H

#include <nccl.h>

#include "plugin/standin/coll.h"
#include "plugin/standin/comm.h"

struct ep_job {
	int (*run)(const struct ep_job *job);
	const void *key; /* the communicator, or where a new one will be written */
	ncclComm_t comm; /* looked up again when the job runs: an earlier job may have destroyed it */
	ncclComm_t *new_comm;
	union {
		struct ep_sc_opts init;
		struct ep_coll coll;
		struct {
			int color, key;
		} split;
		struct {
			void *base;
			size_t size;
			int flags;
			ncclWindow_t *out;
		} window;
	};
};

/* Runs or queues it. rc is the result of the caller's checks: a failure fails the whole group, as the other ranks would
 * wait for this one. */
int ep_job_submit(int rc, const struct ep_job *job);

/* Runs n jobs concurrently, also inside a group; returns the first error, ncclRemoteError only if there is no other. */
int ep_jobs_run(const struct ep_job *jobs, int n);

#endif
