/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of HT, as in kernels/list.h. */
EP_KERNEL(ht_update, ep_ht_args)
EP_KERNEL(ht_dispatch, ep_ht_args)
EP_KERNEL(ht_combine, ep_ht_args)
EP_KERNEL(ht_far_update, ep_ht_args)
EP_KERNEL(ht_far_dispatch, ep_ht_args)
EP_KERNEL(ht_far_combine, ep_ht_args)
EP_KERNEL(ht_barrier, ep_ht_args)
EP_KERNEL(ht_far_barrier, ep_ht_args)
