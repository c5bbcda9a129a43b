/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/grow.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/group/plan.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

struct ep_window_ctx ep_group_window_ctx(struct ncclEpGroup *group)
{
	return (struct ep_window_ctx){ .dev = group->dev,
				       .boot = group->boot,
				       .topo = &group->topo,
				       .rank = group->rank,
				       .stream = group->stream,
				       .tables = &group->tables,
				       .host = group->host,
				       .like = group->control.peer ? &group->control : NULL };
}

/* A rank reaches another one way: a payload window must be mapped wherever the control page is. Where it is not, its
 * owner may have left meanwhile, because of a third. */
static int payload_mapped(const struct ncclEpGroup *group, const struct ep_window *win)
{
	struct ep_blame blame;
	char why[256];
	int r = 0;

	while (r < group->nranks && (!group->control.peer[r] || win->peer[r]))
		r++;
	if (r == group->nranks)
		return 0;
	if (!ep_boot_evidence(group->boot, EP_EV_MISSING, &blame, why, sizeof(why)))
		return EP_FAIL(EP_GROUP, EP_EREMOTE, "%s: rank %d cannot map a window of rank %d", why, group->rank, r);
	return EP_FAIL(EP_GROUP, EP_EDEVICE,
		       "rank %d cannot map a window of %zu bytes of rank %d, though it maps its control page",
		       group->rank, win->size, r);
}

int ep_group_payload_add(struct ncclEpGroup *group, size_t bytes)
{
	struct ep_window_list *list = &group->payload;
	struct ep_window_ctx ctx = ep_group_window_ctx(group);
	struct ep_window *win = EP_CALLOC(EP_GROUP, 1, sizeof(*win), "a window"), **grown;
	int rc;

	grown = realloc(list->win, (size_t)(list->count + 1) * sizeof(struct ep_window *));
	if (grown)
		list->win = grown;
	if (!grown || !win) {
		if (win)
			EP_FAIL(EP_GROUP, ENOMEM, "out of memory: list of windows");
		free(win);
		ep_boot_abort(group->boot, ENOMEM, ep_last_error()); /* the others are about to open theirs */
		return -ENOMEM;
	}
	if ((rc = ep_window_open(&ctx, bytes, win))) {
		free(win);
		return rc;
	}
	list->win[list->count++] = win;
	EP_INFO(EP_GROUP, "rank %d: payload window %d of %zu bytes", group->rank, list->count, win->size);
	if ((rc = payload_mapped(group, win)))
		ep_boot_abort(group->boot, -rc, ep_last_error()); /* of these two ranks only */
	return rc;
}

static int key_agree(struct ncclEpGroup *group, const void *key, size_t key_size)
{
	char *all = EP_CALLOC(EP_GROUP, (size_t)group->nranks, key_size, "keys of a handle");
	int rc;

	if (!all) {
		ep_group_give_up(group, -ENOMEM);
		return -ENOMEM;
	}
	rc = ep_boot_allgather(group->boot, key, key_size, all);
	for (int r = 0; !rc && r < group->nranks; r++)
		if (memcmp(all + (size_t)r * key_size, key, key_size))
			rc = EP_FAIL(EP_GROUP, EP_EARG,
				     "the window must grow for this handle, but rank %d makes one of another layout "
				     "or num_topk than rank %d: make handles in the same order on all ranks",
				     r, group->rank);
	free(all);
	return rc;
}

bool ep_group_holds(const struct ncclEpGroup *group, const struct ep_need *need)
{
	size_t have = group->payload.count ? group->payload.win[group->payload.count - 1]->size : 0;
	const struct ep_link *link = group->link;

	return need->window <= have &&
	       (!link || (need->far_window <= link->window_bytes && need->far_send <= link->send_bytes));
}

/* Either all ranks fail alike, and the group goes on, or this one has broken the mesh to tell the others. */
static void reserve_failed(struct ncclEpGroup *group, int rc)
{
	char why[256];
	int rank;

	if (!ep_boot_failed(group->boot, &rank, why, sizeof(why)) && rank == group->rank)
		ep_group_set_error(group, -rc, (struct ep_blame){ rank, EP_EV_CERTAIN }, ep_last_error());
}

int ep_group_reserve(struct ncclEpGroup *group, const struct ep_need *need, const void *key, size_t key_size)
{
	size_t have = group->payload.count ? group->payload.win[group->payload.count - 1]->size : 0, most;
	uint64_t begun = ep_now_ns();
	int rc;

	if (ep_group_holds(group, need))
		return 0;
	most = ep_larger(need->window, ep_larger(need->far_window, need->far_send));
	if (group->cfg.rdma_buffer_size)
		return EP_FAIL(EP_GROUP, EP_EUSAGE,
			       "config->rdma_buffer_size is %llu, but a handle of this layout and num_topk needs %zu: "
			       "raise it or pass NCCL_EP_AUTO",
			       (unsigned long long)group->cfg.rdma_buffer_size, most);
	ep_boot_limit(group->boot, ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS)));
	rc = key_agree(group, key, key_size);
	if (!rc && ((need->window > have && (rc = ep_group_payload_add(group, need->window))) ||
		    (group->link && (rc = ep_link_reserve(group->link, need->far_window, need->far_send)))))
		reserve_failed(group, rc);
	/* Setting up a window frees pinned memory, which waits for kernels: nobody launches a kernel that waits for a
	 * rank still setting up. */
	rc = rc ? rc : ep_boot_barrier(group->boot);
	if (rc)
		rc = ep_group_explain(group, begun, rc);
	ep_boot_limit(group->boot, 0);
	return rc;
}
