/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels as one source, for clang and (through host/kernels.c) the host compiler; nvcc makes an image of each. */
#include "kernels/probe/kernels.cu"
#include "kernels/ll/kernels.cu"
#include "kernels/ht/kernels.cu"
