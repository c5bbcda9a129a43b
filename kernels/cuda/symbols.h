/* SPDX-License-Identifier: Apache-2.0 */
/*
 * EP_CU_SYM(needed, symbol, parameters): the functions of libcuda that we call; included several times, hence no guard.
 * A symbol is the name libcuda exports, with its version; all return a CUresult. Names without _ptsz take stream NULL
 * as the legacy default stream, which is what a caller's NULL means unless compiled for per-thread streams.
 * test/kernels/cuda_decl.c compares this list and constants.h with the vendor's header where there is one.
 */
/* clang-format off */
EP_CU_SYM(true, cuInit, (unsigned flags))
EP_CU_SYM(true, cuDriverGetVersion, (int *version))
EP_CU_SYM(true, cuGetErrorName, (unsigned error, const char **out))
EP_CU_SYM(true, cuGetErrorString, (unsigned error, const char **out))

EP_CU_SYM(true, cuDeviceGetCount, (int *out))
EP_CU_SYM(true, cuDeviceGet, (int *device, int ordinal))
EP_CU_SYM(true, cuDeviceGetName, (char *name, int size, int device))
EP_CU_SYM(true, cuDeviceGetAttribute, (int *out, unsigned attribute, int device))
EP_CU_SYM(true, cuDeviceCanAccessPeer, (int *out, int device, int peer))
EP_CU_SYM(false, cuDeviceGetPCIBusId, (char *out, int size, int device))
EP_CU_SYM(false, cuDeviceGetUuid_v2, (struct CUuuid_st *out, int device))

EP_CU_SYM(true, cuDevicePrimaryCtxRetain, (struct CUctx_st **out, int device))
EP_CU_SYM(true, cuDevicePrimaryCtxRelease_v2, (int device))
EP_CU_SYM(true, cuCtxPushCurrent_v2, (struct CUctx_st *ctx))
EP_CU_SYM(true, cuCtxPopCurrent_v2, (struct CUctx_st **out))
EP_CU_SYM(true, cuCtxGetCurrent, (struct CUctx_st **out))
EP_CU_SYM(true, cuCtxGetDevice, (int *device))
EP_CU_SYM(false, cuCtxGetDevResource, (struct CUctx_st *ctx, struct ep_cu_resource *out, unsigned type))
EP_CU_SYM(true, cuCtxEnablePeerAccess, (struct CUctx_st *peer, unsigned flags))

EP_CU_SYM(true, cuModuleLoadData, (struct CUmod_st **out, const void *image))
EP_CU_SYM(true, cuModuleUnload, (struct CUmod_st *mod))
EP_CU_SYM(true, cuModuleGetFunction, (struct CUfunc_st **out, struct CUmod_st *mod, const char *name))
EP_CU_SYM(true, cuFuncGetAttribute, (int *out, unsigned attribute, struct CUfunc_st *fn))
EP_CU_SYM(true, cuFuncSetAttribute, (struct CUfunc_st *fn, unsigned attribute, int value))
EP_CU_SYM(false, cuFuncLoad, (struct CUfunc_st *fn))
EP_CU_SYM(true, cuLaunchKernel,
	  (struct CUfunc_st *fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
	   unsigned shared, struct CUstream_st *stream, void **params, void **extra))

EP_CU_SYM(true, cuStreamCreate, (struct CUstream_st **out, unsigned flags))
EP_CU_SYM(true, cuStreamDestroy_v2, (struct CUstream_st *stream))
EP_CU_SYM(true, cuStreamQuery, (struct CUstream_st *stream))
EP_CU_SYM(true, cuStreamIsCapturing, (struct CUstream_st *stream, unsigned *status))
EP_CU_SYM(true, cuThreadExchangeStreamCaptureMode, (unsigned *mode))
EP_CU_SYM(true, cuMemcpyAsync, (unsigned long long dst, unsigned long long src, size_t n, struct CUstream_st *stream))
EP_CU_SYM(true, cuMemsetD8Async, (unsigned long long dst, unsigned char byte, size_t n, struct CUstream_st *stream))

EP_CU_SYM(true, cuMemAlloc_v2, (unsigned long long *out, size_t size))
EP_CU_SYM(true, cuMemFree_v2, (unsigned long long ptr))
EP_CU_SYM(true, cuMemGetAddressRange_v2, (unsigned long long *base, size_t *size, unsigned long long ptr))
EP_CU_SYM(true, cuMemHostAlloc, (void **out, size_t size, unsigned flags))
EP_CU_SYM(true, cuMemHostGetDevicePointer_v2, (unsigned long long *out, void *host, unsigned flags))
EP_CU_SYM(true, cuMemFreeHost, (void *host))
EP_CU_SYM(true, cuMemHostRegister_v2, (void *host, size_t size, unsigned flags))
EP_CU_SYM(true, cuMemHostUnregister, (void *host))
EP_CU_SYM(true, cuPointerGetAttribute, (void *out, unsigned attribute, unsigned long long ptr))
EP_CU_SYM(false, cuMemGetHandleForAddressRange,
	  (void *out, unsigned long long ptr, size_t size, unsigned type, unsigned long long flags))

EP_CU_SYM(true, cuIpcGetMemHandle, (struct ep_cu_ipc *out, unsigned long long ptr))
EP_CU_SYM(true, cuIpcOpenMemHandle_v2, (unsigned long long *out, struct ep_cu_ipc handle, unsigned flags))
EP_CU_SYM(true, cuIpcCloseMemHandle, (unsigned long long ptr))

EP_CU_SYM(true, cuMemGetAllocationGranularity, (size_t *out, const struct ep_cu_mem_prop *prop, unsigned option))
EP_CU_SYM(true, cuMemCreate,
	  (unsigned long long *handle, size_t size, const struct ep_cu_mem_prop *prop, unsigned long long flags))
EP_CU_SYM(true, cuMemRelease, (unsigned long long handle))
EP_CU_SYM(true, cuMemAddressReserve,
	  (unsigned long long *out, size_t size, size_t alignment, unsigned long long hint, unsigned long long flags))
EP_CU_SYM(true, cuMemAddressFree, (unsigned long long ptr, size_t size))
EP_CU_SYM(true, cuMemMap,
	  (unsigned long long ptr, size_t size, size_t offset, unsigned long long handle, unsigned long long flags))
EP_CU_SYM(true, cuMemUnmap, (unsigned long long ptr, size_t size))
EP_CU_SYM(true, cuMemSetAccess, (unsigned long long ptr, size_t size, const struct ep_cu_access *access, size_t count))
EP_CU_SYM(true, cuMemExportToShareableHandle,
	  (void *out, unsigned long long handle, unsigned type, unsigned long long flags))
EP_CU_SYM(true, cuMemImportFromShareableHandle, (unsigned long long *handle, void *os_handle, unsigned type))
EP_CU_SYM(true, cuMemRetainAllocationHandle, (unsigned long long *handle, void *ptr))
