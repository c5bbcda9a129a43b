/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the CPU device. Windows are anonymous files (memfd): they have no name that could be left behind, are freed
 * with the last process that has them open, and other processes map them by descriptor.
 *
 * Accessing a mapping of a file that was truncated raises SIGBUS. So the owner allocates all pages at once and seals
 * the size, and the importer trusts neither the size it was sent nor the owner: it checks the seal and the file's size.
 */
#include "kernels/host/host.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/error.h"
#include "util/fsize.h"

#define HOST_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* priv[0] of a struct ep_mem: descriptor + 1 of an own window, 0 of an imported one. priv[1]: bytes mapped. */
struct host_buffer {
	struct host_buffer *next;
	struct ep_buffer info;
};

static size_t page_round(size_t n)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (n + page - 1) / page * page;
}

/* Between two pages that nobody may access: a kernel that leaves a window faults there, as on a GPU, instead of writing
 * to whatever was mapped beside it. */
static void *window_map(int fd, size_t bytes)
{
	size_t guard = page_round(1);
	char *range = mmap(NULL, bytes + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	void *ptr;

	if (range == MAP_FAILED)
		return MAP_FAILED;
	ptr = mmap(range + guard, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	if (ptr == MAP_FAILED) {
		int err = errno;

		munmap(range, bytes + 2 * guard);
		errno = err;
	}
	return ptr;
}

static void window_unmap(void *ptr, size_t bytes)
{
	size_t guard = page_round(1);

	munmap((char *)ptr - guard, bytes + 2 * guard);
}

static int buffer_add(struct host_dev *host, void *base, size_t size)
{
	struct host_buffer *buffer = EP_CALLOC(EP_DEV, 1, sizeof(*buffer), "the record of a window");

	if (!buffer)
		return -ENOMEM;
	pthread_mutex_lock(&host->lock);
	buffer->info = (struct ep_buffer){ .id = ++host->last_id, .base = base, .size = size, .pieces = 1 };
	buffer->next = host->buffers;
	host->buffers = buffer;
	pthread_mutex_unlock(&host->lock);
	return 0;
}

static void buffer_remove(struct host_dev *host, const void *base)
{
	struct host_buffer *found;

	pthread_mutex_lock(&host->lock);
	for (struct host_buffer **at = &host->buffers; (found = *at) != NULL; at = &found->next) {
		if (found->info.base == base) {
			*at = found->next;
			break;
		}
	}
	pthread_mutex_unlock(&host->lock);
	free(found);
}

int host_buffer_id(struct ep_dev *dev, const void *ptr, size_t bytes, struct ep_buffer *out)
{
	struct host_dev *host = (struct host_dev *)dev;
	const struct host_buffer *b;

	(void)bytes;
	pthread_mutex_lock(&host->lock);
	for (b = host->buffers; b; b = b->next)
		if ((uintptr_t)ptr - (uintptr_t)b->info.base < b->info.size)
			break;
	if (b)
		*out = b->info;
	pthread_mutex_unlock(&host->lock);
	return b ? 0 : -ENOENT; /* plain memory: not a failure */
}

/* The kernel's estimate of memory available without swapping; SIZE_MAX if unknown. */
static size_t memory_available(void)
{
	unsigned long long kib = 0;
	char line[128];
	bool found = false;
	FILE *f = fopen("/proc/meminfo", "re");

	if (!f)
		return SIZE_MAX;
	while (!found && fgets(line, sizeof(line), f))
		found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
	fclose(f);
	return found ? (size_t)kib * 1024 : SIZE_MAX;
}

/* Allocating more than is available would not fail: the OOM killer would kill processes instead. */
static int window_fd(size_t size, int *out)
{
	size_t available = memory_available();
	struct ep_fsize fsize;
	char why[128];
	int fd, rc;

	if (size > available)
		return EP_FAIL(EP_DEV, ENOMEM, "out of memory: a window of %zu bytes, %zu bytes available", size,
			       available);
	fd = memfd_create("nccl_ep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return EP_FAIL(EP_DEV, errno, "memfd_create failed: %s", strerror(errno));
	ep_fsize_begin(&fsize);
	do {
		rc = fallocate(fd, 0, 0, (off_t)size);
	} while (rc != 0 && errno == EINTR);
	ep_fsize_end(&fsize);
	if (rc != 0 || fcntl(fd, F_ADD_SEALS, HOST_SEALS) != 0) {
		rc = EP_FAIL(EP_DEV, errno, "allocating a window of %zu bytes failed: %s", size,
			     ep_fsize_why(errno, why, sizeof(why)));
		close(fd);
		return rc;
	}
	*out = fd;
	return 0;
}

int host_mem_alloc(struct ep_dev *dev, size_t size, struct ep_mem *out)
{
	size_t bytes = page_round(size);
	void *ptr;
	int fd = -1, rc;

	if (size == 0 || bytes < size)
		return EP_FAIL(EP_DEV, EP_EARG, "invalid window size: %zu bytes", size);
	rc = window_fd(bytes, &fd);
	if (rc != 0)
		return rc;
	ptr = window_map(fd, bytes);
	if (ptr == MAP_FAILED) {
		rc = EP_FAIL(EP_DEV, errno, "mapping a window of %zu bytes failed: %s", size, strerror(errno));
		goto close_fd;
	}
	rc = buffer_add((struct host_dev *)dev, ptr, bytes);
	if (rc != 0)
		goto unmap;
	*out = (struct ep_mem){ .ptr = ptr, .size = size, .priv = { (uint64_t)fd + 1, bytes } };
	return 0;
unmap:
	window_unmap(ptr, bytes);
close_fd:
	close(fd);
	return rc;
}

void host_mem_free(struct ep_dev *dev, struct ep_mem *mem)
{
	if (!mem->ptr)
		return;
	window_unmap(mem->ptr, mem->priv[1]);
	if (mem->priv[0] > 0) {
		buffer_remove((struct host_dev *)dev, mem->ptr);
		close((int)(mem->priv[0] - 1));
	}
	*mem = (struct ep_mem){ .ptr = NULL };
}

int host_mem_export(struct ep_dev *dev, const struct ep_mem *mem, struct ep_export *out, int *fd)
{
	int copy;

	(void)dev;
	if (mem->priv[0] == 0)
		return EP_FAIL(EP_DEV, EP_EARG, "only the owner of a window can export it");
	copy = fcntl((int)(mem->priv[0] - 1), F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		return EP_FAIL(EP_DEV, errno, "duplicating the descriptor of a window failed: %s", strerror(errno));
	*out = (struct ep_export){ .share = EP_SHARE_FD, .kind = EP_DEV_HOST, .size = mem->size };
	*fd = copy;
	return 0;
}

int host_mem_import(struct ep_dev *dev, const struct ep_export *from, int fd, struct ep_mem *out)
{
	struct stat st;
	size_t bytes;
	int seals;
	void *ptr;

	(void)dev;
	if (from->share != EP_SHARE_FD || from->kind != EP_DEV_HOST || from->size == 0)
		return EP_FAIL(EP_DEV, EP_EARG, "the imported window is not of the CPU device");
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) != 0)
		return EP_FAIL(EP_DEV, EP_EREMOTE, "the descriptor of a peer's window is not a sealed memory file");
	if (st.st_size < 0 || (uint64_t)st.st_size < from->size)
		return EP_FAIL(EP_DEV, EP_EREMOTE, "a peer's window has %llu bytes, but claims %llu",
			       (unsigned long long)st.st_size, (unsigned long long)from->size);
	bytes = (size_t)st.st_size;
	ptr = window_map(fd, bytes);
	if (ptr == MAP_FAILED)
		return EP_FAIL(EP_DEV, errno, "mapping a peer's window of %zu bytes failed: %s", bytes,
			       strerror(errno));
	*out = (struct ep_mem){ .ptr = ptr, .size = (size_t)from->size, .priv = { 0, bytes } };
	return 0;
}

/* All CPU devices of a process are the same memory. */
int host_peer_open(struct ep_dev *dev, int peer_ordinal, const struct ep_mem *mem)
{
	(void)dev;
	(void)peer_ordinal;
	(void)mem;
	return 0;
}

int host_pinned_alloc(struct ep_dev *dev, size_t size, struct ep_pinned *out)
{
	size_t bytes = page_round(size);
	void *ptr;

	(void)dev;
	if (size == 0 || bytes < size)
		return EP_FAIL(EP_DEV, EP_EARG, "invalid size of pinned memory: %zu bytes", size);
	ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (ptr == MAP_FAILED)
		return EP_FAIL(EP_DEV, errno, "allocating %zu bytes of pinned memory failed: %s", size,
			       strerror(errno));
	*out = (struct ep_pinned){ .host = ptr, .dev = ptr, .size = size };
	return 0;
}

void host_pinned_free(struct ep_dev *dev, struct ep_pinned *mem)
{
	(void)dev;
	if (mem->host)
		munmap(mem->host, page_round(mem->size));
	*mem = (struct ep_pinned){ .host = NULL };
}

int host_pin(struct ep_dev *dev, void *host, size_t size, struct ep_pinned *out)
{
	(void)dev;
	*out = (struct ep_pinned){ .host = host, .dev = host, .size = size };
	return 0;
}

void host_unpin(struct ep_dev *dev, struct ep_pinned *mem)
{
	(void)dev;
	*mem = (struct ep_pinned){ .host = NULL };
}
