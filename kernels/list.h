/* SPDX-License-Identifier: Apache-2.0 */
/* EP_KERNEL(name, argument struct): all kernels; included several times, hence no guard. */
EP_KERNEL(rowsig, ep_rowsig_args)
EP_KERNEL(ring_push, ep_ring_push_args)
EP_KERNEL(nic, ep_nic_args)
EP_KERNEL(ll_dispatch, ep_ll_args)
EP_KERNEL(ll_combine, ep_ll_args)
EP_KERNEL(ll_dispatch_far, ep_ll_args)
EP_KERNEL(ll_combine_far, ep_ll_args)
EP_KERNEL(ll_mask, ep_ll_mask_args)
EP_KERNEL(ht_update, ep_ht_args)
EP_KERNEL(ht_dispatch, ep_ht_args)
EP_KERNEL(ht_combine, ep_ht_args)
