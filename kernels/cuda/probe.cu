// SPDX-License-Identifier: Apache-2.0
// Compiled at configure time: if this fails, the CUDA row is disabled, with the compiler's message as the reason.
extern "C" __global__ void probe(const __grid_constant__ int a)
{
	(void)a;
}
