/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/local.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/boot/endpoint.h"
#include "util/error.h"

struct ep_ptr_offer {
	struct ep_ptr_offer *next;
	uint64_t key;
	void *ptr;
	size_t size;
};

static struct {
	pthread_mutex_t lock; /* of the list, and of all endpoints' pointers */
	struct ep_boot *head;
} local = { .lock = PTHREAD_MUTEX_INITIALIZER };

void ep_local_add(struct ep_boot *b)
{
	pthread_mutex_lock(&local.lock);
	b->next_local = local.head;
	local.head = b;
	pthread_mutex_unlock(&local.lock);
}

void ep_local_remove(struct ep_boot *b)
{
	struct ep_boot **at = &local.head;

	pthread_mutex_lock(&local.lock);
	while (*at && *at != b)
		at = &(*at)->next_local;
	if (*at)
		*at = b->next_local;
	while (b->ptrs) {
		struct ep_ptr_offer *o = b->ptrs;

		b->ptrs = o->next;
		free(o);
	}
	pthread_mutex_unlock(&local.lock);
}

/* Under local.lock. A forked child has copies of its parent's endpoints, which are not its own. */
static const struct ep_boot *find(const struct ep_boot *b, int rank, const struct ep_fd_token *token)
{
	const struct ep_boot *e = local.head;

	while (e && (e->pid != getpid() || e->rank != (uint32_t)rank || e->nranks != b->nranks ||
		     memcmp(&e->token, token, sizeof(*token)) || memcmp(e->secret, b->secret, sizeof(e->secret))))
		e = e->next_local;
	return e;
}

bool ep_boot_is_local(struct ep_boot *b, int rank, const struct ep_fd_token *token)
{
	bool yes;

	pthread_mutex_lock(&local.lock);
	yes = find(b, rank, token) != NULL;
	pthread_mutex_unlock(&local.lock);
	return yes;
}

int ep_boot_ptr_offer(struct ep_boot *b, uint64_t key, void *ptr, size_t n)
{
	struct ep_ptr_offer *o = EP_CALLOC(EP_BOOT, 1, sizeof(*o), "the offer of a pointer");

	if (!o)
		return -ENOMEM;
	*o = (struct ep_ptr_offer){ .key = key, .ptr = ptr, .size = n };
	pthread_mutex_lock(&local.lock);
	o->next = b->ptrs;
	b->ptrs = o;
	pthread_mutex_unlock(&local.lock);
	return 0;
}

void ep_boot_ptr_withdraw(struct ep_boot *b, uint64_t key)
{
	struct ep_ptr_offer **at = &b->ptrs, *o;

	pthread_mutex_lock(&local.lock);
	while (*at && (*at)->key != key)
		at = &(*at)->next;
	o = *at;
	if (o)
		*at = o->next;
	pthread_mutex_unlock(&local.lock);
	free(o);
}

int ep_boot_ptr_find(struct ep_boot *b, int rank, const struct ep_fd_token *token, uint64_t key, size_t n, void **ptr)
{
	const struct ep_ptr_offer *o = NULL;
	const struct ep_boot *e;
	int rc = -ENOENT;

	pthread_mutex_lock(&local.lock);
	e = find(b, rank, token);
	for (o = e ? e->ptrs : NULL; o && (o->key != key || o->size < n);)
		o = o->next;
	if (o) {
		*ptr = o->ptr;
		rc = 0;
	}
	pthread_mutex_unlock(&local.lock);
	return rc;
}
