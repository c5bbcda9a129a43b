/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels as one source: what nvcc, clang and (through host_kernels.c) the host compiler are given. */
#include "kernels/gx.h"

#include "kernels/rowsig.cu"
#include "kernels/ring_push.cu"
#include "kernels/ll_dispatch.cu"
#include "kernels/ll_combine.cu"
#include "kernels/ll_mask.cu"
#include "kernels/ht_update.cu"
#include "kernels/ht_dispatch.cu"
#include "kernels/ht_combine.cu"
