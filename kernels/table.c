/* SPDX-License-Identifier: Apache-2.0 */
/* All devices, by kind. */
#include <pthread.h>

#include "kernels/cuda/cuda_dev.h"
#include "kernels/dev.h"
#include "kernels/host/host.h"

static const struct ep_dev_ops *const rows[EP_DEV_KINDS] = {
	[EP_DEV_HOST] = &ep_host_ops,
	[EP_DEV_CUDA] = &ep_cuda_ops,
};

static struct ep_dev_ops filled[EP_DEV_KINDS];
static pthread_once_t filled_once = PTHREAD_ONCE_INIT;

static void rows_fill(void)
{
	for (int kind = 0; kind < EP_DEV_KINDS; kind++) {
		filled[kind] = *rows[kind];
		ep_dev_fill(&filled[kind]);
	}
}

const struct ep_dev_ops *ep_dev_row(enum ep_dev_kind kind)
{
	pthread_once(&filled_once, rows_fill);
	return &filled[kind];
}

enum ep_dev_kind ep_dev_gpu_kind(void)
{
	int n;

	for (int kind = EP_DEV_HOST + 1; kind < EP_DEV_KINDS; kind++)
		if (!ep_dev_row((enum ep_dev_kind)kind)->count(&n) && n > 0)
			return (enum ep_dev_kind)kind;
	return (enum ep_dev_kind)(EP_DEV_HOST + 1);
}
