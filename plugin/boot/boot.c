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
#include "plugin/boot/silence.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

/* The service thread keeps the deadline of the meeting; this covers one that is not scheduled at all. */
#define OVERTIME_MS 800
/* After a timeout, for stronger evidence to arrive. */
#define EVIDENCE_MS 250
/* Between pings; the upper bound keeps NAT and firewalls from forgetting idle edges, too. */
#define PING_MIN_MS 20
#define PING_MAX_MS 15000

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
	free(b->silence);
	free(b->state);
	free(b->left_seq);
	free(b->peers);
	free(b);
}

/* A quarter of the shortest wait: silence is known after half of it, in time for the message of a timeout. */
static uint64_t ping_ns(const struct ep_boot_opts *o, int timeout_ms)
{
	uint64_t ms = (uint64_t)timeout_ms / 4;

	if (o->wait_ns && o->wait_ns / 4000000 < ms)
		ms = o->wait_ns / 4000000;
	return (ms < PING_MIN_MS ? PING_MIN_MS : ms > PING_MAX_MS ? PING_MAX_MS : ms) * 1000000;
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
	b->limit = o->deadline;
	b->deadline = ep_endpoint_deadline(b);
	b->ping_ns = ping_ns(o, b->timeout_ms);
	b->host = o->maker > 0 ? (uint32_t)o->maker - 1 : EP_NO_RANK;
	b->failed.rank = -1;
	b->left_first = UINT64_MAX;
	b->end_seq = UINT64_MAX;
	b->state = EP_CALLOC(EP_BOOT, b->nranks, sizeof(*b->state), "the states of all ranks");
	b->left_seq = EP_CALLOC(EP_BOOT, b->nranks, sizeof(*b->left_seq), "the states of all ranks");
	b->silence = EP_CALLOC(EP_BOOT, b->nranks, sizeof(*b->silence), "the states of all ranks");
	if (!b->state || !b->left_seq || !b->silence) {
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

/* The block of a rank that died before it published its address is empty. One with a false address counts as dead. */
static void peer_check(struct ep_boot *b, uint32_t r, struct ep_peer *peer)
{
	struct ep_frame f = { .type = EP_F_GONE, .rank = r };
	char why[EP_WHY_MAX];

	if (r == b->rank || ep_peer_ok(peer, r))
		return;
	*peer = (struct ep_peer){ .rank = r };
	snprintf(why, sizeof(why), "rank %u violated the bootstrap protocol (seen by rank %u: invalid address)", r,
		 b->rank);
	ep_notice_gone(b, &f, why, NULL);
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
	for (uint32_t r = 0; r < b->nranks; r++)
		peer_check(b, r, &peers[r]);
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
	ep_local_add(b);
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
	ep_local_remove(b);
	pthread_mutex_lock(&b->lock);
	ep_mesh_leave(b);
	ep_loop_wake(&b->loop);
	pthread_mutex_unlock(&b->lock);
	pthread_join(b->thread, NULL);
	ep_gather_free(&b->gather);
	ep_loop_free(&b->loop);
	boot_free(b);
}

/* ---- evidence; all with the lock held ---- */

/* The strongest there is, if stronger than `than`. */
static bool stronger(const struct ep_boot *b, enum ep_evidence than, struct ep_blame *blame, char *why, size_t size)
{
	char silent[EP_WHY_MAX];
	int rank;

	/* With survive the dead are excused: a wait that fails fails because of another rank. */
	if (b->err && b->blame.evidence > than && b->blame.evidence >= b->failed.evidence) {
		*blame = b->blame;
		snprintf(why, size, "%s", b->why);
		return true;
	}
	/* Whoever gives up says why, and leaves: what the net has lost then is no evidence. */
	if (!b->survive && b->failed.evidence > EP_EV_MISSING &&
	    (b->failed.evidence > EP_EV_SILENT || than == EP_EV_LOST) &&
	    (b->failed.evidence > than || than == EP_EV_LOST)) {
		*blame = b->failed;
		snprintf(why, size, "%s", b->failed_why);
		return true;
	}
	rank = than < EP_EV_SILENT ? ep_silence_find(b, silent, sizeof(silent)) : -1;
	if (rank < 0)
		return false;
	*blame = (struct ep_blame){ rank, EP_EV_SILENT };
	snprintf(why, size, "%s", silent);
	return true;
}

/* Waits for it for a moment; not if a collective completes meanwhile. */
static bool evidence(struct ep_boot *b, enum ep_evidence than, struct ep_blame *blame, char *why, size_t size)
{
	uint64_t until = ep_deadline_ms(EVIDENCE_MS);
	int rc = b->judged; /* it has waited before */

	while (!stronger(b, than, blame, why, size)) {
		if (rc || than == EP_EV_CERTAIN || b->nranks == 1 || (b->busy && ep_gather_done(&b->gather)))
			return false;
		rc = wait_change(b, until);
	}
	return true;
}

/* Once: the failure that later calls report, too, is blamed on whoever the evidence is against. */
static void judge(struct ep_boot *b)
{
	char why[EP_WHY_MAX], all[2 * EP_WHY_MAX + 2];
	struct ep_blame blame;

	if (b->judged)
		return;
	if (b->blame.evidence <= EP_EV_MISSING && evidence(b, b->blame.evidence, &blame, why, sizeof(why))) {
		snprintf(all, sizeof(all), "%s: %s", why, b->why);
		ep_endpoint_blame(b, b->err, blame, all);
	}
	b->judged = true;
}

/* ---- collectives ---- */

static void timed_out(struct ep_boot *b, uint64_t begun)
{
	char missing[128], why[EP_WHY_MAX], text[2 * EP_WHY_MAX];
	uint32_t n = ep_gather_missing(&b->gather, missing, sizeof(missing));
	struct ep_blame blame = { -1, EP_EV_MISSING };
	char both[3 * EP_WHY_MAX + 2];
	bool found;
	int at;

	if (b->limit && b->limit < begun + (uint64_t)b->timeout_ms * 1000000)
		begun = b->limit - (uint64_t)b->timeout_ms * 1000000; /* the call's */
	at = snprintf(text, sizeof(text), "collective %llu of rank %u timed out after %llu ms",
		      (unsigned long long)b->gather.seq, b->rank,
		      (unsigned long long)((ep_now_ns() - begun) / 1000000));
	found = evidence(b, EP_EV_MISSING, &blame, why, sizeof(why));
	if (b->err || ep_gather_done(&b->gather))
		return;
	b->judged = true;
	if (found) {
		snprintf(both, sizeof(both), "%s: %s", why, text);
		ep_mesh_give_up(b, EP_ETIMEOUT, blame, both);
	} else {
		blame.rank = n == 1 ? atoi(missing) : -1;
		snprintf(text + at, sizeof(text) - (size_t)at, ", %u of %u ranks are missing: rank %s", n, b->nranks,
			 missing);
		ep_mesh_give_up(b, EP_ETIMEOUT, blame, text);
	}
	ep_loop_wake(&b->loop);
}

/* In a collective, with the lock held: until it is complete or has failed. */
static int await(struct ep_boot *b)
{
	uint64_t begun = ep_now_ns(), deadline = ep_endpoint_deadline(b);
	int rc = 0;

	while (!ep_gather_done(&b->gather) && !b->err && !rc)
		rc = wait_change(b, deadline);
	if (!ep_gather_done(&b->gather) && !b->err)
		timed_out(b, begun);
	return ep_gather_done(&b->gather) ? 0 : -b->err;
}

int ep_boot_allgather(struct ep_boot *b, const void *mine, size_t n, void *all)
{
	int rc;

	if (b->pid != getpid())
		return EP_FAIL(EP_BOOT, EP_EUSAGE, "rank %u: a forked child cannot use its parent's communicator",
			       b->rank);
	if (n && (!mine || !all))
		return EP_FAIL(EP_BOOT, EP_EARG, "rank %u: gather of %zu bytes with a NULL buffer", b->rank, n);
	if (n > ep_gather_max(b->nranks))
		return EP_FAIL(EP_BOOT, EP_EARG, "rank %u: gather of %zu bytes, at most %llu with %u ranks", b->rank, n,
			       (unsigned long long)ep_gather_max(b->nranks), b->nranks);
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
	if (rc) {
		judge(b);
		rc = EP_FAIL(EP_BOOT, b->err, "%s", b->why);
	}
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
	if (b->failed.evidence) {
		*rank = b->failed.rank;
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

void ep_boot_limit(struct ep_boot *b, uint64_t deadline)
{
	pthread_mutex_lock(&b->lock);
	b->limit = deadline;
	pthread_mutex_unlock(&b->lock);
}

uint64_t ep_boot_deadline(struct ep_boot *b)
{
	uint64_t deadline;

	pthread_mutex_lock(&b->lock);
	deadline = ep_endpoint_deadline(b);
	pthread_mutex_unlock(&b->lock);
	return deadline;
}

int ep_boot_evidence(struct ep_boot *b, enum ep_evidence than, struct ep_blame *blame, char *why, size_t size)
{
	bool found;

	if (!b || b->pid != getpid())
		return -ENOENT;
	pthread_mutex_lock(&b->lock);
	found = evidence(b, than, blame, why, size);
	pthread_mutex_unlock(&b->lock);
	return found ? 0 : -ENOENT;
}

/* Whether another rank may be the reason. */
static bool hearsay(int err)
{
	return err == EP_ETIMEOUT || err == EP_EREMOTE;
}

int ep_boot_waited(struct ep_boot *b, uint64_t from, char *why, size_t size)
{
	int rank;

	if (!b || b->pid != getpid())
		return -ENOENT;
	pthread_mutex_lock(&b->lock);
	rank = ep_silence_past(b, from, why, size);
	pthread_mutex_unlock(&b->lock);
	return rank < 0 ? -ENOENT : 0;
}

int ep_boot_reason(struct ep_boot *b, int rc, char *why, size_t size)
{
	struct ep_blame blame;

	return hearsay(-rc) ? ep_boot_evidence(b, EP_EV_MISSING, &blame, why, size) : -ENOENT;
}

int ep_boot_taken(struct ep_boot *b, int rc, char *why, size_t size)
{
	uint64_t limit = 0;

	if (hearsay(-rc) && b && b->pid == getpid()) {
		pthread_mutex_lock(&b->lock);
		limit = b->limit;
		pthread_mutex_unlock(&b->lock);
	}
	return limit ? ep_boot_waited(b, limit - (uint64_t)b->timeout_ms * 1000000, why, size) : -ENOENT;
}

int ep_boot_explain(struct ep_boot *b, int rc)
{
	char why[EP_WHY_MAX];

	if (ep_boot_reason(b, rc, why, sizeof(why)) && ep_boot_taken(b, rc, why, sizeof(why)))
		return rc;
	return EP_BECAUSE(EP_BOOT, rc, why);
}

void ep_boot_accuse(struct ep_boot *b, int err, struct ep_blame blame, const char *message)
{
	if (!b || b->pid != getpid())
		return;
	pthread_mutex_lock(&b->lock);
	/* Without survive one notice fails every rank: a second one with no stronger evidence tells nobody anything,
	 * and if each of R ranks sent one, R * R * log R frames would. */
	if (b->survive || !b->failed.evidence || blame.evidence > b->failed.evidence)
		ep_mesh_give_up(b, err > 0 && err < 4096 ? err : EP_EREMOTE, blame, message);
	ep_loop_wake(&b->loop);
	pthread_mutex_unlock(&b->lock);
}

int ep_boot_accuse_lost(struct ep_boot *b, int rank, const char *message)
{
	int rc = 0;

	if (!b || b->pid != getpid())
		return 0;
	pthread_mutex_lock(&b->lock);
	if (b->failed.evidence) {
		rc = -EALREADY;
	} else if (!b->lost_at) {
		b->lost_at = ep_deadline_ms(EVIDENCE_MS);
		b->lost_rank = rank;
		snprintf(b->lost_why, sizeof(b->lost_why), "%s", message);
		ep_loop_wake(&b->loop);
	}
	pthread_mutex_unlock(&b->lock);
	return rc;
}

void ep_boot_abort(struct ep_boot *b, int err, const char *message)
{
	char why[EP_WHY_MAX];
	struct ep_blame blame;

	if (!b || b->pid != getpid())
		return;
	message = message ? message : "no reason given";
	pthread_mutex_lock(&b->lock);
	blame = (struct ep_blame){ (int)b->rank, hearsay(err) ? EP_EV_MISSING : EP_EV_CERTAIN };
	if (hearsay(err) && stronger(b, EP_EV_MISSING, &blame, why, sizeof(why)))
		message = strstr(message, why) ? message : why;
	pthread_mutex_unlock(&b->lock);
	ep_boot_accuse(b, err, blame, message);
}
