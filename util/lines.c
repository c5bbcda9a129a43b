/* SPDX-License-Identifier: Apache-2.0 */
#include "util/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define PATH_BYTES 4096

void ep_lines_add(struct ep_lines *lines, const char *fmt, ...)
{
	size_t room = lines->size - lines->used;
	va_list args;
	int n;

	if (!room)
		return;
	va_start(args, fmt);
	n = vsnprintf(lines->text + lines->used, room, fmt, args);
	va_end(args);
	if (n > 0)
		lines->used += (size_t)n < room ? (size_t)n : room - 1;
}

static int write_all(int fd, const char *text, size_t n)
{
	while (n) {
		ssize_t done = write(fd, text, n);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return -errno;
		text += done;
		n -= (size_t)done;
	}
	return 0;
}

int ep_lines_save(const struct ep_lines *lines, const char *path)
{
	char part[PATH_BYTES];
	int fd, rc, n = snprintf(part, sizeof(part), "%s.part", path);

	if (n < 0 || (size_t)n >= sizeof(part))
		return -ENAMETOOLONG;
	fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	rc = write_all(fd, lines->text, lines->used);
	if (close(fd) && !rc) /* a full disk may show here */
		rc = -errno;
	if (!rc && rename(part, path))
		rc = -errno;
	if (rc)
		unlink(part);
	return rc;
}
