/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by host and device: argument structs, states in device memory, error words. */
#ifndef EP_KERNELS_ARGS_H
#define EP_KERNELS_ARGS_H

#include "kernels/ht/args.h"
#include "kernels/ll/args.h"
#include "kernels/ll/quant.h"
#include "kernels/op/args.h"
#include "kernels/op/far_args.h"
#include "kernels/probe/args_nic.h"
#include "kernels/probe/args_ring.h"
#include "kernels/probe/args_rowsig.h"

#endif
