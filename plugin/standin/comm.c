/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/standin/comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/boot/topo.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

/* All live communicators. A handle is looked up here before it is dereferenced: one that was destroyed, or belongs to a
 * real NCCL in the same process, is never read. */
static struct {
	pthread_mutex_t lock; /* taken before a communicator's */
	struct ncclComm *head;
} live = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const char *const kind_names[EP_SC_KINDS] = {
	[EP_SC_ALLGATHER] = "ncclAllGather",
	[EP_SC_ALLREDUCE] = "ncclAllReduce",
	[EP_SC_REDUCE_SCATTER] = "ncclReduceScatter",
	[EP_SC_BROADCAST] = "ncclBroadcast",
	[EP_SC_SPLIT] = "ncclCommSplit",
	[EP_SC_WINDOW] = "ncclCommWindowRegister",
};

const char *ep_sc_kind_name(unsigned kind)
{
	return kind < EP_SC_KINDS ? kind_names[kind] : "an unknown call";
}

/* Under live.lock. The link to it, or to NULL. */
static struct ncclComm **live_find(ncclComm_t handle)
{
	struct ncclComm **at = &live.head;

	while (*at && *at != handle)
		at = &(*at)->next;
	return at;
}

static int unknown(ncclComm_t handle, const char *call)
{
	if (!handle)
		return EP_FAIL(EP_COMM, EP_EARG, "%s: comm is NULL", call);
	return EP_FAIL(EP_COMM, EP_EARG, "%s: comm %p is not a live communicator of the stand-in; was it destroyed?",
		       call, (void *)handle);
}

int ep_sc_get(ncclComm_t handle, const char *call, struct ncclComm **out)
{
	struct ncclComm *comm;

	pthread_mutex_lock(&live.lock);
	comm = *live_find(handle);
	if (comm) {
		pthread_mutex_lock(&comm->lock);
		comm->users++;
		pthread_mutex_unlock(&comm->lock);
		*out = comm;
	}
	pthread_mutex_unlock(&live.lock);
	return comm ? 0 : unknown(handle, call);
}

void ep_sc_put(struct ncclComm *comm)
{
	pthread_mutex_lock(&comm->lock);
	comm->users--;
	pthread_cond_broadcast(&comm->moved);
	pthread_mutex_unlock(&comm->lock);
}

bool ep_sc_owns(ncclComm_t handle)
{
	bool yes;

	pthread_mutex_lock(&live.lock);
	yes = *live_find(handle) != NULL;
	pthread_mutex_unlock(&live.lock);
	return yes;
}

int ep_sc_evidence(ncclComm_t handle, char *why, size_t size)
{
	struct ncclComm *comm = NULL;
	struct ep_blame blame;
	int rc = ep_sc_get(handle, "ncclEpStandinQuery", &comm);

	if (rc)
		return -ENOENT;
	rc = ep_boot_evidence(comm->boot, EP_EV_MISSING, &blame, why, size);
	ep_sc_put(comm);
	return rc;
}

int ep_sc_waited(ncclComm_t handle, uint64_t from, char *why, size_t size)
{
	struct ncclComm *comm = NULL;
	int rc = ep_sc_get(handle, "ncclEpStandinQuery", &comm);

	if (rc)
		return -ENOENT;
	rc = ep_boot_waited(comm->boot, from, why, size);
	ep_sc_put(comm);
	return rc;
}

int ep_sc_window_find(ncclWindow_t win, void **base, size_t *size)
{
	int rc = -ENOENT;

	pthread_mutex_lock(&live.lock);
	for (struct ncclComm *comm = live.head; comm && rc; comm = comm->next) {
		pthread_mutex_lock(&comm->lock);
		for (struct ncclWindow_vidmem *w = comm->windows; w; w = w->next)
			if (w == win) {
				*base = w->base;
				*size = w->size;
				rc = 0;
			}
		pthread_mutex_unlock(&comm->lock);
	}
	pthread_mutex_unlock(&live.lock);
	return rc;
}

static uint64_t wait_deadline(void)
{
	return ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS));
}

static bool turn_came(const struct ncclComm *comm, uint64_t ticket)
{
	return comm->serving == ticket || comm->error;
}

static bool drained(const struct ncclComm *comm, uint64_t unused)
{
	(void)unused;
	return comm->serving == comm->tickets || comm->error;
}

static bool left_alone(const struct ncclComm *comm, uint64_t unused)
{
	(void)unused;
	return !comm->users;
}

/* The deadline restarts at every step of any operation: a long one that makes progress does not time out. */
static bool wait_until(struct ncclComm *comm, bool (*done)(const struct ncclComm *, uint64_t), uint64_t arg)
{
	uint64_t deadline = wait_deadline(), seen;
	bool yes;

	pthread_mutex_lock(&comm->lock);
	seen = comm->steps;
	while (!(yes = done(comm, arg)) && ep_now_ns() < deadline) {
		struct timespec until = ep_timespec(deadline);

		pthread_cond_timedwait(&comm->moved, &comm->lock, &until);
		if (comm->steps != seen) {
			seen = comm->steps;
			deadline = wait_deadline();
		}
	}
	pthread_mutex_unlock(&comm->lock);
	return yes;
}

void ep_sc_step(struct ncclComm *comm)
{
	pthread_mutex_lock(&comm->lock);
	comm->steps++;
	pthread_cond_broadcast(&comm->moved);
	pthread_mutex_unlock(&comm->lock);
}

int ep_sc_break(struct ncclComm *comm, int rc)
{
	pthread_mutex_lock(&comm->lock);
	if (!comm->error) {
		comm->error = rc;
		snprintf(comm->text, sizeof(comm->text), "%s", ep_last_error());
		pthread_cond_broadcast(&comm->moved);
	}
	pthread_mutex_unlock(&comm->lock);
	return rc;
}

int ep_sc_give_up(struct ncclComm *comm, int rc)
{
	const struct ep_blame self = { comm->rank, EP_EV_CERTAIN };

	/* A mistake of this rank is remote only to the others, who must not look for another reason. */
	if (rc == -EP_ETIMEOUT || rc == -EP_EREMOTE)
		ep_boot_abort(comm->boot, EP_EREMOTE, ep_last_error());
	else
		ep_boot_accuse(comm->boot, EP_EREMOTE, self, ep_last_error());
	return ep_sc_break(comm, rc);
}

int ep_sc_check(struct ncclComm *comm)
{
	char why[256] = "";
	int rank, rc;

	pthread_mutex_lock(&comm->lock);
	rc = comm->error;
	if (rc)
		ep_last_error_set(comm->text);
	pthread_mutex_unlock(&comm->lock);
	if (rc || ep_boot_failed(comm->boot, &rank, why, sizeof(why)))
		return rc;
	return ep_sc_break(comm, EP_FAIL(EP_COMM, EP_EREMOTE, "rank %d: %s", comm->rank, why));
}

int ep_sc_ticket(struct ncclComm *comm, enum ep_sc_kind kind, uint64_t *out)
{
	bool finalized;

	pthread_mutex_lock(&comm->lock);
	finalized = comm->finalized;
	if (!finalized)
		*out = comm->tickets++;
	pthread_mutex_unlock(&comm->lock);
	if (finalized)
		return EP_FAIL(EP_COMM, EP_EUSAGE, "%s: rank %d has finalized this communicator", ep_sc_kind_name(kind),
			       comm->rank);
	return 0;
}

int ep_sc_enter(struct ncclComm *comm, uint64_t ticket)
{
	int rc = ep_sc_check(comm);

	if (rc)
		return rc;
	if (wait_until(comm, turn_came, ticket))
		return ep_sc_check(comm);
	return ep_sc_give_up(comm, EP_FAIL(EP_COMM, EP_ETIMEOUT,
					   "rank %d: an earlier operation on the communicator did not finish; is its "
					   "stream blocked?",
					   comm->rank));
}

void ep_sc_leave(struct ncclComm *comm)
{
	pthread_mutex_lock(&comm->lock);
	comm->serving++;
	comm->steps++;
	pthread_cond_broadcast(&comm->moved);
	pthread_mutex_unlock(&comm->lock);
}

static int mismatch(const struct ncclComm *comm, const struct ep_sc_call *a, int rank, const struct ep_sc_call *b)
{
	return EP_FAIL(EP_COMM, EP_EUSAGE,
		       "rank %d calls %s (count %" PRIu64
		       ", datatype %u, op %u, root %d) but rank %d calls %s (%" PRIu64
		       ", %u, %u, %d): all ranks must make the same calls in the same order",
		       comm->rank, ep_sc_kind_name(a->kind), a->count, a->dtype, a->op, a->root, rank,
		       ep_sc_kind_name(b->kind), b->count, b->dtype, b->op, b->root);
}

int ep_sc_meet(struct ncclComm *comm, const struct ep_sc_call *mine, struct ep_sc_call *all)
{
	struct ep_sc_call *calls = all;
	int rc;

	if (!calls)
		calls = EP_CALLOC(EP_COMM, (size_t)comm->nranks, sizeof(*calls), "the calls of all ranks");
	if (!calls)
		return ep_sc_give_up(comm, -ENOMEM);
	rc = ep_boot_allgather(comm->boot, mine, sizeof(*mine), calls);
	if (rc)
		ep_sc_break(comm, rc);
	for (int r = 0; r < comm->nranks && !rc; r++)
		if (memcmp(mine, &calls[r], offsetof(struct ep_sc_call, arg)))
			rc = mismatch(comm, mine, r, &calls[r]);
	if (!all)
		free(calls);
	return rc;
}

/* The ranks of this node as a team; this rank alone if theirs are not consecutive. */
static int lsa_find(struct ncclComm *comm)
{
	struct ep_topo topo;
	int first = comm->rank, last = comm->rank;
	/* For the nodes only: the group describes its device itself. */
	struct ep_topo_dev dev = { .kind = (int32_t)comm->device.kind, .ordinal = comm->device.ordinal };
	int rc = ep_topo_build(comm->boot, comm->rank, comm->nranks, &dev, &topo);

	if (rc)
		return rc;
	while (first > 0 && topo.rank[first - 1].node == topo.node)
		first--;
	while (last + 1 < topo.nranks && topo.rank[last + 1].node == topo.node)
		last++;
	comm->lsa = (ncclTeam_t){ .nRanks = 1, .stride = 1 };
	if (last - first + 1 == topo.locals)
		comm->lsa = (ncclTeam_t){ .nRanks = topo.locals, .rank = topo.local, .stride = 1 };
	ep_topo_free(&topo);
	return 0;
}

static int comm_alloc(const struct ep_sc_opts *opts, struct ncclComm **out)
{
	struct ncclComm *comm = EP_CALLOC(EP_COMM, 1, sizeof(*comm), "a communicator");
	pthread_condattr_t attr;

	if (!comm)
		return -ENOMEM;
	comm->rank = opts->rank;
	comm->nranks = opts->nranks;
	comm->device = opts->device;
	pthread_mutex_init(&comm->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&comm->moved, &attr);
	pthread_condattr_destroy(&attr);
	*out = comm;
	return 0;
}

static void comm_free(struct ncclComm *comm)
{
	for (struct ncclWindow_vidmem *w = comm->windows, *next; w; w = next) {
		next = w->next;
		free(w);
	}
	ep_boot_close(comm->boot);
	if (comm->stage.host)
		comm->dev->ops->pinned_free(comm->dev, &comm->stage);
	ep_sc_device_close(comm->dev);
	pthread_cond_destroy(&comm->moved);
	pthread_mutex_destroy(&comm->lock);
	free(comm);
}

int ep_sc_open(const struct ep_sc_opts *opts, struct ncclComm **out)
{
	struct ep_boot_id id;
	struct ep_boot_opts boot = { .id = &id,
				     .rank = opts->rank,
				     .nranks = opts->nranks,
				     .deadline = opts->deadline ? opts->deadline : wait_deadline() };
	struct ncclComm *comm = NULL;
	int rc = comm_alloc(opts, &comm);

	memcpy(&id, &opts->id, sizeof(id));
	if (rc) {
		ep_boot_id_abandon(&id, opts->rank, -rc, ep_last_error());
		return rc;
	}
	rc = ep_boot_open(&boot, &comm->boot);
	if (rc)
		goto free_comm;
	/* After the bootstrap, so that a rank whose device fails can tell the others, which would time out. */
	rc = ep_sc_device_open(&comm->device, &comm->dev);
	if (!rc)
		rc = lsa_find(comm);
	if (rc) {
		rc = ep_boot_explain(comm->boot, rc);
		ep_boot_abort(comm->boot, EP_EREMOTE, ep_last_error());
		goto free_comm;
	}
	ep_boot_limit(comm->boot, 0);
	pthread_mutex_lock(&live.lock);
	comm->next = live.head;
	live.head = comm;
	pthread_mutex_unlock(&live.lock);
	EP_INFO(EP_COMM, "stand-in communicator %p: rank %d of %d, device %s %d", (void *)comm, comm->rank,
		comm->nranks, comm->dev->ops->name, comm->device.ordinal);
	*out = comm;
	return 0;
free_comm:
	comm_free(comm);
	return rc;
}

int ep_sc_finalize(ncclComm_t handle)
{
	struct ncclComm *comm = NULL;
	int rc = ep_sc_get(handle, "ncclCommFinalize", &comm);

	if (rc)
		return rc;
	pthread_mutex_lock(&comm->lock);
	comm->finalized = true;
	pthread_mutex_unlock(&comm->lock);
	if (wait_until(comm, drained, 0))
		rc = ep_sc_check(comm);
	else
		rc = ep_boot_explain(comm->boot,
				     EP_FAIL(EP_COMM, EP_ETIMEOUT,
					     "rank %d: ncclCommFinalize timed out waiting for operations", comm->rank));
	ep_sc_put(comm);
	return rc;
}

int ep_sc_close(ncclComm_t handle, const char *call, const char *why)
{
	struct ncclComm **at, *comm;

	pthread_mutex_lock(&live.lock);
	at = live_find(handle);
	comm = *at;
	if (comm)
		*at = comm->next;
	pthread_mutex_unlock(&live.lock);
	if (!comm)
		return unknown(handle, call);
	if (why) {
		ep_last_error_set(why);
		ep_sc_give_up(comm, -EP_EUSAGE);
	}
	if (!wait_until(comm, left_alone, 0)) /* still in use: a leak is better than a crash */
		return EP_FAIL(EP_COMM, EP_ETIMEOUT,
			       "rank %d: %s timed out waiting for operations; leaking the communicator", comm->rank,
			       call);
	comm_free(comm);
	return 0;
}
