/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of the CPU device: shared by descriptor, cannot be shrunk, and false sizes or other files are rejected. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/dev.h"
#include "util/error.h"

TestSuite(host_mem, .timeout = 30);

static const struct ep_dev_ops *ops;
static struct ep_dev *dev;

static void setup(void)
{
	ops = ep_dev_row(EP_DEV_HOST);
	cr_assert(eq(int, ops->open(0, &dev), 0));
}

static void teardown(void)
{
	ops->close(dev);
}

Test(host_mem, zeroed_and_writable, .init = setup, .fini = teardown)
{
	struct ep_mem mem;
	unsigned char *p;

	cr_assert(eq(int, ops->mem_alloc(dev, 100000, &mem), 0));
	p = mem.ptr;
	cr_assert(eq(int, (int)((uintptr_t)p % 4096), 0));
	for (int i = 0; i < 100000; i++)
		cr_assert(eq(u8, p[i], 0));
	memset(p, 1, 100000);
	ops->mem_free(dev, &mem);
	cr_assert(mem.ptr == NULL);
	ops->mem_free(dev, &mem); /* a second free is a no-op */
}

Test(host_mem, import_sees_the_same_bytes, .init = setup, .fini = teardown)
{
	struct ep_mem mem, peer;
	struct ep_export export;
	int fd;

	cr_assert(eq(int, ops->mem_alloc(dev, 5000, &mem), 0));
	cr_assert(eq(int, ops->mem_export(dev, &mem, &export, &fd), 0));
	cr_assert(eq(int, fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC));
	cr_assert(eq(int, ops->mem_import(dev, &export, fd, &peer), 0));
	close(fd);
	cr_assert(peer.ptr != mem.ptr && peer.size == 5000);
	memset(mem.ptr, 7, 5000);
	cr_assert(eq(int, memcmp(peer.ptr, mem.ptr, 5000), 0));
	ops->mem_free(dev, &mem); /* the owner frees first: the importer keeps its mapping */
	cr_assert(eq(u8, ((unsigned char *)peer.ptr)[4999], 7));
	cr_assert(eq(int, ops->mem_export(dev, &peer, &export, &fd), -EP_EARG));
	ops->mem_free(dev, &peer);
}

Test(host_mem, import_survives_the_owners_death, .init = setup, .fini = teardown)
{
	struct ep_export export = { .share = EP_SHARE_FD, .kind = EP_DEV_HOST, .size = 4096 };
	int fd, status;
	struct ep_mem mem, peer;
	pid_t pid;

	cr_assert(eq(int, ops->mem_alloc(dev, 4096, &mem), 0));
	cr_assert(eq(int, ops->mem_export(dev, &mem, &export, &fd), 0));
	pid = fork();
	if (pid == 0) {
		memset(mem.ptr, 9, 4096);
		raise(SIGKILL);
	}
	cr_assert(waitpid(pid, &status, 0) == pid);
	cr_assert(eq(int, ops->mem_import(dev, &export, fd, &peer), 0));
	cr_assert(eq(u8, ((unsigned char *)peer.ptr)[4095], 9));
	close(fd);
	ops->mem_free(dev, &peer);
	ops->mem_free(dev, &mem);
}

Test(host_mem, size_cannot_change, .init = setup, .fini = teardown)
{
	struct ep_mem mem;
	struct ep_export export;
	int fd;

	cr_assert(eq(int, ops->mem_alloc(dev, 8192, &mem), 0));
	cr_assert(eq(int, ops->mem_export(dev, &mem, &export, &fd), 0));
	cr_assert(eq(int, ftruncate(fd, 0), -1));
	cr_assert(eq(int, ftruncate(fd, 1 << 20), -1));
	cr_assert(
		eq(int, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0)); /* harmless: zeroes */
	cr_assert(eq(u8, *(unsigned char *)mem.ptr, 0));
	close(fd);
	ops->mem_free(dev, &mem);
}

Test(host_mem, a_lie_about_the_size_is_found, .init = setup, .fini = teardown)
{
	struct ep_mem mem, peer = { .ptr = NULL };
	struct ep_export export;
	int fd;

	cr_assert(eq(int, ops->mem_alloc(dev, 4096, &mem), 0));
	cr_assert(eq(int, ops->mem_export(dev, &mem, &export, &fd), 0));
	export.size = 4096 * 1024;
	cr_assert(eq(int, ops->mem_import(dev, &export, fd, &peer), -EP_EREMOTE));
	export.size = UINT64_MAX;
	cr_assert(eq(int, ops->mem_import(dev, &export, fd, &peer), -EP_EREMOTE));
	export.size = 0;
	cr_assert(eq(int, ops->mem_import(dev, &export, fd, &peer), -EP_EARG));
	export.size = 4096;
	export.kind = EP_DEV_CUDA;
	cr_assert(eq(int, ops->mem_import(dev, &export, fd, &peer), -EP_EARG));
	cr_assert(peer.ptr == NULL);
	close(fd);
	ops->mem_free(dev, &mem);
}

Test(host_mem, files_that_may_shrink_are_refused, .init = setup, .fini = teardown)
{
	struct ep_export export = { .share = EP_SHARE_FD, .kind = EP_DEV_HOST, .size = 4096 };
	int memfd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING), zero = open("/dev/zero", O_RDWR);
	struct ep_mem peer = { .ptr = NULL };

	cr_assert(eq(int, ftruncate(memfd, 4096), 0));
	cr_assert(eq(int, ops->mem_import(dev, &export, memfd, &peer), -EP_EREMOTE));
	cr_assert(eq(int, ops->mem_import(dev, &export, zero, &peer), -EP_EREMOTE));
	cr_assert(eq(int, ops->mem_import(dev, &export, -1, &peer), -EP_EREMOTE));
	cr_assert(peer.ptr == NULL);
	close(memfd);
	close(zero);
}

Test(host_mem, buffer_ids_are_never_used_again, .init = setup, .fini = teardown)
{
	struct ep_mem mem;
	struct ep_buffer first, second;
	int here;

	cr_assert(eq(int, ops->mem_alloc(dev, 4096, &mem), 0));
	cr_assert(eq(int, ops->buffer_id(dev, (char *)mem.ptr + 4095, 1, &first), 0));
	cr_assert(first.base == mem.ptr && first.size >= 4096);
	cr_assert(eq(int, ops->buffer_id(dev, &here, 1, &second), -ENOENT));
	ops->mem_free(dev, &mem);
	cr_assert(eq(int, ops->buffer_id(dev, first.base, 1, &second), -ENOENT));
	cr_assert(eq(int, ops->mem_alloc(dev, 4096, &mem), 0));
	cr_assert(eq(int, ops->buffer_id(dev, mem.ptr, 1, &second), 0));
	cr_assert(ne(u64, first.id, second.id));
	ops->mem_free(dev, &mem);
}

Test(host_mem, pinned_is_one_address, .init = setup, .fini = teardown)
{
	struct ep_pinned pinned;

	cr_assert(eq(int, ops->pinned_alloc(dev, 100, &pinned), 0));
	cr_assert(pinned.host == pinned.dev && ((char *)pinned.host)[99] == 0);
	ops->pinned_free(dev, &pinned);
	cr_assert(pinned.host == NULL);
}

Test(host_mem, impossible_sizes, .init = setup, .fini = teardown)
{
	struct ep_mem mem;
	struct ep_pinned pinned;

	cr_assert(eq(int, ops->mem_alloc(dev, 0, &mem), -EP_EARG));
	cr_assert(eq(int, ops->mem_alloc(dev, SIZE_MAX, &mem), -EP_EARG));
	cr_assert(
		eq(int, ops->mem_alloc(dev, (size_t)1 << 60, &mem), -ENOMEM)); /* fails before anything is allocated */
	cr_assert(eq(int, ops->pinned_alloc(dev, 0, &pinned), -EP_EARG));
}

Test(host_mem, there_is_one_device)
{
	struct ep_dev *none = NULL;
	int n;

	cr_assert(eq(int, ep_dev_row(EP_DEV_HOST)->count(&n), 0));
	cr_assert(eq(int, n, 1));
	cr_assert(eq(int, ep_dev_row(EP_DEV_HOST)->open(1, &none), -EP_EARG));
	cr_assert(none == NULL);
}
