/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: stacks that share one thread. Only callee-saved registers are switched: 3 ns, where ucontext needs a system
 * call for the signal mask. The sanitizers are notified of every switch. */
#ifndef EP_SIMT_FIBER_H
#define EP_SIMT_FIBER_H

#include <stddef.h>

struct simt_fiber {
	void *sp;
	void *stack; /* lowest byte, above the guard page */
	size_t size;
	void *tsan, *fake; /* TSan's fiber, ASan's fake stack */
};

/* The thread's own stack as a fiber, to switch back to. */
void simt_fiber_adopt(struct simt_fiber *self);

/* n fibers that start in entry when first switched to; entry never returns. 0 or -ENOMEM. */
int simt_fiber_create(struct simt_fiber *const *fibers, unsigned n, void (*entry)(void), void **map);
void simt_fiber_destroy(struct simt_fiber *const *fibers, unsigned n, void *map);

void simt_fiber_switch(struct simt_fiber *from, struct simt_fiber *to);
void simt_fiber_begin(void); /* first thing in entry */

/* Per architecture: fiber_<cpu>.c. The frame makes simt_swap return into entry. */
void simt_swap(void **save, void *load);
void *simt_frame(void *top, void (*entry)(void));

#endif
