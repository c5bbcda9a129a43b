/* SPDX-License-Identifier: Apache-2.0 */
/* What another process sent, before it is used in a message: its text and its result codes. */
#ifndef EP_UTIL_TEXT_H
#define EP_UTIL_TEXT_H

#include <stddef.h>

#define EP_ERRNO_MAX 4095 /* as the kernel's */

/*
 * Copies at most n bytes of in, up to the first zero, as printable ASCII; other bytes become \xNN: a peer must not be
 * able to move the cursor of a terminal or to forge lines of a log. Cut to fit size, always terminated. Escaping twice
 * changes nothing, so that a text may be forwarded.
 */
char *ep_text_take(char *out, size_t size, const void *in, size_t n);

/* A peer's result: 0 or a negative errno; what is neither counts as -EP_EREMOTE. */
int ep_rc_take(long long rc);

#endif
