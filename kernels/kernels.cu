/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels as one source, for nvcc, clang and (through host/kernels.c) the host compiler. */
#include "kernels/gx/gx.h"

#include "kernels/probe/rowsig.cu"
#include "kernels/probe/ring_push.cu"
#include "kernels/probe/nic.cu"
#include "kernels/ll/dispatch.cu"
#include "kernels/ll/combine.cu"
#include "kernels/ll/mask.cu"
#include "kernels/ll/sources.cu"
#include "kernels/ht/update.cu"
#include "kernels/ht/dispatch.cu"
#include "kernels/ht/combine.cu"
