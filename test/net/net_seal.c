/* SPDX-License-Identifier: Apache-2.0 */
/* loop trusts neither keys nor handles: it maps only sealed memory, and uses no pointer that is not its process's. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/loop/loop.h"
#include "net/net.h"
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

/* What connect leaves of a peer in another process; the number is ours, so that its descriptors are. */
static struct loop_peer another_process(void)
{
	static char mapping;

	return (struct loop_peer){ .views[0].mapped = &mapping, .pid = getpid() };
}

static void is_refused(int fd)
{
	struct loop_view view = { .base = NULL };
	struct loop_object object = { .fd = 77 }, forged = object_forge(fd, BYTES);
	const struct loop_peer elsewhere = another_process();
	static char memory[BYTES];

	cr_expect(eq(int, loop_object_make(memory, BYTES, fd, 0, &object), -EP_EARG));
	cr_expect(strstr(ep_last_error(), "F_SEAL_SHRINK") != NULL, "%s", ep_last_error());
	cr_expect(eq(int, loop_object_open(&forged, 3, &elsewhere, &view), -EP_EREMOTE));
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
	const struct loop_peer elsewhere = another_process();
	struct loop_object object;
	struct loop_view view;

	cr_assert(memory != MAP_FAILED);
	cr_assert(eq(int, loop_object_make(memory, BYTES, fd, 0, &object), 0));
	cr_assert(eq(int, loop_object_open(&object, 1, &elsewhere, &view), 0));
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
	pid_t child;

	cr_assert(eq(int, loop_page_make(RANKS, &handle, &page, &fd), 0));
	cr_expect(ftruncate(fd, 0) != 0);
	cr_assert(eq(int, loop_page_open(&handle, 1, 0, &seen, views), 0));
	loop_page_close(seen, views);
	/* The same segment, as far as a handle shows, in a file that is not sealed. */
	bare = memory_make(0);
	cr_assert(ftruncate(bare, (off_t)loop_page_size(RANKS)) == 0);
	cr_assert(pwrite(bare, handle.nonce, sizeof(handle.nonce), 0) == (ssize_t)sizeof(handle.nonce));
	handle.object = object_forge(bare, loop_page_size(RANKS));
	handle.object.pid = child = fork();
	if (!child)
		for (;;)
			pause(); /* it has the descriptor too */
	cr_assert(child > 0);
	seen = NULL;
	cr_expect(eq(int, loop_page_open(&handle, 1, 0, &seen, views), -EP_EREMOTE));
	cr_expect(strstr(ep_last_error(), "rank 1") && strstr(ep_last_error(), "F_SEAL_SHRINK"), "%s", ep_last_error());
	cr_expect(seen == NULL);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	loop_page_leave(page);
	close(bare);
	close(fd);
}

/* All that the handle names is there, but it is no page that this process made: its address is never used. */
Test(net_seal, a_handle_with_our_pid_and_a_made_up_address_is_refused)
{
	struct loop_handle handle, forged;
	struct loop_header *page, *seen = NULL;
	struct loop_view views[2];
	int fd, bait = memory_make(0);

	cr_assert(eq(int, loop_page_make(RANKS, &handle, &page, &fd), 0));
	cr_assert(ftruncate(bait, (off_t)loop_page_size(RANKS)) == 0 && !fcntl(bait, F_ADD_SEALS, F_SEAL_SHRINK));
	forged = handle;
	forged.nonce[0]++;
	cr_assert(pwrite(bait, forged.nonce, sizeof(forged.nonce), 0) == (ssize_t)sizeof(forged.nonce));
	forged.object = object_forge(bait, loop_page_size(RANKS));
	forged.object.address = 16;
	cr_expect(eq(int, loop_page_open(&forged, 1, 0, &seen, views), -EP_EREMOTE));
	cr_expect(strstr(ep_last_error(), "rank 1") != NULL, "%s", ep_last_error());
	/* The address of a true handle does not count either. */
	handle.object.address = 16;
	cr_assert(eq(int, loop_page_open(&handle, 1, 0, &seen, views), 0));
	cr_expect(eq(int, seen == page, 1));
	loop_page_close(seen, views);
	loop_page_leave(page);
	close(bait);
	close(fd);
}

struct pair {
	struct ep_net *net;
	void *listener[RANKS], *comm[RANKS], *mr[RANKS];
	uint8_t handle[RANKS][NCCL_EP_NET_HANDLE_SIZE], key[RANKS][NCCL_EP_NET_KEY_SIZE];
};

static void pair_listen(struct pair *p)
{
	cr_assert(eq(int, ep_net_open("loop", &p->net), 0));
	for (int r = 0; r < RANKS; r++)
		cr_assert(eq(int, p->net->ops.listen(p->net->net, 0, RANKS, p->handle[r], &p->listener[r]), 0));
}

Test(net_seal, a_handle_of_another_rank_is_refused)
{
	static struct pair p;

	pair_listen(&p);
	memcpy(p.handle[1], p.handle[0], sizeof(p.handle[0]));
	cr_expect(eq(int, p.net->ops.connect(p.listener[0], p.handle, RANKS, 0, &p.comm[0]), -EP_EREMOTE));
	cr_expect(strstr(ep_last_error(), "ranks 0 and 1") != NULL, "%s", ep_last_error());
	for (int r = 0; r < RANKS; r++)
		p.net->ops.closeListen(p.listener[r]);
	ep_net_close(p.net);
}

/* The peer is in this process, as its handle proved; what it says of its memory is checked all the same. */
Test(net_seal, a_key_with_a_made_up_address_is_refused)
{
	static struct pair p;
	static uint8_t memory[RANKS][BYTES];
	struct loop_object key;

	pair_listen(&p);
	for (int r = 0; r < RANKS; r++) {
		ncclEpNetMem_v1_t mem = { .ptr = memory[r], .size = BYTES, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };

		cr_assert(eq(int, p.net->ops.connect(p.listener[r], p.handle, RANKS, r, &p.comm[r]), 0));
		cr_assert(eq(int, p.net->ops.regMr(p.comm[r], &mem, p.key[r], &p.mr[r]), 0));
	}
	memcpy(&key, p.key[1], sizeof(key));
	key.address = 16;
	memcpy(p.key[1], &key, sizeof(key));
	cr_expect(eq(int, p.net->ops.shareMr(p.comm[0], p.mr[0], p.key), -EP_EREMOTE));
	cr_expect(strstr(ep_last_error(), "rank 1") != NULL, "%s", ep_last_error());
	key.address = (uintptr_t)memory[1];
	memcpy(p.key[1], &key, sizeof(key));
	cr_expect(eq(int, p.net->ops.shareMr(p.comm[0], p.mr[0], p.key), 0));
	for (int r = 0; r < RANKS; r++) {
		p.net->ops.deregMr(p.comm[r], p.mr[r]);
		p.net->ops.closeComm(p.comm[r]);
		p.net->ops.closeListen(p.listener[r]);
	}
	ep_net_close(p.net);
}
