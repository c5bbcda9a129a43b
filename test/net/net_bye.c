/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_bye SPEC: two ranks, a process each, close at the same time, and what one still writes to the other comes late:
 * here process_vm_writev, by which shm moves a put, waits on rank 0. It must not reach what rank 1 has freed: a bye
 * over shm, late by a hair, changed the heap (once in ten runs of 92 groups). 77: no such net, or it moves puts
 * otherwise.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test/rig/net_rig.h"

enum { BYTES = 8192, BLOCK = 240, BLOCKS = 8192, EARLY_US = 20000, LATE_US = 100000 };

static bool waits;
static bool *late; /* of all processes */

/* libfabric's, too: the program's symbols come first. Extra arguments are harmless. */
__attribute__((visibility("default"))) long syscall(long number, ...)
{
	static long (*next)(long, ...);
	long a[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "syscall");
	if (number == SYS_process_vm_writev && __atomic_exchange_n(&waits, false, __ATOMIC_RELAXED)) {
		usleep(LATE_US);
		*late = true;
	}
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void ends(struct net_rank *me)
{
	uint8_t **block = calloc(BLOCKS, sizeof(*block));

	net_meet(me);
	if (me->rank)
		usleep(EARLY_US);
	else
		__atomic_store_n(&waits, true, __ATOMIC_RELAXED);
	net_close(me);
	for (int i = 0; block && i < BLOCKS; i++) { /* what it has freed among them */
		block[i] = malloc(BLOCK);
		if (block[i])
			memset(block[i], 0x5a, BLOCK);
	}
	net_meet(me);
	for (int i = 0; block && i < BLOCKS; i++) {
		EXPECT(me, block[i] && block[i][0] == 0x5a && !memcmp(block[i], block[i] + 1, BLOCK - 1));
		free(block[i]);
	}
	EXPECT(me, block);
	free(block);
	net_alone(me);
}

int main(int argc, char **argv)
{
	struct net_case test = { .ranks = 2, .each = 1, .bytes = BYTES, .run = ends };

	if (argc != 2)
		return 2;
	if (net_absent(argv[1]))
		return 77;
	test.spec = argv[1];
	late = mmap(NULL, sizeof(*late), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (late == MAP_FAILED || net_run(&test))
		return 1;
	return *late ? 0 : 77;
}
