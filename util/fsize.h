/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing a file, also one in memory, past `ulimit -f` kills the process by SIGXFSZ, unless its thread blocks the
 * signal: then the call fails with EFBIG. The process's handler for it is never changed: that belongs to the program.
 */
#ifndef EP_UTIL_FSIZE_H
#define EP_UTIL_FSIZE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct ep_fsize {
	sigset_t mask; /* of the thread before */
	bool pending;  /* somebody else's signal, which stays */
};

/* Around calls that may grow a file. The second takes back the signal they raised, and keeps errno. */
void ep_fsize_begin(struct ep_fsize *fsize);
void ep_fsize_end(const struct ep_fsize *fsize);

/* strerror, with the limit for EFBIG. Returns buf. */
const char *ep_fsize_why(int err, char *buf, size_t size);

#endif
