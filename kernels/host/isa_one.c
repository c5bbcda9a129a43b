/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/launch.h"

gx_host_fn gx_host_pick(unsigned kernel)
{
	return gx_host_kernels[kernel].run;
}
