/* SPDX-License-Identifier: Apache-2.0 */
/* EP_KERNEL(name, argument struct): all kernels; included several times, hence no guard. */
#include "kernels/probe/list.h"
#include "kernels/ll/list.h"
#include "kernels/ht/list.h"
