/* SPDX-License-Identifier: Apache-2.0 */
/* The nets of the library, and what turns a table of operations into a complete one. */
#ifndef EP_NET_ROWS_H
#define EP_NET_ROWS_H

#include "nccl_ep_net.h"

extern const ncclEpNet_v1_t ep_net_loop;
extern const ncclEpNet_v1_t ep_net_fabric;
extern const ncclEpNet_v1_t ep_net_faulty;
extern const ncclEpNet_v1_t ep_net_rails;
extern const ncclEpNet_v1_t ep_net_verbs;

/*
 * The tables of a net whose functions are named PREFIX_operation. Operations that not every net has, and those that
 * may come from net/base, follow the macro.
 */
#define EP_NET_OPS(label, prefix)                                                                              \
	.version = NCCL_EP_NET_VERSION, .size = sizeof(ncclEpNet_v1_t), .name = (label), .hot = &prefix##_hot, \
	.init = prefix##_init, .finalize = prefix##_finalize, .getProperties = prefix##_getProperties,         \
	.listen = prefix##_listen, .connect = prefix##_connect, .closeListen = prefix##_closeListen,           \
	.closeComm = prefix##_closeComm, .createContext = prefix##_createContext,                              \
	.destroyContext = prefix##_destroyContext, .regMr = prefix##_regMr, .shareMr = prefix##_shareMr,       \
	.deregMr = prefix##_deregMr
#define EP_NET_HOT_OPS(prefix) \
	.iput = prefix##_iput, .iflush = prefix##_iflush, .test = prefix##_test, .progress = prefix##_progress

/* Replaces NULL operations by stubs that answer -ENOTSUP. hot is a copy of *ops->hot, which is not changed. */
void ep_net_fill(ncclEpNet_v1_t *ops, ncclEpNetHot_v1_t *hot);

/*
 * The table of the plugin X: the library X, or else libnccl_ep_net-X.so. -ENOENT and a log line when it cannot be
 * loaded or has another version. The caller closes *library.
 */
int ep_net_load(const char *x, const ncclEpNet_v1_t **ops, void **library);

#endif
