// SPDX-License-Identifier: Apache-2.0
// Compiled while configuring: a compiler that cannot do this turns the CUDA row off, with its own words as the reason.
extern "C" __global__ void probe(const __grid_constant__ int a)
{
	(void)a;
}
