/* SPDX-License-Identifier: Apache-2.0 */
/* The current context and capture mode of an entry point; see cuda_dev.h. */
#include "kernels/cuda/cuda_dev.h"

int ep_cuda_enter(const struct ep_cuda_dev *dev, struct ep_cuda_scope *scope)
{
	int rc = EP_CU(cuCtxPushCurrent_v2, (dev->ctx), "for GPU %d", dev->dev.ordinal);

	if (rc)
		return rc;
	scope->mode = EP_CU_CAPTURE_MODE_RELAXED;
	rc = EP_CU(cuThreadExchangeStreamCaptureMode, (&scope->mode), "for GPU %d", dev->dev.ordinal);
	if (rc) {
		struct CUctx_st *popped;

		EP_CU_NOTE(cuCtxPopCurrent_v2, (&popped));
	}
	return rc;
}

void ep_cuda_leave(const struct ep_cuda_scope *scope)
{
	unsigned mode = scope->mode;
	struct CUctx_st *popped;

	EP_CU_NOTE(cuThreadExchangeStreamCaptureMode, (&mode));
	EP_CU_NOTE(cuCtxPopCurrent_v2, (&popped));
}
