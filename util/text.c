/* SPDX-License-Identifier: Apache-2.0 */
#include "util/text.h"

#include <stdio.h>

#include "util/error.h"

char *ep_text_take(char *out, size_t size, const void *in, size_t n)
{
	const unsigned char *from = in;
	size_t at = 0;

	for (size_t i = 0; i < n && from[i]; i++) {
		bool plain = from[i] >= ' ' && from[i] < 0x7f;
		size_t need = plain ? 1 : 4;

		if (at + need >= size)
			break;
		if (plain)
			out[at] = (char)from[i];
		else
			snprintf(out + at, 5, "\\x%02x", from[i]);
		at += need;
	}
	out[at] = '\0';
	return out;
}

int ep_rc_take(long long rc)
{
	return rc <= 0 && rc >= -EP_ERRNO_MAX ? (int)rc : -EP_EREMOTE;
}
