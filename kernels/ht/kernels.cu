/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of HT as one source. */
#include "kernels/gx/gx.h"

#include "kernels/ht/update.cu"
#include "kernels/ht/barrier.cu"
#include "kernels/ht/dispatch.cu"
#include "kernels/ht/combine.cu"
