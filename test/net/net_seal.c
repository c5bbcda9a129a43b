/* SPDX-License-Identifier: Apache-2.0 */
/* loop maps only sealed memory: checked when its owner registers it, and again by peers, as a key may be forged. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/loop/loop.h"
#include "util/error.h"

enum { BYTES = 8192, RANKS = 2 };

TestSuite(net_seal, .timeout = 30);

static int memory_make(int seals)
{
	int fd = memfd_create("net_seal", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert(fd >= 0 && !ftruncate(fd, BYTES));
	cr_assert(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

/* The key of a peer that skips the check. */
static struct loop_object object_forge(int fd, size_t size)
{
	struct stat st;

	cr_assert(fstat(fd, &st) == 0);
	return (struct loop_object){ .dev = st.st_dev, .ino = st.st_ino, .size = size, .pid = getpid(), .fd = fd };
}

static void is_refused(int fd)
{
	struct loop_view view = { .base = NULL };
	struct loop_object object = { .fd = 77 }, forged = object_forge(fd, BYTES);
	static char memory[BYTES];

	cr_expect(eq(int, loop_object_make(memory, BYTES, fd, 0, &object), -EP_EARG));
	cr_expect(strstr(ep_last_error(), "F_SEAL_SHRINK") != NULL, "%s", ep_last_error());
	cr_expect(eq(int, loop_object_open(&forged, 3, false, &view), -EP_EREMOTE));
	cr_expect(strstr(ep_last_error(), "rank 3") && strstr(ep_last_error(), "F_SEAL_SHRINK"), "%s", ep_last_error());
	cr_expect(view.base == NULL);
	close(fd);
}

Test(net_seal, memory_that_may_shrink_is_refused)
{
	is_refused(memory_make(0));
	is_refused(memory_make(F_SEAL_GROW));
}

Test(net_seal, a_file_is_refused)
{
	char path[] = "/tmp/net_seal.XXXXXX";
	int fd = mkstemp(path);

	cr_assert(fd >= 0 && !unlink(path) && !ftruncate(fd, BYTES));
	is_refused(fd);
}

Test(net_seal, sealed_memory_is_mapped)
{
	int fd = memory_make(F_SEAL_SHRINK);
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct loop_object object;
	struct loop_view view;

	cr_assert(memory != MAP_FAILED);
	cr_assert(eq(int, loop_object_make(memory, BYTES, fd, 0, &object), 0));
	cr_assert(eq(int, loop_object_open(&object, 1, false, &view), 0));
	cr_assert(view.base != (uint8_t *)memory);
	memory[BYTES - 1] = 42;
	cr_expect(eq(int, view.base[BYTES - 1], 42));
	cr_expect(ftruncate(fd, 0) != 0);
	loop_view_close(&view);
	munmap(memory, BYTES);
	close(fd);
}

Test(net_seal, queues_are_sealed_and_so_must_a_peers_be)
{
	struct loop_header *page, *seen = NULL;
	struct loop_handle handle;
	struct loop_view views[2];
	int fd, bare;

	cr_assert(eq(int, loop_page_make(RANKS, &handle, &page, &fd), 0));
	cr_expect(ftruncate(fd, 0) != 0);
	cr_assert(eq(int, loop_page_open(&handle, 1, 0, &seen, views), 0));
	loop_page_close(seen, views);
	/* The same segment, as far as a handle shows, in a file that is not sealed. */
	bare = memory_make(0);
	cr_assert(ftruncate(bare, (off_t)loop_page_size(RANKS)) == 0);
	cr_assert(pwrite(bare, handle.nonce, sizeof(handle.nonce), 0) == (ssize_t)sizeof(handle.nonce));
	handle.object = object_forge(bare, loop_page_size(RANKS));
	seen = NULL;
	cr_expect(eq(int, loop_page_open(&handle, 1, 0, &seen, views), -EP_EREMOTE));
	cr_expect(strstr(ep_last_error(), "rank 1") && strstr(ep_last_error(), "F_SEAL_SHRINK"), "%s", ep_last_error());
	cr_expect(seen == NULL);
	loop_page_leave(page);
	close(bare);
	close(fd);
}
