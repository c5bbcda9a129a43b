/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/simt/fiber.h"

#include <stdint.h>
#include <string.h>

/* x19 to x30 and the lower halves of v8 to v15 are callee-saved. */
#define FRAME 160

__asm__(".text\n"
	".globl simt_swap\n"
	".hidden simt_swap\n"
	".type simt_swap, %function\n"
	"simt_swap:\n"
	"	sub	sp, sp, #160\n"
	"	stp	x19, x20, [sp]\n"
	"	stp	x21, x22, [sp, #16]\n"
	"	stp	x23, x24, [sp, #32]\n"
	"	stp	x25, x26, [sp, #48]\n"
	"	stp	x27, x28, [sp, #64]\n"
	"	stp	x29, x30, [sp, #80]\n"
	"	stp	d8, d9, [sp, #96]\n"
	"	stp	d10, d11, [sp, #112]\n"
	"	stp	d12, d13, [sp, #128]\n"
	"	stp	d14, d15, [sp, #144]\n"
	"	mov	x9, sp\n"
	"	str	x9, [x0]\n"
	"	mov	sp, x1\n"
	"	ldp	x19, x20, [sp]\n"
	"	ldp	x21, x22, [sp, #16]\n"
	"	ldp	x23, x24, [sp, #32]\n"
	"	ldp	x25, x26, [sp, #48]\n"
	"	ldp	x27, x28, [sp, #64]\n"
	"	ldp	x29, x30, [sp, #80]\n"
	"	ldp	d8, d9, [sp, #96]\n"
	"	ldp	d10, d11, [sp, #112]\n"
	"	ldp	d12, d13, [sp, #128]\n"
	"	ldp	d14, d15, [sp, #144]\n"
	"	add	sp, sp, #160\n"
	"	ret\n"
	".size simt_swap, .-simt_swap\n");

void *simt_frame(void *top, void (*entry)(void))
{
	void **frame = (void **)(((uintptr_t)top & ~(uintptr_t)15) - FRAME);

	memset(frame, 0, FRAME);
	frame[11] = (void *)entry; /* x30 */
	return frame;
}
