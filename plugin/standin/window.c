/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: a handle for user memory, registered by all ranks. The memory stays the caller's; nothing is mapped here. */
#include <stdlib.h>

#include "plugin/standin/job.h"
#include "util/error.h"

static int window_turn(struct ncclComm *comm, const struct ep_job *job)
{
	struct ep_sc_call call = { .kind = EP_SC_WINDOW };
	struct ncclWindow_vidmem *win = EP_CALLOC(EP_COMM, 1, sizeof(*win), "a window");
	int rc;

	if (!win)
		return ep_sc_give_up(comm, -ENOMEM);
	rc = ep_sc_meet(comm, &call, NULL);
	if (rc) {
		free(win);
		return rc;
	}
	*win = (struct ncclWindow_vidmem){ .base = job->window.base,
					   .size = job->window.size,
					   .flags = job->window.flags };
	pthread_mutex_lock(&comm->lock);
	win->next = comm->windows;
	comm->windows = win;
	pthread_mutex_unlock(&comm->lock);
	*job->window.out = win;
	return 0;
}

static int window_run(const struct ep_job *job)
{
	struct ncclComm *comm = NULL;
	uint64_t ticket;
	int rc = ep_sc_get(job->comm, "ncclCommWindowRegister", &comm);

	if (rc)
		return rc;
	rc = ep_sc_ticket(comm, EP_SC_WINDOW, &ticket);
	if (!rc)
		rc = ep_sc_enter(comm, ticket);
	if (!rc) {
		rc = window_turn(comm, job);
		ep_sc_leave(comm);
	}
	ep_sc_put(comm);
	return rc;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)
{
	struct ep_job job = { .run = window_run, .key = comm, .comm = comm };
	struct ncclComm *found;
	int rc = ep_sc_get(comm, "ncclCommWindowRegister", &found);

	if (!rc)
		ep_sc_put(found);
	if (!rc && (!buff || !size || size > UINTPTR_MAX - (uintptr_t)buff))
		rc = EP_FAIL(EP_COMM, EP_EARG, "ncclCommWindowRegister: invalid range of %zu bytes at %p", size, buff);
	if (!rc && !win)
		rc = EP_FAIL(EP_COMM, EP_EARG, "ncclCommWindowRegister: win is NULL");
	if (!rc && (winFlags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)))
		rc = EP_FAIL(EP_COMM, EP_EARG, "ncclCommWindowRegister: unknown flags %#x", (unsigned)winFlags);
	if (win)
		*win = NULL;
	job.window.base = buff;
	job.window.size = size;
	job.window.flags = winFlags;
	job.window.out = win;
	return (ncclResult_t)ep_result(ep_job_submit(rc, &job));
}

/* Under comm->lock. The link to it, or to NULL. */
static struct ncclWindow_vidmem **window_link(struct ncclComm *comm, ncclWindow_t win)
{
	struct ncclWindow_vidmem **at = &comm->windows;

	while (*at && *at != win)
		at = &(*at)->next;
	return at;
}

static int window_unknown(const char *call, ncclWindow_t win)
{
	return EP_FAIL(EP_COMM, EP_EARG, "%s: %p is not a window of this communicator", call, (void *)win);
}

/* Local; immediate in a group too. */
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	struct ncclWindow_vidmem **at, *found;
	struct ncclComm *c = NULL;
	int rc = ep_sc_get(comm, "ncclCommWindowDeregister", &c);

	if (rc)
		return (ncclResult_t)ep_result(rc);
	pthread_mutex_lock(&c->lock);
	at = window_link(c, win);
	found = *at;
	if (found)
		*at = found->next;
	pthread_mutex_unlock(&c->lock);
	ep_sc_put(c);
	free(found);
	return (ncclResult_t)ep_result(found ? 0 : window_unknown("ncclCommWindowDeregister", win));
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr)
{
	struct ncclWindow_vidmem *found;
	struct ncclComm *c = NULL;
	void *base = NULL;
	int rc;

	if (!outUserPtr)
		return (ncclResult_t)ep_result(EP_FAIL(EP_COMM, EP_EARG, "ncclWinGetUserPtr: outUserPtr is NULL"));
	rc = ep_sc_get(comm, "ncclWinGetUserPtr", &c);
	if (rc)
		return (ncclResult_t)ep_result(rc);
	pthread_mutex_lock(&c->lock);
	found = *window_link(c, win);
	if (found)
		base = found->base;
	pthread_mutex_unlock(&c->lock);
	ep_sc_put(c);
	if (!found)
		return (ncclResult_t)ep_result(window_unknown("ncclWinGetUserPtr", win));
	*outUserPtr = base;
	return ncclSuccess;
}
