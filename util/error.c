/* SPDX-License-Identifier: Apache-2.0 */
#include "util/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[512];

const char *ep_last_error(void)
{
	return last_error;
}

void ep_last_error_set(const char *message)
{
	snprintf(last_error, sizeof(last_error), "%s", message);
}

int ep_fail_(enum ep_log_sub sub, const char *file, int line, int err, const char *fmt, ...)
{
	/* Not formatted in place: an argument may be ep_last_error(). */
	char text[sizeof(last_error)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	ep_last_error_set(text);
	ep_log_(EP_LOG_WARN, sub, file, line, "%s", text);
	return -err;
}

int ep_because_(enum ep_log_sub sub, const char *file, int line, int rc, const char *why)
{
	if (strstr(last_error, why))
		return rc;
	return ep_fail_(sub, file, line, -rc, "%s: %s", why, last_error);
}

void *ep_calloc_(enum ep_log_sub sub, const char *file, int line, size_t n, size_t size, const char *what)
{
	void *mem = calloc(n ? n : 1, size ? size : 1);

	if (!mem)
		ep_fail_(sub, file, line, ENOMEM, "out of memory: %zu x %zu bytes for %s", n, size, what);
	return mem;
}

/* Values of ncclResult_t; util does not include nccl.h. */
static const struct {
	int err;
	int result;
} results[] = {
	{ 0, 0 },	   { EP_EARG, 4 },     { EP_EUSAGE, 5 }, { EP_EDEVICE, 1 }, { EP_EINTERNAL, 3 },
	{ EP_EREMOTE, 6 }, { EP_ETIMEOUT, 8 },
};

int ep_result(int rc)
{
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		if (rc == -results[i].err)
			return results[i].result;
	return 2; /* ncclSystemError: any other errno is the operating system's */
}

const char *ep_result_name(int result)
{
	static const char *const names[] = {
		"ncclSuccess",	     "ncclUnhandledCudaError", "ncclSystemError",
		"ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
		"ncclRemoteError",   "ncclInProgress",	       "ncclTimeout",
	};

	if (result < 0 || result >= (int)(sizeof(names) / sizeof(names[0])))
		return "unknown result";
	return names[result];
}
