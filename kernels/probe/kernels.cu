/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of tests and measurements as one source. */
#include "kernels/gx/gx.h"

#include "kernels/probe/rowsig.cu"
#include "kernels/probe/ring_push.cu"
#include "kernels/probe/nic.cu"
