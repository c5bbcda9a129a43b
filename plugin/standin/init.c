/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's calls that create and destroy communicators. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/standin/job.h"
#include "util/error.h"

_Static_assert(sizeof(ncclUniqueId) == sizeof(struct ep_boot_id), "a unique id is a boot id");

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
	struct ep_boot_id id;
	int rc;

	if (!out)
		return (ncclResult_t)ep_result(EP_FAIL(EP_COMM, EP_EARG, "ncclGetUniqueId: uniqueId is NULL"));
	rc = ep_boot_id_create(&id);
	if (!rc)
		memcpy(out, &id, sizeof(*out));
	return (ncclResult_t)ep_result(rc);
}

int ep_sc_config_check(const ncclConfig_t *config, const char *call)
{
	const size_t end = offsetof(ncclConfig_t, blocking) + sizeof(config->blocking);

	if (!config)
		return 0;
	if (config->size < offsetof(ncclConfig_t, blocking) || config->magic != NCCL_API_MAGIC)
		return EP_FAIL(EP_COMM, EP_EARG, "%s: config was not initialized with NCCL_CONFIG_INITIALIZER", call);
	if (config->size >= end && config->blocking != NCCL_CONFIG_UNDEF_INT && (unsigned)config->blocking > 1)
		return EP_FAIL(EP_COMM, EP_EARG, "%s: config.blocking is %d, must be 0 or 1", call, config->blocking);
	return 0;
}

static int init_run(const struct ep_job *job)
{
	return ep_sc_open(&job->init, job->new_comm);
}

static ncclResult_t init_submit(const char *call, ncclComm_t *out, const struct ep_sc_opts *opts,
				const ncclConfig_t *config)
{
	struct ep_job job = { .run = init_run, .key = out, .new_comm = out, .init = *opts };
	int rc = 0;

	if (!out)
		rc = EP_FAIL(EP_COMM, EP_EARG, "%s: comm is NULL", call);
	else if (opts->nranks < 1 || opts->nranks > EP_BOOT_MAX_RANKS)
		rc = EP_FAIL(EP_COMM, EP_EARG, "%s: invalid nranks %d, must be 1 to %d", call, opts->nranks,
			     EP_BOOT_MAX_RANKS);
	else if (opts->rank < 0 || opts->rank >= opts->nranks)
		rc = EP_FAIL(EP_COMM, EP_EARG, "%s: invalid rank %d of %d", call, opts->rank, opts->nranks);
	else
		rc = ep_sc_config_check(config, call);
	/* Not in the job, which may run in a thread with another current device. */
	if (!rc)
		rc = ep_sc_device_pick(&job.init.device);
	if (out)
		*out = NULL;
	return (ncclResult_t)ep_result(ep_job_submit(rc, &job));
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
	struct ep_sc_opts opts = { .id = commId, .rank = rank, .nranks = nranks };

	return init_submit("ncclCommInitRank", comm, &opts, NULL);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config)
{
	struct ep_sc_opts opts = { .id = commId, .rank = rank, .nranks = nranks };

	return init_submit("ncclCommInitRankConfig", comm, &opts, config);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
				      ncclConfig_t *config)
{
	struct ep_sc_opts opts = { .rank = myrank, .nranks = nranks };
	struct ep_job none = { 0 };

	if (!commIds || nId < 1 || nId > nranks) {
		int rc = EP_FAIL(EP_COMM, EP_EARG, "ncclCommInitRankScalable: invalid %d ids at %p for %d ranks", nId,
				 (void *)commIds, nranks);

		return (ncclResult_t)ep_result(ep_job_submit(rc, &none));
	}
	opts.id = commIds[0];
	return init_submit("ncclCommInitRankScalable", newcomm, &opts, config);
}

/* devlist is read only where there are GPUs: a program written for four of them also runs without. */
static int device_of(int index, const int *devlist, struct ep_sc_device *out)
{
	struct ep_sc_device device;
	int count, ordinal, rc = ep_sc_device_pick(&device);

	if (rc)
		return rc;
	if (device.kind != EP_DEV_HOST) {
		rc = ep_dev_row(device.kind)->count(&count);
		if (rc)
			return rc;
		ordinal = devlist ? devlist[index] : index % count;
		if (ordinal < -1 || ordinal >= count)
			return EP_FAIL(EP_COMM, EP_EARG, "ncclCommInitAll: devlist[%d] is %d, but there are %d devices",
				       index, ordinal, count);
		device = ordinal < 0 ? (struct ep_sc_device){ .kind = EP_DEV_HOST }
				     : (struct ep_sc_device){ .kind = device.kind, .ordinal = ordinal };
	}
	*out = device;
	return 0;
}

static int init_all(ncclComm_t *comms, int n, const int *devlist)
{
	struct ep_job *jobs = EP_CALLOC(EP_COMM, (size_t)n, sizeof(*jobs), "ncclCommInitAll");
	struct ep_boot_id id;
	int rc = 0;

	if (!jobs)
		return -ENOMEM;
	for (int i = 0; i < n && !rc; i++) {
		jobs[i] = (struct ep_job){ .run = init_run, .key = &comms[i], .new_comm = &comms[i] };
		jobs[i].init.rank = i;
		jobs[i].init.nranks = n;
		rc = device_of(i, devlist, &jobs[i].init.device);
	}
	if (!rc)
		rc = ep_boot_id_create(&id);
	for (int i = 0; i < n && !rc; i++)
		memcpy(&jobs[i].init.id, &id, sizeof(id));
	if (!rc && (rc = ep_jobs_run(jobs, n)))
		ep_boot_id_abandon(&id, 0, 0, "");
	free(jobs);
	return rc;
}

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
	int rc;

	if (!comm || ndev < 1 || ndev > EP_BOOT_MAX_RANKS)
		return (ncclResult_t)ep_result(
			EP_FAIL(EP_COMM, EP_EARG, "ncclCommInitAll: invalid ndev %d or comm %p", ndev, (void *)comm));
	for (int i = 0; i < ndev; i++)
		comm[i] = NULL;
	rc = init_all(comm, ndev, devlist);
	for (int i = 0; i < ndev && rc; i++)
		if (comm[i]) {
			ep_sc_close(comm[i], "ncclCommInitAll", NULL);
			comm[i] = NULL;
		}
	return (ncclResult_t)ep_result(rc);
}

static int destroy_run(const struct ep_job *job)
{
	return ep_sc_close(job->comm, "ncclCommDestroy", NULL);
}

static int finalize_run(const struct ep_job *job)
{
	return ep_sc_finalize(job->comm);
}

static ncclResult_t end_submit(ncclComm_t comm, const char *call, int (*run)(const struct ep_job *job))
{
	struct ep_job job = { .run = run, .key = comm, .comm = comm };
	struct ncclComm *found;
	int rc;

	if (!comm)
		return ncclSuccess; /* as in NCCL: a split with NCCL_SPLIT_NOCOLOR returns NULL */
	rc = ep_sc_get(comm, call, &found);
	if (!rc)
		ep_sc_put(found);
	return (ncclResult_t)ep_result(ep_job_submit(rc, &job));
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	return end_submit(comm, "ncclCommFinalize", finalize_run);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	return end_submit(comm, "ncclCommDestroy", destroy_run);
}

/* Immediate, in a group too: it is called when something hangs. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	struct ncclComm *found = NULL;
	char why[64];
	int rc;

	if (!comm)
		return ncclSuccess;
	rc = ep_sc_get(comm, "ncclCommAbort", &found);
	if (rc)
		return (ncclResult_t)ep_result(rc);
	snprintf(why, sizeof(why), "rank %d called ncclCommAbort", found->rank);
	ep_sc_put(found);
	return (ncclResult_t)ep_result(ep_sc_close(comm, "ncclCommAbort", why));
}
