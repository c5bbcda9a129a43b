/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/guard.h"

#include <pthread.h>
#include <stdlib.h>

#include "plugin/boot/id.h"
#include "util/clock.h"
#include "util/error.h"

#define POLL_MS 100 /* a kernel's report in pinned memory wakes nobody */

struct ep_guard {
	bool (*due)(void *arg);
	void (*report)(void *arg);
	void *arg;
	pthread_t thread;
	pthread_mutex_t lock; /* of the next two */
	pthread_cond_t changed;
	bool woken, end;
	pthread_mutex_t report_lock; /* held while a report is made */
	bool reported;
};

void ep_guard_report(struct ep_guard *guard)
{
	if (!guard)
		return;
	pthread_mutex_lock(&guard->report_lock);
	if (!guard->reported)
		guard->report(guard->arg);
	guard->reported = true;
	pthread_mutex_unlock(&guard->report_lock);
}

void ep_guard_again(struct ep_guard *guard)
{
	if (!guard)
		return;
	pthread_mutex_lock(&guard->report_lock);
	guard->reported = false;
	pthread_mutex_unlock(&guard->report_lock);
}

/* Until the next poll is due, or somebody wakes it; whether the thread is to end. */
static bool rest(struct ep_guard *guard)
{
	struct timespec until = ep_timespec(ep_deadline_ms(POLL_MS));
	bool end;

	pthread_mutex_lock(&guard->lock);
	while (!guard->woken && !guard->end && !pthread_cond_timedwait(&guard->changed, &guard->lock, &until))
		;
	guard->woken = false;
	end = guard->end;
	pthread_mutex_unlock(&guard->lock);
	return end;
}

static void *guarding(void *arg)
{
	struct ep_guard *guard = arg;
	bool end;

	pthread_setname_np(pthread_self(), "ep-guard");
	do {
		end = rest(guard);
		if (guard->due(guard->arg))
			ep_guard_report(guard);
	} while (!end);
	return NULL;
}

int ep_guard_open(bool (*due)(void *arg), void (*report)(void *arg), void *arg, struct ep_guard **out)
{
	struct ep_guard *guard = EP_CALLOC(EP_GROUP, 1, sizeof(*guard), "a guard");
	pthread_condattr_t attr;
	int rc;

	if (!guard)
		return -ENOMEM;
	guard->due = due;
	guard->report = report;
	guard->arg = arg;
	pthread_mutex_init(&guard->lock, NULL);
	pthread_mutex_init(&guard->report_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&guard->changed, &attr);
	pthread_condattr_destroy(&attr);
	rc = ep_boot_thread(&guard->thread, guarding, guard, false);
	if (rc) {
		free(guard);
		return EP_FAIL(EP_GROUP, -rc, "no thread to watch a group: raise the limit of processes (ulimit -u)");
	}
	*out = guard;
	return 0;
}

static void tell(struct ep_guard *guard, bool *what)
{
	pthread_mutex_lock(&guard->lock);
	*what = true;
	pthread_cond_signal(&guard->changed);
	pthread_mutex_unlock(&guard->lock);
}

void ep_guard_wake(struct ep_guard *guard)
{
	if (guard)
		tell(guard, &guard->woken);
}

void ep_guard_stop(struct ep_guard *guard)
{
	if (!guard)
		return;
	tell(guard, &guard->end);
	pthread_join(guard->thread, NULL);
}

void ep_guard_free(struct ep_guard *guard)
{
	if (!guard)
		return;
	pthread_cond_destroy(&guard->changed);
	pthread_mutex_destroy(&guard->lock);
	pthread_mutex_destroy(&guard->report_lock);
	free(guard);
}
