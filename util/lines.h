/* SPDX-License-Identifier: Apache-2.0 */
/* Text that grows in memory of a fixed size, and the file it becomes. */
#ifndef EP_UTIL_LINES_H
#define EP_UTIL_LINES_H

#include <stddef.h>

struct ep_lines {
	char *text; /* of the caller; always terminated once something was added */
	size_t size, used;
};

/* What does not fit is cut. */
void ep_lines_add(struct ep_lines *lines, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Replaces the file, which is complete or not there at all: written under another name first. 0 or -errno. */
int ep_lines_save(const struct ep_lines *lines, const char *path);

#endif
