/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors inside the library are negative errno values; each failure leaves one message in the thread that detected it.
 * The names below are the errno values that map to an NCCL result at the API.
 */
#ifndef EP_UTIL_ERROR_H
#define EP_UTIL_ERROR_H

#include <errno.h>
#include <stddef.h>

#include "util/log.h"

#define EP_EARG EINVAL	      /* ncclInvalidArgument */
#define EP_EUSAGE EPERM	      /* ncclInvalidUsage: wrong state, missing capability, limit of this configuration */
#define EP_EDEVICE ENXIO      /* ncclUnhandledCudaError: the device driver failed */
#define EP_EINTERNAL EPROTO   /* ncclInternalError: a bug */
#define EP_EREMOTE EREMOTEIO  /* ncclRemoteError: another rank failed or exited */
#define EP_ETIMEOUT ETIMEDOUT /* ncclTimeout */

/* Stores the message for ep_last_error(), logs it at WARN, and returns -err. */
int ep_fail_(enum ep_log_sub sub, const char *file, int line, int err, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
#define EP_FAIL(sub, err, ...) ep_fail_((sub), __FILE__, __LINE__, (err), __VA_ARGS__)

/* The last error with its cause before it, "WHY: last error", unless it says why already. Returns rc. */
int ep_because_(enum ep_log_sub sub, const char *file, int line, int rc, const char *why);
#define EP_BECAUSE(sub, rc, why) ep_because_((sub), __FILE__, __LINE__, (rc), (why))

/* calloc whose failure is an EP_FAIL: "out of memory: N x SIZE bytes for WHAT". The caller returns -ENOMEM. */
void *ep_calloc_(enum ep_log_sub sub, const char *file, int line, size_t n, size_t size, const char *what);
#define EP_CALLOC(sub, n, size, what) ep_calloc_((sub), __FILE__, __LINE__, (n), (size), (what))

/* Message of this thread's last failure, "" before the first. Valid until the next failure of the thread. */
const char *ep_last_error(void);

/* For a message from another thread (a service thread's failure, for the caller that waits for it). */
void ep_last_error_set(const char *message);

/* The ncclResult_t, as an int, for 0 or a negative errno. */
int ep_result(int rc);

/* "ncclInvalidArgument" etc.; "unknown result" for other values. */
const char *ep_result_name(int result);

#endif
