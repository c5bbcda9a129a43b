/* SPDX-License-Identifier: Apache-2.0 */
/* Handles and keys of loop: true ones, changed; from this process, from a child with the same files, from nobody. */
#include "net/loop/map.c"

#include <signal.h>
#include <sys/prctl.h>

#include "fuzz.h"

#define RANKS 3
#define BYTES 8192

static struct loop_handle handle[RANKS];
static struct loop_header *page[RANKS];
static struct loop_mr *mr[RANKS];
static struct loop_object key[RANKS];
static int pid[3]; /* ours, the child's, no process's */

static void memory_make(int r)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *ptr;

	MUST(fd >= 0 && !ftruncate(fd, 2 * BYTES) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	ptr = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	mr[r] = calloc(1, sizeof(*mr[r]));
	MUST(ptr != MAP_FAILED && mr[r]);
	*mr[r] = (struct loop_mr){ .base = { .base = ptr, .size = BYTES }, .owner = page[r], .fd = fd };
	loop_mr_add(mr[r]);
	MUST(!loop_object_make(ptr, BYTES, fd, 0, &key[r]));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	int fd;

	(void)argc;
	(void)argv;
	fuzz_quiet();
	for (int r = 0; r < RANKS; r++) {
		MUST(!loop_page_make(RANKS, &handle[r], &page[r], &fd));
		memory_make(r);
	}
	pid[0] = getpid();
	pid[1] = fork();
	pid[2] = INT32_MAX;
	if (!pid[1]) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return 0;
}

/* The files of other processes are none of our business. */
static void pid_pick(struct loop_object *object)
{
	object->pid = pid[(uint32_t)object->pid % 3];
}

static void handle_try(struct feed *f)
{
	int r = feed_u8(f) % RANKS;
	struct loop_handle h = handle[r];
	struct loop_header *header = NULL;
	struct loop_view views[2] = { { .base = NULL } };

	h.object.pid = feed_u8(f);
	feed_patch(f, &h, sizeof(h));
	pid_pick(&h.object);
	if (loop_page_open(&h, r, feed_u8(f) % RANKS, &header, views))
		return;
	MUST(header == (struct loop_header *)views[0].base && views[1].base);
	(void)*(volatile uint32_t *)&header->closed;
	(void)((volatile uint8_t *)views[1].base)[slice_size() - 1];
	loop_page_close(header, views);
}

static void key_try(struct feed *f)
{
	int r = feed_u8(f) % RANKS;
	struct loop_object object = key[r];
	struct loop_view view = { .base = NULL };
	struct loop_peer peer = { .header = page[r], .pid = pid[feed_u8(f) % 3] };

	peer.views[0].mapped = feed_u8(f) & 1 ? page[r] : NULL;
	object.pid = feed_u8(f);
	feed_patch(f, &object, sizeof(object));
	pid_pick(&object);
	object.size = BYTES; /* as ep_base_mr_share has checked */
	if (loop_object_open(&object, r, &peer, &view))
		return;
	(void)*(volatile uint8_t *)view.base;
	(void)((volatile uint8_t *)view.base)[BYTES - 1];
	MUST(view.mapped || view.base == mr[r]->base.base);
	loop_view_close(&view);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };

	if (feed_u8(&f) & 1)
		handle_try(&f);
	else
		key_try(&f);
	return 0;
}
