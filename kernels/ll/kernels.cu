/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of LL as one source. */
#include "kernels/gx/gx.h"

#include "kernels/ll/dispatch.cu"
#include "kernels/ll/combine.cu"
#include "kernels/ll/mask.cu"
#include "kernels/ll/sources.cu"
