/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "plugin/group/retire.h"
#include "util/error.h"

/* The ranks of one group in this process, from the end of the first to that of the last. */
struct house {
	uint32_t key;
	int left;		  /* ranks that have not ended */
	bool unsafe;		  /* a kernel or an engine of one that has ended still runs: nothing is freed */
	struct ncclEpGroup *kept; /* linked by retired */
	struct house *next;
};

static struct {
	pthread_mutex_t lock;
	struct house *first;
} houses = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int ranks_here(const struct ncclEpGroup *group)
{
	const struct ep_topo_rank *rank = group->topo.rank;
	int n = 0;

	for (int r = 0; r < group->nranks; r++)
		n += rank[r].pid_rank == rank[group->rank].pid_rank;
	return n;
}

/* NULL: out of memory. */
static struct house **house_of(const struct ncclEpGroup *group)
{
	uint32_t key = ep_group_key(group);
	struct house **at = &houses.first;

	while (*at && (*at)->key != key)
		at = &(*at)->next;
	if (*at)
		return at;
	*at = EP_CALLOC(EP_GROUP, 1, sizeof(**at), "the end of a group");
	if (!*at)
		return NULL;
	**at = (struct house){ .key = key, .left = ranks_here(group) };
	return at;
}

/* With the lock. */
static struct ncclEpGroup *house_leave(struct house **at, struct ncclEpGroup *group, bool safe, bool quiet)
{
	struct house *house = *at;
	struct ncclEpGroup *free_now = quiet ? group : NULL;

	house->unsafe |= !safe;
	if (!quiet) {
		group->retired = house->kept;
		house->kept = group;
	}
	if (--house->left || house->unsafe)
		return free_now; /* an unsafe house stays, with what it keeps */
	if (quiet)
		group->retired = house->kept;
	else
		free_now = house->kept;
	*at = house->next;
	free(house);
	return free_now;
}

struct ncclEpGroup *ep_retire(struct ncclEpGroup *group, bool safe, bool quiet)
{
	struct ncclEpGroup *free_now = quiet ? group : NULL;
	struct house **at;

	group->retired = NULL;
	pthread_mutex_lock(&houses.lock);
	at = house_of(group);
	if (at)
		free_now = house_leave(at, group, safe, quiet);
	pthread_mutex_unlock(&houses.lock);
	return free_now;
}
