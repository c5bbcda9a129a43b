/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory between ranks of one host. What a peer sends is not trusted until its descriptor confirms it, and
 * nothing is mapped that its owner could shrink: a store past the new end would raise SIGBUS here.
 */
#include <fcntl.h>
#include <stdio.h>
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
	fd = open(path, O_RDWR | O_CLOEXEC);
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

int loop_object_open(const struct loop_object *object, int peer, bool same, struct loop_view *out)
{
	int fd, rc;

	if (same) {
		*out = (struct loop_view){ .base = (uint8_t *)(uintptr_t)object->address };
		return 0;
	}
	if (object->fd < 0)
		return EP_FAIL(EP_NET, EP_EUSAGE,
			       "loop: rank %d is in another process and registered memory without a descriptor; "
			       "register shared memory with its descriptor",
			       peer);
	rc = object_fd(object, peer, "memory", &fd);
	if (rc)
		return rc;
	rc = view_map(fd, object->offset, object->size, out);
	close(fd);
	if (rc)
		return EP_FAIL(EP_NET, -rc, "loop: cannot map the memory of rank %d: %s", peer, strerror(-rc));
	return 0;
}

void loop_view_close(struct loop_view *view)
{
	if (view->mapped)
		munmap(view->mapped, view->mapped_size);
	*view = (struct loop_view){ .base = NULL };
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
	header->nranks = (uint32_t)nranks;
	header->users = 1;
	*handle = (struct loop_handle){ .magic = LOOP_MAGIC, .nranks = (uint32_t)nranks };
	rc = ep_base_random("loop", header->nonce, sizeof(header->nonce));
	if (rc)
		goto unmap_page;
	memcpy(handle->nonce, header->nonce, sizeof(handle->nonce));
	rc = loop_object_make(header, size, made, 0, &handle->object);
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

/* views: [0] the header, [1] the slice. In the owner's process both point into its own mapping. */
static int views_map(int fd, const struct loop_handle *handle, int rank, struct loop_view *views)
{
	size_t slice = slice_offset(rank);
	uint8_t *own = (uint8_t *)(uintptr_t)handle->object.address;
	int rc;

	if (handle->object.pid == getpid()) {
		__atomic_fetch_add(&((struct loop_header *)own)->users, 1, __ATOMIC_RELAXED);
		views[0] = (struct loop_view){ .base = own };
		views[1] = (struct loop_view){ .base = own + slice };
		return 0;
	}
	rc = view_map(fd, 0, LOOP_ALIGN, &views[0]);
	if (rc)
		return rc;
	rc = view_map(fd, slice, slice_size(), &views[1]);
	if (rc)
		loop_view_close(&views[0]);
	return rc;
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
	rc = object_fd(&handle->object, peer, "queues", &fd);
	if (rc)
		return rc;
	if (pread(fd, nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce) ||
	    memcmp(nonce, handle->nonce, sizeof(nonce)) != 0) {
		rc = EP_FAIL(EP_NET, EP_EREMOTE, "loop: the queues of rank %d (process %d) have another nonce", peer,
			     handle->object.pid);
		goto close_fd;
	}
	rc = views_map(fd, handle, rank, views);
	if (rc)
		rc = EP_FAIL(EP_NET, -rc, "loop: cannot map the queues of rank %d: %s", peer, strerror(-rc));
	else
		*header = (struct loop_header *)views[0].base;
close_fd:
	close(fd);
	return rc;
}

void loop_page_leave(struct loop_header *page)
{
	/* R0, and A0 of the last user: all uses of the segment are before its unmapping. */
	if (__atomic_sub_fetch(&page->users, 1, __ATOMIC_ACQ_REL) == 0)
		munmap(page, loop_page_size((int)page->nranks));
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
