/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory between ranks of one host. What a peer sends is not trusted until its descriptor confirms it, and
 * nothing is mapped that its owner could shrink: a store past the new end would raise SIGBUS here.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/loop/loop.h"
#include "util/error.h"
#include "util/fsize.h"

#define LOOP_MAGIC 0x4c4f4f31u /* changes with the layout */
/* Header and slices are aligned to the largest page size in use; memfds are sparse. */
#define LOOP_ALIGN ((size_t)65536)
#define LOOP_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* What this process relies on of its own pages and registrations. A peer names one by bytes that it sends, and gets it
 * only if it is in these lists: a rank of another process may send our pid and any address. */
struct page {
	struct page *next;
	struct loop_header *header;
	uint64_t nonce[2];
	int nranks, users; /* the last one unmaps it */
};

static struct {
	pthread_mutex_t lock;
	struct page *pages;
	struct loop_mr *mrs;
} own = { .lock = PTHREAD_MUTEX_INITIALIZER };

static size_t align_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static size_t slice_size(void)
{
	return align_up(LOOP_CONTEXTS * sizeof(struct loop_ring), LOOP_ALIGN);
}

size_t loop_page_size(int nranks)
{
	return LOOP_ALIGN + (size_t)nranks * slice_size();
}

static size_t slice_offset(int sender)
{
	return LOOP_ALIGN + (size_t)sender * slice_size();
}

struct loop_ring *loop_rings(void *page, int sender)
{
	return (struct loop_ring *)((uint8_t *)page + slice_offset(sender));
}

static bool is_sealed(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS); /* -1: not a memfd */

	return seals >= 0 && seals & F_SEAL_SHRINK;
}

int loop_object_make(void *ptr, size_t size, int fd, uint64_t offset, struct loop_object *out)
{
	struct stat st;

	*out = (struct loop_object){ .pid = getpid(), .fd = -1, .address = (uintptr_t)ptr, .size = size };
	if (fd < 0)
		return 0;
	if (fstat(fd, &st))
		return EP_FAIL(EP_NET, EP_EARG, "loop: fstat of descriptor %d: %s", fd, strerror(errno));
	if (st.st_size < 0 || offset > (uint64_t)st.st_size || size > (uint64_t)st.st_size - offset)
		return EP_FAIL(EP_NET, EP_EARG, "loop: descriptor %d has %lld bytes; %zu at offset %llu do not fit", fd,
			       (long long)st.st_size, size, (unsigned long long)offset);
	if (!is_sealed(fd))
		return EP_FAIL(EP_NET, EP_EARG,
			       "loop: descriptor %d is not sealed against shrinking; use a memfd with F_SEAL_SHRINK",
			       fd);
	out->dev = st.st_dev;
	out->ino = st.st_ino;
	out->offset = offset;
	out->fd = fd;
	return 0;
}

/* A descriptor number that was reused refers to another inode. */
static bool is_object(const struct loop_object *object, int fd)
{
	struct stat st;

	return !fstat(fd, &st) && st.st_dev == object->dev && st.st_ino == object->ino && st.st_size >= 0 &&
	       object->offset <= (uint64_t)st.st_size && object->size <= (uint64_t)st.st_size - object->offset;
}

/* Opens the object and verifies it. what: "memory" or "queues", for the message. */
static int object_fd(const struct loop_object *object, int peer, const char *what, int *out)
{
	char path[64];
	int fd, rc;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", object->pid, object->fd);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* it may be anything of that process */
	if (fd < 0 || !is_object(object, fd)) {
		rc = EP_FAIL(EP_NET, EP_EREMOTE,
			     "loop: cannot open the %s of rank %d (process %d): %s; loop needs ranks of one user on "
			     "one "
			     "host that see each other in /proc",
			     what, peer, object->pid, fd < 0 ? strerror(errno) : "the descriptor is another file");
		goto close_fd;
	}
	if (!is_sealed(fd)) {
		rc = EP_FAIL(EP_NET, EP_EREMOTE,
			     "loop: the %s of rank %d (process %d) are not sealed against shrinking (F_SEAL_SHRINK)",
			     what, peer, object->pid);
		goto close_fd;
	}
	*out = fd;
	return 0;

close_fd:
	if (fd >= 0)
		close(fd);
	return rc;
}

static int view_map(int fd, uint64_t offset, size_t size, struct loop_view *out)
{
	uint64_t first = offset / LOOP_ALIGN * LOOP_ALIGN;
	size_t length = size + (size_t)(offset - first);
	void *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)first);

	if (p == MAP_FAILED)
		return -errno;
	*out = (struct loop_view){ .base = (uint8_t *)p + (offset - first), .mapped = p, .mapped_size = length };
	return 0;
}

void loop_mr_add(struct loop_mr *mr)
{
	pthread_mutex_lock(&own.lock);
	mr->next = own.mrs;
	own.mrs = mr;
	pthread_mutex_unlock(&own.lock);
}

void loop_mr_remove(struct loop_mr *mr)
{
	struct loop_mr **at = &own.mrs;

	pthread_mutex_lock(&own.lock);
	while (*at != mr)
		at = &(*at)->next;
	*at = mr->next;
	pthread_mutex_unlock(&own.lock);
}

/* The memory of a peer in this process. */
static int object_find(const struct loop_object *object, int rank, const struct loop_header *owner,
		       struct loop_view *out)
{
	const struct loop_mr *mr;

	pthread_mutex_lock(&own.lock);
	mr = own.mrs;
	while (mr &&
	       (mr->owner != owner || (uintptr_t)mr->base.base != object->address || mr->base.size != object->size))
		mr = mr->next;
	if (mr)
		*out = (struct loop_view){ .base = mr->base.base };
	pthread_mutex_unlock(&own.lock);
	return mr ? 0
		  : EP_FAIL(EP_NET, EP_EREMOTE, "loop: rank %d sent the key of memory that it has not registered",
			    rank);
}

int loop_object_open(const struct loop_object *object, int rank, const struct loop_peer *peer, struct loop_view *out)
{
	int fd, rc;

	if (!peer->views[0].mapped)
		return object_find(object, rank, peer->header, out);
	if (object->fd < 0)
		return EP_FAIL(EP_NET, EP_EUSAGE,
			       "loop: rank %d is in another process and registered memory without a descriptor; "
			       "register shared memory with its descriptor",
			       rank);
	if (object->pid != peer->pid)
		return EP_FAIL(EP_NET, EP_EREMOTE, "loop: rank %d is process %d, but its key is of process %d", rank,
			       peer->pid, object->pid);
	rc = object_fd(object, rank, "memory", &fd);
	if (rc)
		return rc;
	rc = view_map(fd, object->offset, object->size, out);
	close(fd);
	if (rc)
		return EP_FAIL(EP_NET, -rc, "loop: cannot map the memory of rank %d: %s", rank, strerror(-rc));
	return 0;
}

void loop_view_close(struct loop_view *view)
{
	if (view->mapped)
		munmap(view->mapped, view->mapped_size);
	*view = (struct loop_view){ .base = NULL };
}

static int page_add(struct loop_header *header, const struct loop_handle *handle, int nranks)
{
	struct page *page = EP_CALLOC(EP_NET, 1, sizeof(*page), "queues");

	if (!page)
		return -ENOMEM;
	*page = (struct page){ .header = header, .nranks = nranks, .users = 1 };
	memcpy(page->nonce, handle->nonce, sizeof(page->nonce));
	pthread_mutex_lock(&own.lock);
	page->next = own.pages;
	own.pages = page;
	pthread_mutex_unlock(&own.lock);
	return 0;
}

int loop_page_make(int nranks, struct loop_handle *handle, struct loop_header **page, int *fd)
{
	size_t size = loop_page_size(nranks);
	struct loop_header *header;
	struct ep_fsize fsize;
	char why[128];
	int made = memfd_create("nccl_ep_loop", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc;

	if (made < 0)
		return EP_FAIL(EP_NET, errno, "loop: memfd_create: %s", strerror(errno));
	ep_fsize_begin(&fsize);
	rc = ftruncate(made, (off_t)size);
	ep_fsize_end(&fsize);
	if (rc || fcntl(made, F_ADD_SEALS, LOOP_SEALS)) {
		rc = EP_FAIL(EP_NET, errno, "loop: cannot size or seal %zu bytes of shared memory: %s", size,
			     ep_fsize_why(errno, why, sizeof(why)));
		goto close_fd;
	}
	header = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
	if (header == MAP_FAILED) {
		rc = EP_FAIL(EP_NET, errno, "loop: cannot map %zu bytes of queues: %s", size, strerror(errno));
		goto close_fd;
	}
	*handle = (struct loop_handle){ .magic = LOOP_MAGIC, .nranks = (uint32_t)nranks };
	rc = ep_base_random("loop", header->nonce, sizeof(header->nonce));
	if (rc)
		goto unmap_page;
	memcpy(handle->nonce, header->nonce, sizeof(handle->nonce));
	rc = loop_object_make(header, size, made, 0, &handle->object);
	rc = rc ? rc : page_add(header, handle, nranks);
	if (rc)
		goto unmap_page;
	*page = header;
	*fd = made;
	return 0;

unmap_page:
	munmap(header, size);
close_fd:
	close(made);
	return rc;
}

/* views: [0] the header, [1] the slice. */
static int views_map(int fd, int rank, struct loop_view *views)
{
	int rc = view_map(fd, 0, LOOP_ALIGN, &views[0]);

	if (rc)
		return rc;
	rc = view_map(fd, slice_offset(rank), slice_size(), &views[1]);
	if (rc)
		loop_view_close(&views[0]);
	return rc;
}

/* In the owner's process the views point into its own mapping. */
static int page_find(const struct loop_handle *handle, int peer, int rank, struct loop_view *views)
{
	struct page *page;

	pthread_mutex_lock(&own.lock);
	page = own.pages;
	while (page && ((uint32_t)page->nranks != handle->nranks ||
			memcmp(page->nonce, handle->nonce, sizeof(page->nonce)) != 0))
		page = page->next;
	if (page) {
		page->users++;
		views[0] = (struct loop_view){ .base = (uint8_t *)page->header };
		views[1] = (struct loop_view){ .base = (uint8_t *)page->header + slice_offset(rank) };
	}
	pthread_mutex_unlock(&own.lock);
	return page ? 0
		    : EP_FAIL(EP_NET, EP_EREMOTE,
			      "loop: rank %d claims to be in this process (%d), which does not have its queues", peer,
			      handle->object.pid);
}

int loop_page_open(const struct loop_handle *handle, int peer, int rank, struct loop_header **header,
		   struct loop_view *views)
{
	uint64_t nonce[2];
	int fd, rc;

	if (handle->magic != LOOP_MAGIC || handle->object.offset ||
	    handle->object.size != loop_page_size((int)handle->nranks))
		return EP_FAIL(EP_NET, EP_EREMOTE,
			       "loop: the handle of rank %d is not of this version of transport loop", peer);
	if (handle->object.pid == getpid()) {
		rc = page_find(handle, peer, rank, views);
		if (!rc)
			*header = (struct loop_header *)views[0].base;
		return rc;
	}
	rc = object_fd(&handle->object, peer, "queues", &fd);
	if (rc)
		return rc;
	if (pread(fd, nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce) ||
	    memcmp(nonce, handle->nonce, sizeof(nonce)) != 0) {
		rc = EP_FAIL(EP_NET, EP_EREMOTE, "loop: the queues of rank %d (process %d) have another nonce", peer,
			     handle->object.pid);
		goto close_fd;
	}
	rc = views_map(fd, rank, views);
	if (rc)
		rc = EP_FAIL(EP_NET, -rc, "loop: cannot map the queues of rank %d: %s", peer, strerror(-rc));
	else
		*header = (struct loop_header *)views[0].base;
close_fd:
	close(fd);
	return rc;
}

void loop_page_leave(struct loop_header *header)
{
	struct page **at = &own.pages, *last = NULL;

	pthread_mutex_lock(&own.lock);
	while ((*at)->header != header)
		at = &(*at)->next;
	if (--(*at)->users == 0) {
		last = *at;
		*at = last->next;
	}
	pthread_mutex_unlock(&own.lock);
	if (!last)
		return;
	munmap(header, loop_page_size(last->nranks));
	free(last);
}

void loop_page_close(struct loop_header *header, struct loop_view *views)
{
	if (!views[0].mapped) {
		loop_page_leave(header);
		return;
	}
	loop_view_close(&views[0]);
	loop_view_close(&views[1]);
}
