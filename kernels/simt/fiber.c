/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simt/fiber.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/simt/san.h"

void simt_fiber_adopt(struct simt_fiber *self)
{
	pthread_attr_t attr;

	self->fake = NULL;
	self->tsan = san_fiber_self();
	self->stack = NULL;
	self->size = 0;
	if (pthread_getattr_np(pthread_self(), &attr) != 0)
		return;
	pthread_attr_getstack(&attr, &self->stack, &self->size);
	pthread_attr_destroy(&attr);
}

static size_t fiber_pitch(void)
{
	return SIMT_STACK + (size_t)sysconf(_SC_PAGESIZE);
}

int simt_fiber_create(struct simt_fiber *const *fibers, unsigned n, void (*entry)(void), void **map)
{
	size_t pitch = fiber_pitch(), guard = pitch - SIMT_STACK;
	char *base = mmap(NULL, n * pitch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED)
		return -ENOMEM;
	for (unsigned i = 0; i < n; i++) {
		if (mprotect(base + i * pitch, guard, PROT_NONE) != 0) {
			munmap(base, n * pitch);
			return -ENOMEM;
		}
	}
	for (unsigned i = 0; i < n; i++) {
		struct simt_fiber *f = fibers[i];

		f->stack = base + i * pitch + guard;
		f->size = SIMT_STACK;
		f->fake = NULL;
		f->tsan = san_fiber_create();
		/* Each stack starts a little lower than the one before: tops at the same page offset would share a
		 * few cache sets. */
		f->sp = simt_frame((char *)f->stack + SIMT_STACK - i % 61 * 192, entry);
	}
	*map = base;
	return 0;
}

void simt_fiber_destroy(struct simt_fiber *const *fibers, unsigned n, void *map)
{
	for (unsigned i = 0; i < n; i++) {
		san_fiber_destroy(fibers[i]->tsan);
		san_stack_forget(fibers[i]->stack, fibers[i]->size);
	}
	munmap(map, n * fiber_pitch());
}

SIMT_RAW void simt_fiber_switch(struct simt_fiber *from, struct simt_fiber *to)
{
	san_fiber_switch(to->tsan);
	san_stack_leave(&from->fake, to->stack, to->size);
	simt_swap(&from->sp, to->sp);
	san_stack_enter(from->fake);
}

SIMT_RAW void simt_fiber_begin(void)
{
	san_stack_enter(NULL);
}
