/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the device table, as their files write them; everybody else asks ep_dev_row. */
#ifndef EP_KERNELS_ROWS_H
#define EP_KERNELS_ROWS_H

#include "kernels/dev.h"

extern const struct ep_dev_ops ep_host_ops; /* host.c */
extern const struct ep_dev_ops ep_cuda_ops; /* cuda/, or the stub that says why not */

#endif
