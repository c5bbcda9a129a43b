/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simt/fiber.h"

#include <stdint.h>
#include <string.h>

/* rbx, rbp and r12 to r15 are callee-saved; so are the control bits of MXCSR and x87, which no kernel changes: a fiber
 * runs with those of its thread. */
#define FRAME 64

__asm__(".text\n"
	".globl simt_swap\n"
	".hidden simt_swap\n"
	".type simt_swap, @function\n"
	"simt_swap:\n"
	"	pushq	%rbp\n"
	"	pushq	%rbx\n"
	"	pushq	%r12\n"
	"	pushq	%r13\n"
	"	pushq	%r14\n"
	"	pushq	%r15\n"
	"	movq	%rsp, (%rdi)\n"
	"	movq	%rsi, %rsp\n"
	"	popq	%r15\n"
	"	popq	%r14\n"
	"	popq	%r13\n"
	"	popq	%r12\n"
	"	popq	%rbx\n"
	"	popq	%rbp\n"
	"	ret\n"
	".size simt_swap, .-simt_swap\n");

/* The six registers, the return address, and above it a return address of 0 where unwinders stop. On entry the stack
 * must be as after a call: 8 bytes off a multiple of 16. */
void *simt_frame(void *top, void (*entry)(void))
{
	void **frame = (void **)(((uintptr_t)top & ~(uintptr_t)15) - FRAME);

	memset(frame, 0, FRAME);
	frame[6] = (void *)entry;
	return frame;
}
