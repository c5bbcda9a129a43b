/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that talk to other ranks. Outside a group they run in the caller; between ncclGroupStart and ncclGroupEnd
 * they are queued, and run at the end in lanes: jobs of one lane in order, lanes side by side, each in a thread. That
 * is what lets one thread be several ranks.
 */
#ifndef EP_PLUGIN_STANDIN_JOB_H
#define EP_PLUGIN_STANDIN_JOB_H

#include <nccl.h>

#include "plugin/standin/coll.h"
#include "plugin/standin/comm.h"

struct ep_job {
	int (*run)(const struct ep_job *job);
	const void *lane; /* the communicator, or where a new one is to be written */
	ncclComm_t comm;  /* looked up again when the job runs: a group may destroy it before */
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

/* Runs or queues it. rc is the result of the caller's checks: a failed one makes the whole group fail, because the
 * other lanes would wait for this rank. */
int ep_job_submit(int rc, const struct ep_job *job);

/* Runs n jobs side by side, whatever group the thread is in; the first error that is not another rank's is returned. */
int ep_jobs_run(const struct ep_job *jobs, int n);

#endif
