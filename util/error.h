/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors inside the library are negative errno values; each failure leaves one sentence in the thread that saw it.
 * The names below say which errno stands for which NCCL result, so that the mapping at the edge is one table.
 */
#ifndef EP_UTIL_ERROR_H
#define EP_UTIL_ERROR_H

#include <errno.h>
#include <stddef.h>

#include "util/log.h"

#define EP_EARG EINVAL	      /* ncclInvalidArgument: what the caller passed */
#define EP_EUSAGE EPERM	      /* ncclInvalidUsage: wrong state, missing capability, a limit of this configuration */
#define EP_EDEVICE ENXIO      /* ncclUnhandledCudaError: the device driver said no */
#define EP_EINTERNAL EPROTO   /* ncclInternalError: a bug of ours */
#define EP_EREMOTE EREMOTEIO  /* ncclRemoteError: another rank failed or went away */
#define EP_ETIMEOUT ETIMEDOUT /* ncclTimeout */

/* Keeps the sentence for ep_last_error(), logs it once at WARN, and returns -err. */
int ep_fail_(enum ep_log_sub sub, const char *file, int line, int err, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
#define EP_FAIL(sub, err, ...) ep_fail_((sub), __FILE__, __LINE__, (err), __VA_ARGS__)

/* calloc whose failure is an EP_FAIL: "out of memory: N bytes for WHAT". The caller returns -ENOMEM. */
void *ep_calloc_(enum ep_log_sub sub, const char *file, int line, size_t n, size_t size, const char *what);
#define EP_CALLOC(sub, n, size, what) ep_calloc_((sub), __FILE__, __LINE__, (n), (size), (what))

/* The sentence of this thread's last failure; "" before the first. Valid until the thread's next failure. */
const char *ep_last_error(void);

/* Hands a sentence from one thread to another (a service thread's failure to the caller that waits for it). */
void ep_last_error_set(const char *sentence);

/* The ncclResult_t value, as a plain int, for 0 or a negative errno. */
int ep_result(int rc);

/* "ncclInvalidArgument" and so on; "unknown result" for anything else. */
const char *ep_result_name(int result);

#endif
