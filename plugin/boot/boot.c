/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/boot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/boot/id.h"
#include "plugin/boot/mac.h"
#include "plugin/boot/mesh.h"
#include "plugin/boot/notice.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

/* The service thread keeps all deadlines; this covers one that is not scheduled at all. */
#define OVERTIME_MS 10000

static void *service(void *arg)
{
	struct ep_boot *b = arg;

	pthread_setname_np(pthread_self(), "ep-boot");
	pthread_mutex_lock(&b->lock);
	while (b->phase != EP_LEAVING || !ep_mesh_left(b)) {
		int rc = ep_loop_turn(&b->loop, ep_mesh_tick(b), &b->lock);

		if (rc) {
			ep_endpoint_fail(b, EP_EINTERNAL, b->rank, "the event loop of rank %u failed: %s", b->rank,
					 strerror(-rc));
			break;
		}
		ep_notice_callbacks(b);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

/* Waits for a change of state; -ETIMEDOUT at the deadline. */
static int wait_change(struct ep_boot *b, uint64_t deadline)
{
	struct timespec t = ep_timespec(deadline);

	return -pthread_cond_timedwait(&b->cond, &b->lock, &t);
}

static int sync_init(struct ep_boot *b)
{
	pthread_condattr_t attr;
	int rc = pthread_mutex_init(&b->lock, NULL);

	if (rc)
		return -rc;
	rc = pthread_condattr_init(&attr);
	if (rc)
		goto destroy_lock;
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	rc = pthread_cond_init(&b->cond, &attr);
	pthread_condattr_destroy(&attr);
	if (!rc)
		return 0;
destroy_lock:
	pthread_mutex_destroy(&b->lock);
	return -rc;
}

/* After the loop and the gather are freed. */
static void boot_free(struct ep_boot *b)
{
	while (b->notices) {
		struct ep_blob *blob = b->notices;

		b->notices = blob->next;
		ep_blob_put(blob);
	}
	ep_fd_free(b);
	pthread_cond_destroy(&b->cond);
	pthread_mutex_destroy(&b->lock);
	ep_wipe(b->secret, sizeof(b->secret));
	free(b->state);
	free(b->left_seq);
	free(b->peers);
	free(b);
}

static int boot_alloc(const struct ep_boot_opts *o, struct ep_boot **out)
{
	struct ep_boot *b = EP_CALLOC(EP_BOOT, 1, sizeof(*b), "an endpoint");
	int rc;

	if (!b)
		return -ENOMEM;
	rc = sync_init(b);
	if (rc) {
		free(b);
		return EP_FAIL(EP_BOOT, -rc, "rank %d cannot create its lock: %s", o->rank, strerror(-rc));
	}
	b->pid = getpid();
	memcpy(b->secret, o->id->secret, sizeof(b->secret));
	b->rank = (uint32_t)o->rank;
	b->nranks = (uint32_t)o->nranks;
	b->self.rank = b->rank;
	b->timeout_ms = o->timeout_ms ? o->timeout_ms : (int)ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS);
	b->survive = o->survive;
	b->gone_fn = o->gone;
	b->gone_ctx = o->gone_ctx;
	b->deadline = ep_deadline_ms(b->timeout_ms);
	b->host = EP_NO_RANK;
	b->failed_rank = EP_NO_RANK;
	b->left_first = UINT64_MAX;
	b->end_seq = UINT64_MAX;
	b->state = EP_CALLOC(EP_BOOT, b->nranks, sizeof(*b->state), "the states of all ranks");
	b->left_seq = EP_CALLOC(EP_BOOT, b->nranks, sizeof(*b->left_seq), "the states of all ranks");
	if (!b->state || !b->left_seq) {
		boot_free(b);
		return -ENOMEM;
	}
	memset(b->left_seq, 0xff, b->nranks * sizeof(*b->left_seq));
	*out = b;
	return 0;
}

static int meet(struct ep_boot *b)
{
	uint64_t deadline = b->deadline + OVERTIME_MS * 1000000ull;
	int rc = 0;

	pthread_mutex_lock(&b->lock);
	while (b->phase == EP_MEETING && !b->err && !rc)
		rc = wait_change(b, deadline);
	if (b->err)
		rc = EP_FAIL(EP_BOOT, b->err, "%s", b->why);
	else if (rc)
		rc = EP_FAIL(EP_BOOT, EP_ETIMEOUT, "rank %u: the bootstrap did not finish in time", b->rank);
	pthread_mutex_unlock(&b->lock);
	return rc;
}

/* To repair the mesh after deaths every rank needs the address of every other. */
static int learn_peers(struct ep_boot *b)
{
	struct ep_peer *peers = EP_CALLOC(EP_BOOT, b->nranks, sizeof(*peers), "the addresses of all ranks");
	int rc;

	if (!peers)
		return -ENOMEM;
	rc = ep_boot_allgather(b, &b->self, sizeof(b->self), peers);
	if (rc) {
		free(peers);
		return rc;
	}
	pthread_mutex_lock(&b->lock);
	b->peers = peers;
	pthread_mutex_unlock(&b->lock);
	return 0;
}

int ep_boot_open(const struct ep_boot_opts *opts, struct ep_boot **out)
{
	struct ep_boot *b = NULL;
	int rc;

	if (!opts || !out || !opts->id)
		return EP_FAIL(EP_BOOT, EP_EARG, "ep_boot_open: opts, id and out must not be NULL");
	if (opts->nranks < 1 || opts->nranks > EP_BOOT_MAX_RANKS || opts->rank < 0 || opts->rank >= opts->nranks)
		return EP_FAIL(EP_BOOT, EP_EARG, "invalid rank %d of %d: ranks are 0 to n - 1, and n is 1 to %d",
			       opts->rank, opts->nranks, EP_BOOT_MAX_RANKS);
	if (opts->timeout_ms < 0)
		return EP_FAIL(EP_BOOT, EP_EARG, "invalid timeout: %d ms", opts->timeout_ms);
	rc = ep_boot_id_check(opts->id);
	if (!rc)
		rc = ep_mac_check();
	if (rc)
		return rc;
	rc = boot_alloc(opts, &b);
	if (rc)
		goto abandon;
	rc = ep_mesh_start(b, opts->id);
	if (rc)
		goto free_boot;
	rc = ep_boot_thread(&b->thread, service, b, false);
	if (rc) {
		rc = EP_FAIL(EP_BOOT, -rc, "rank %d cannot start its service thread: %s", opts->rank, strerror(-rc));
		goto free_mesh;
	}
	rc = meet(b);
	if (!rc && b->survive)
		rc = learn_peers(b);
	if (rc) {
		ep_boot_close(b);
		return rc;
	}
	pthread_mutex_lock(&b->lock);
	b->opened = true;
	ep_loop_wake(&b->loop); /* for deaths noticed before */
	pthread_mutex_unlock(&b->lock);
	*out = b;
	return 0;
free_mesh:
	ep_gather_free(&b->gather);
	ep_loop_free(&b->loop);
free_boot:
	boot_free(b);
abandon: /* the root knows nothing of this rank yet */
	ep_boot_id_abandon(opts->id, opts->rank, -rc, ep_last_error());
	return rc;
}

void ep_boot_close(struct ep_boot *b)
{
	if (!b || b->pid != getpid())
		return;
	pthread_mutex_lock(&b->lock);
	ep_mesh_leave(b);
	ep_loop_wake(&b->loop);
	pthread_mutex_unlock(&b->lock);
	pthread_join(b->thread, NULL);
	ep_gather_free(&b->gather);
	ep_loop_free(&b->loop);
	boot_free(b);
}

/* In a collective, with the lock held: until it is complete or has failed. */
static int await(struct ep_boot *b)
{
	uint64_t deadline = ep_deadline_ms(b->timeout_ms);
	char missing[128], why[EP_WHY_MAX];
	int rc = 0;

	while (!ep_gather_done(&b->gather) && !b->err && !rc)
		rc = wait_change(b, deadline);
	if (ep_gather_done(&b->gather))
		return 0;
	if (!b->err) {
		uint32_t n = ep_gather_missing(&b->gather, missing, sizeof(missing));

		snprintf(why, sizeof(why), "collective %llu timed out after %d ms, %u of %u ranks are missing: rank %s",
			 (unsigned long long)b->gather.seq, b->timeout_ms, n, b->nranks, missing);
		ep_mesh_give_up(b, EP_ETIMEOUT, why);
		ep_loop_wake(&b->loop);
	}
	return -b->err;
}

int ep_boot_allgather(struct ep_boot *b, const void *mine, size_t n, void *all)
{
	int rc;

	if (b->pid != getpid())
		return EP_FAIL(EP_BOOT, EP_EUSAGE, "rank %u: a forked child cannot use its parent's communicator",
			       b->rank);
	if (n && (!mine || !all))
		return EP_FAIL(EP_BOOT, EP_EARG, "rank %u: gather of %zu bytes with a NULL buffer", b->rank, n);
	pthread_mutex_lock(&b->lock);
	if (b->busy) {
		rc = EP_FAIL(EP_BOOT, EP_EUSAGE, "rank %u is already in a collective", b->rank);
		goto unlock;
	}
	rc = -b->err;
	if (!rc) {
		b->busy = true;
		rc = ep_mesh_begin(b, mine, n);
		ep_loop_wake(&b->loop);
		if (!rc)
			rc = await(b);
		else
			rc = -b->err;
		if (!rc)
			ep_gather_end(&b->gather, all);
		b->busy = false;
	}
	if (rc)
		rc = EP_FAIL(EP_BOOT, -rc, "%s", b->why);
unlock:
	pthread_mutex_unlock(&b->lock);
	return rc;
}

int ep_boot_barrier(struct ep_boot *b)
{
	return ep_boot_allgather(b, NULL, 0, NULL);
}

int ep_boot_failed(struct ep_boot *b, int *rank, char *why, size_t size)
{
	int rc = -ENOENT;

	pthread_mutex_lock(&b->lock);
	if (b->failed_rank != EP_NO_RANK) {
		*rank = (int)b->failed_rank;
		snprintf(why, size, "%s", b->failed_why);
		rc = 0;
	}
	pthread_mutex_unlock(&b->lock);
	return rc;
}

bool ep_boot_alive(struct ep_boot *b, int rank)
{
	bool alive = false;

	if (rank < 0 || (uint32_t)rank >= b->nranks)
		return false;
	pthread_mutex_lock(&b->lock);
	alive = b->state[rank] < EP_RANK_LEFT;
	pthread_mutex_unlock(&b->lock);
	return alive;
}

void ep_boot_parted(struct ep_boot *b, int peer, const char *why)
{
	struct ep_frame f = { .type = EP_F_PARTED };
	char message[EP_WHY_MAX];

	if (!b || b->pid != getpid() || peer < 0 || (uint32_t)peer >= b->nranks)
		return;
	f.rank = b->rank;
	f.seq = (uint64_t)peer;
	snprintf(message, sizeof(message), "rank %u lost rank %d: %s", b->rank, peer, why);
	pthread_mutex_lock(&b->lock);
	ep_notice_parted(b, &f, message, NULL);
	ep_loop_wake(&b->loop);
	pthread_mutex_unlock(&b->lock);
}

void ep_boot_abort(struct ep_boot *b, int err, const char *message)
{
	if (!b || b->pid != getpid())
		return;
	pthread_mutex_lock(&b->lock);
	ep_mesh_give_up(b, err > 0 && err < 4096 ? err : EP_EREMOTE, message ? message : "no reason given");
	ep_loop_wake(&b->loop);
	pthread_mutex_unlock(&b->lock);
}
