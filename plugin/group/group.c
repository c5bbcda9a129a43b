/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/group.h"

#include <stdio.h>
#include <string.h>

#include "plugin/group/algo.h"
#include "plugin/group/guard.h"
#include "util/error.h"

uint32_t ep_group_near(const struct ncclEpGroup *group)
{
	return group->link ? group->link->near : (uint32_t)group->nranks;
}

uint32_t ep_group_far(const struct ncclEpGroup *group)
{
	return group->link ? group->link->far : 0;
}

/* The lock is held. Relaxed, as everywhere: the text is read under the lock. */
static void error_put(struct ncclEpGroup *group, int err, struct ep_blame blame, const char *message)
{
	snprintf(group->error_text, sizeof(group->error_text), "%s", message);
	group->blame = blame;
	atomic_store_explicit(&group->error, -err, memory_order_relaxed);
}

void ep_group_set_error(struct ncclEpGroup *group, int err, struct ep_blame blame, const char *message)
{
	pthread_mutex_lock(&group->error_lock);
	if (!atomic_load_explicit(&group->error, memory_order_relaxed) ||
	    (!atomic_load_explicit(&group->told, memory_order_relaxed) && blame.evidence > group->blame.evidence))
		error_put(group, err, blame, message);
	pthread_mutex_unlock(&group->error_lock);
	ep_guard_wake(group->guard);
}

/* Of a token that no other host can use. */
uint32_t ep_group_key(const struct ncclEpGroup *group)
{
	const struct ep_fd_token *token = &group->topo.rank[0].fds;
	uint32_t key = 0x811c9dc5u;

	for (size_t i = 0; i < sizeof(token->bytes); i++)
		key = (key ^ token->bytes[i]) * 0x01000193u;
	return key;
}

/* By halves, the upper one until it stays: a peek reads 32 bits. */
int ep_group_peek(const struct ncclEpGroup *group, const uint64_t *word, uint64_t deadline, uint64_t *out)
{
	const struct ep_dev_ops *ops = group->dev->ops;
	const uint32_t *half = (const uint32_t *)word;
	uint32_t low, high, again = 0;
	int rc;

	do {
		high = again;
		if ((rc = ops->peek(group->dev, half, deadline, &low)) ||
		    (rc = ops->peek(group->dev, half + 1, deadline, &again)))
			return rc;
	} while (high != again);
	*out = (uint64_t)high << 32 | low;
	return 0;
}

static bool fatal(const struct ncclEpGroup *group, int err)
{
	if (group->cfg.enable_mask)
		return false;
	return err == -EP_EREMOTE || err == -EP_ETIMEOUT || (err && group->algo->fails_all && group->nranks > 1);
}

/*
 * Before a caller is told for the first time: the bootstrap may know better than a kernel or the net who is at fault.
 * The others are told whom this rank blames: they may wait for it in vain.
 */
static void judge(struct ncclEpGroup *group)
{
	char why[sizeof(group->error_text)], text[2 * sizeof(why)];
	struct ep_blame blame;
	int rc;

	pthread_mutex_lock(&group->error_lock);
	blame = group->blame;
	snprintf(text, sizeof(text), "%s", group->error_text);
	rc = atomic_load_explicit(&group->error, memory_order_relaxed);
	pthread_mutex_unlock(&group->error_lock);
	if (!ep_boot_evidence(group->boot, blame.evidence, &blame, why, sizeof(why))) {
		if (!strstr(why, text))
			snprintf(why + strlen(why), sizeof(why) - strlen(why), ": %.*s", (int)sizeof(why) / 2, text);
		pthread_mutex_lock(&group->error_lock);
		error_put(group, -rc, blame, why);
		pthread_mutex_unlock(&group->error_lock);
	}
	pthread_mutex_lock(&group->error_lock);
	blame = group->blame;
	snprintf(text, sizeof(text), "%s", group->error_text);
	pthread_mutex_unlock(&group->error_lock);
	/* Errors of a caller are each rank's own. */
	if (rc == -EP_EREMOTE || rc == -EP_ETIMEOUT)
		ep_boot_accuse(group->boot, -rc, blame, text);
}

int ep_group_check(struct ncclEpGroup *group)
{
	struct ep_blame blame = { group->rank, EP_EV_CERTAIN };
	char text[sizeof(group->error_text)];
	bool told;
	int rc;

	/* Also when there is an error: this rank's own mistake says more than what others make of it. */
	if (group->page.mem.host && !atomic_load_explicit(&group->told, memory_order_relaxed) &&
	    (rc = ep_page_report(&group->page, group->rank, group->timeout_ns, &blame, text, sizeof(text)))) {
		EP_WARN(EP_GROUP, "%s", text);
		ep_group_set_error(group, -rc, blame, text);
	}
	rc = atomic_load_explicit(&group->error, memory_order_relaxed);
	if (!rc)
		return 0;
	told = atomic_load_explicit(&group->told, memory_order_relaxed);
	if (!told && group->boot && fatal(group, rc))
		judge(group);
	if (!told) /* before the caller may end the process */
		ep_guard_report(group->guard);
	pthread_mutex_lock(&group->error_lock);
	atomic_store_explicit(&group->told, true, memory_order_relaxed);
	ep_last_error_set(group->error_text);
	rc = atomic_load_explicit(&group->error, memory_order_relaxed);
	pthread_mutex_unlock(&group->error_lock);
	return rc;
}

bool ep_group_failed(struct ncclEpGroup *group)
{
	if (atomic_load_explicit(&group->error, memory_order_relaxed))
		return ep_group_check(group) != 0; /* and tells the others why */
	return fatal(group, ep_group_check(group));
}

/* The word is 1 + the rank at fault, which kernels report and forward; 0 of no known rank would not abort. */
static void kernels_abort(struct ncclEpGroup *group, int rank)
{
	uint64_t word = 1 + (uint64_t)(rank < 0 ? group->rank : rank);

	__atomic_store_n(&ep_page_words(&group->page)->abort, word, __ATOMIC_RELAXED);
}

/* A loss is reported once: the net and the bootstrap notice it at different times, and the second notice must not set
 * the flag again that the user has cleared. The lock, because they run in different threads. */
static void mask_for_good(struct ncclEpGroup *group, int rank, const char *why)
{
	uint64_t *gone = &ep_page_words(&group->page)->gone[rank];
	bool first;

	pthread_mutex_lock(&group->error_lock);
	first = !__atomic_load_n(gone, __ATOMIC_RELAXED);
	if (first) {
		atomic_store_explicit(&group->async_flag, 1, memory_order_release);
		/* Kernels that wait for it stop, and ncclEpMaskQuery shows it as masked. */
		__atomic_store_n(gone, 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&group->error_lock);
	if (first) {
		EP_WARN(EP_GROUP, "rank %d: masking rank %d: %s", group->rank, rank, why);
		ep_guard_wake(group->guard);
	}
}

/* Runs in the bootstrap's service thread. */
void ep_group_rank_dead(void *arg, int rank, struct ep_blame blame, const char *why)
{
	struct ncclEpGroup *group = arg;

	if (group->cfg.enable_mask) {
		mask_for_good(group, rank, why);
		return;
	}
	ep_group_set_error(group, EP_EREMOTE, blame, why);
	kernels_abort(group, blame.rank);
}

/*
 * Only this rank may have seen it: the others are told. EP_EREMOTE: a kernel gave up a push, because its launch had
 * failed or was aborted, and whom it blamed for that is in its report.
 */
void ep_group_net_failed(void *arg, int err, const char *why)
{
	struct ncclEpGroup *group = arg;
	struct ep_blame blame = { group->rank, EP_EV_CERTAIN };
	char text[sizeof(group->error_text)];
	int rc = err == EP_EREMOTE
			 ? ep_page_report(&group->page, group->rank, group->timeout_ns, &blame, text, sizeof(text))
			 : 0;

	err = rc ? -rc : err;
	why = rc ? text : why;
	ep_group_set_error(group, err, blame, why);
	kernels_abort(group, blame.rank);
	ep_boot_accuse(group->boot, err, blame, why);
}

void ep_group_rank_lost(void *arg, int rank, const char *why)
{
	const struct ep_blame blame = { rank, EP_EV_LOST };
	struct ncclEpGroup *group = arg;

	if (!group->cfg.enable_mask) {
		/* Once a rank has failed the others leave, and the net loses them. */
		if (!ep_boot_accuse_lost(group->boot, rank, why)) {
			ep_group_set_error(group, EP_EREMOTE, blame, why);
			kernels_abort(group, rank);
		}
		return;
	}
	/* Both ends at once: if one waited out its deadline first, the others would mask that one instead. */
	ep_boot_parted(group->boot, rank, why);
	ep_group_rank_dead(group, rank, blame, why);
}

/* Relaxed: nothing else is read on the strength of a flag. */
int ep_group_flag(const struct ncclEpGroup *group)
{
	int flag = atomic_load_explicit(&group->async_flag, memory_order_relaxed);

	for (int i = 1; !flag && group->page.mem.host && i < EP_PAGE_FLAGS; i++)
		if (__atomic_load_n(&ep_page_words(&group->page)->async[i], __ATOMIC_RELAXED))
			flag = i;
	return flag;
}

static void forget(struct ncclEpGroup *group)
{
	struct ep_page_words *page = group->page.mem.host ? ep_page_words(&group->page) : NULL;

	atomic_store_explicit(&group->error, 0, memory_order_relaxed);
	group->blame = (struct ep_blame){ 0 };
	atomic_store_explicit(&group->told, false, memory_order_relaxed);
	atomic_store_explicit(&group->async_flag, 0, memory_order_relaxed);
	if (!page)
		return;
	__atomic_store_n(&page->report.code, 0, __ATOMIC_RELAXED);
	for (int i = 0; i < EP_PAGE_FLAGS; i++)
		__atomic_store_n(&page->async[i], 0, __ATOMIC_RELAXED);
}

int ep_group_clear(struct ncclEpGroup *group)
{
	int rc = 0;

	ep_group_check(group); /* a report of a kernel counts, seen or not */
	pthread_mutex_lock(&group->error_lock);
	/* Relaxed: all writers hold the lock. */
	if (fatal(group, atomic_load_explicit(&group->error, memory_order_relaxed)))
		rc = EP_BAD_USE("ncclEpErrorClear: group: has failed and can only be destroyed: %s", group->error_text);
	else
		forget(group);
	pthread_mutex_unlock(&group->error_lock);
	if (!rc)
		ep_guard_again(group->guard);
	return rc || !group->state.ptr ? rc : group->algo->clear(group);
}

void ep_group_give_up(struct ncclEpGroup *group, int rc)
{
	ep_boot_abort(group->boot, -rc, ep_last_error());
	ep_group_set_error(group, -rc, (struct ep_blame){ group->rank, EP_EV_CERTAIN }, ep_last_error());
}

int ep_group_explain(struct ncclEpGroup *group, uint64_t begun, int rc)
{
	struct ep_boot *boot = group->boot;
	char why[400];
	int rank;

	if (!ep_boot_reason(boot, rc, why, sizeof(why)) || !ep_comm_waited(&group->comm, begun, rc, why, sizeof(why)) ||
	    !ep_boot_taken(boot, rc, why, sizeof(why)))
		rc = EP_BECAUSE(EP_GROUP, rc, why);
	/* With masks exchanges go on without a dead rank, and what fails is whatever misses its part first. */
	if (group->cfg.enable_mask && !ep_boot_failed(boot, &rank, why, sizeof(why)) && !strstr(ep_last_error(), why))
		rc = EP_BECAUSE(EP_GROUP, -EP_EREMOTE, why);
	return rc;
}
