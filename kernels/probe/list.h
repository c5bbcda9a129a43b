/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of tests and measurements, as in kernels/list.h. */
EP_KERNEL(rowsig, ep_rowsig_args)
EP_KERNEL(ring_push, ep_ring_push_args)
EP_KERNEL(nic, ep_nic_args)
