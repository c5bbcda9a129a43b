/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "plugin/standin/job.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

enum { COLOR, KEY }; /* indices of struct ep_sc_call's arg */

/* The lowest rank of a color creates the id and distributes it over the parent. */
struct invitation {
	int64_t rc;
	struct ep_boot_id id;
};

/* The new rank is the number of members with a smaller (key, old rank). Returns the lowest old rank. */
static int place(const struct ep_sc_call *all, int nranks, int rank, struct ep_sc_opts *out)
{
	int leader = -1;

	out->rank = out->nranks = 0;
	for (int r = 0; r < nranks; r++) {
		if (all[r].arg[COLOR] != all[rank].arg[COLOR])
			continue;
		if (leader < 0)
			leader = r;
		out->nranks++;
		out->rank +=
			all[r].arg[KEY] < all[rank].arg[KEY] || (all[r].arg[KEY] == all[rank].arg[KEY] && r < rank);
	}
	return leader;
}

/* Inside enter and leave of the parent. opts->nranks stays 0 with NCCL_SPLIT_NOCOLOR. */
static int split_turn(struct ncclComm *comm, const struct ep_job *job, struct ep_sc_opts *opts)
{
	struct ep_sc_call call = { .kind = EP_SC_SPLIT, .arg = { [COLOR] = job->split.color, [KEY] = job->split.key } };
	struct ep_sc_call *all = EP_CALLOC(EP_COMM, (size_t)comm->nranks, sizeof(*all), "ncclCommSplit");
	struct invitation mine = { 0 },
			  *from = EP_CALLOC(EP_COMM, (size_t)comm->nranks, sizeof(*from), "ncclCommSplit");
	int leader, rc;

	if (!all || !from) {
		rc = ep_sc_give_up(comm, -ENOMEM);
		goto out;
	}
	rc = ep_sc_meet(comm, &call, all);
	if (rc)
		goto out;
	leader = place(all, comm->nranks, comm->rank, opts);
	if (leader == comm->rank && job->split.color != NCCL_SPLIT_NOCOLOR)
		mine.rc = ep_boot_id_create(&mine.id);
	rc = ep_boot_allgather(comm->boot, &mine, sizeof(mine), from);
	if (rc) {
		if (leader == comm->rank && !mine.rc)
			ep_boot_id_abandon(&mine.id, comm->rank, -rc, ep_last_error());
		ep_sc_break(comm, rc);
		goto out;
	}
	if (job->split.color == NCCL_SPLIT_NOCOLOR)
		opts->nranks = 0;
	else if (leader == comm->rank)
		rc = (int)mine.rc;
	else if (from[leader].rc)
		rc = EP_FAIL(EP_COMM, EP_EREMOTE, "ncclCommSplit: rank %d could not create an id for color %d", leader,
			     job->split.color);
	memcpy(&opts->id, &from[leader].id, sizeof(opts->id));
out:
	free(from);
	free(all);
	return rc;
}

static int split_run(const struct ep_job *job)
{
	struct ep_sc_opts opts = { .deadline = ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS)) };
	struct ncclComm *comm = NULL;
	uint64_t ticket;
	int rc = ep_sc_get(job->comm, "ncclCommSplit", &comm);

	if (rc)
		return rc;
	opts.device = comm->device;
	rc = ep_sc_ticket(comm, EP_SC_SPLIT, &ticket);
	if (!rc)
		rc = ep_sc_enter(comm, ticket);
	if (!rc) {
		ep_boot_limit(comm->boot, opts.deadline);
		rc = split_turn(comm, job, &opts);
		ep_boot_limit(comm->boot, 0);
		ep_sc_leave(comm);
	}
	/* A rank that did not come to the new one may be known to be dead in the old one. */
	if (!rc && opts.nranks)
		rc = ep_boot_explain(comm->boot, ep_sc_open(&opts, job->new_comm));
	ep_sc_put(comm);
	return rc;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct ep_job job = { .run = split_run, .key = comm, .comm = comm, .new_comm = newcomm };
	struct ncclComm *found;
	int rc = ep_sc_get(comm, "ncclCommSplit", &found);

	if (!rc)
		ep_sc_put(found);
	if (!rc && !newcomm)
		rc = EP_FAIL(EP_COMM, EP_EARG, "ncclCommSplit: newcomm is NULL");
	if (!rc && color < 0 && color != NCCL_SPLIT_NOCOLOR)
		rc = EP_FAIL(EP_COMM, EP_EARG,
			     "ncclCommSplit: invalid color %d, must be 0 or more, or NCCL_SPLIT_NOCOLOR", color);
	if (!rc)
		rc = ep_sc_config_check(config, "ncclCommSplit");
	if (newcomm)
		*newcomm = NULL;
	job.split.color = color;
	job.split.key = key;
	return (ncclResult_t)ep_result(ep_job_submit(rc, &job));
}
