/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnccl_ep.so as frameworks take it: opened at run time, its functions found by name. The programs of this folder are
 * not linked with it.
 */
#ifndef EP_TEST_CALLERS_LOAD_H
#define EP_TEST_CALLERS_LOAD_H

#include "nccl_ep.h"

/* Those that TransformerEngine looks up, then the others. */
#define LOAD_NINE(X)           \
	X(ncclEpGetVersion)    \
	X(ncclEpCreateGroup)   \
	X(ncclEpGroupDestroy)  \
	X(ncclEpHandleMemSize) \
	X(ncclEpInitHandle)    \
	X(ncclEpUpdateHandle)  \
	X(ncclEpDispatch)      \
	X(ncclEpCombine)       \
	X(ncclEpHandleDestroy)
#define LOAD_OTHERS(X)         \
	X(ncclEpCreateHandle)  \
	X(ncclEpComplete)      \
	X(ncclEpGetAsyncError) \
	X(ncclEpErrorClear)    \
	X(ncclEpMaskQuery)     \
	X(ncclEpMaskUpdate)    \
	X(ncclEpMaskClean)

#define X(name) __typeof__(name) *name;
struct ep_calls {
	LOAD_NINE(X)
	LOAD_OTHERS(X)
};
#undef X

/* Filled by the first call of one of these; every rank calls it. 0, or -1 with a line on stderr. */
extern struct ep_calls ep;

/* TransformerEngine: $NCCL_EP_HOME/lib, RTLD_LOCAL, nine functions. */
int load_te(void);
/* nccl.ep: a file, RTLD_GLOBAL; the functions for masks then come from the global scope. */
int load_python(const char *file);

/* The message of the library's last failure in this thread; for messages of the tests only. */
const char *load_error(void);

#endif
