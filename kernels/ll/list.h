/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of LL, as in kernels/list.h. */
EP_KERNEL(ll_dispatch, ep_ll_args)
EP_KERNEL(ll_combine, ep_ll_args)
EP_KERNEL(ll_dispatch_any, ep_ll_args)
EP_KERNEL(ll_combine_any, ep_ll_args)
EP_KERNEL(ll_dispatch_far_few, ep_ll_args)
EP_KERNEL(ll_combine_far_few, ep_ll_args)
EP_KERNEL(ll_dispatch_far, ep_ll_args)
EP_KERNEL(ll_combine_far, ep_ll_args)
EP_KERNEL(ll_dispatch_far_any, ep_ll_args)
EP_KERNEL(ll_combine_far_any, ep_ll_args)
EP_KERNEL(ll_mask, ep_ll_mask_args)
EP_KERNEL(ll_sources, ep_ll_source_args)
