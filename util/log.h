/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_UTIL_LOG_H
#define EP_UTIL_LOG_H

#include <stdbool.h>

enum ep_log_level { EP_LOG_NONE, EP_LOG_VERSION, EP_LOG_WARN, EP_LOG_INFO, EP_LOG_TRACE };

/* Selected by NCCL_EP_DEBUG_SUBSYS; WARN is always printed. */
enum ep_log_sub { EP_INIT, EP_BOOT, EP_COMM, EP_DEV, EP_GROUP, EP_HANDLE, EP_NET, EP_PROXY, EP_ENV, EP_LOG_SUBS };

bool ep_log_on(enum ep_log_level level, enum ep_log_sub sub);
void ep_log_(enum ep_log_level level, enum ep_log_sub sub, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/* Arguments are evaluated only if the line is printed. */
#define EP_LOG(level, sub, ...)                                                   \
	do {                                                                      \
		if (ep_log_on((level), (sub)))                                    \
			ep_log_((level), (sub), __FILE__, __LINE__, __VA_ARGS__); \
	} while (0)
#define EP_WARN(sub, ...) EP_LOG(EP_LOG_WARN, sub, __VA_ARGS__)
#define EP_INFO(sub, ...) EP_LOG(EP_LOG_INFO, sub, __VA_ARGS__)
#define EP_TRACE(sub, ...) EP_LOG(EP_LOG_TRACE, sub, __VA_ARGS__)

#endif
