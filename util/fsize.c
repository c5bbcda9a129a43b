/* SPDX-License-Identifier: Apache-2.0 */
#include "util/fsize.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static sigset_t only_xfsz(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGXFSZ);
	return set;
}

static bool is_pending(void)
{
	sigset_t set;

	return !sigpending(&set) && sigismember(&set, SIGXFSZ) == 1;
}

void ep_fsize_begin(struct ep_fsize *fsize)
{
	sigset_t xfsz = only_xfsz();

	fsize->pending = is_pending();
	pthread_sigmask(SIG_BLOCK, &xfsz, &fsize->mask);
}

/* The kernel sends it to the thread that makes the call, so no other can have taken it. */
void ep_fsize_end(const struct ep_fsize *fsize)
{
	const struct timespec now = { 0 };
	sigset_t xfsz = only_xfsz();
	int err = errno;

	if (!fsize->pending && is_pending())
		sigtimedwait(&xfsz, NULL, &now);
	pthread_sigmask(SIG_SETMASK, &fsize->mask, NULL);
	errno = err;
}

const char *ep_fsize_why(int err, char *buf, size_t size)
{
	struct rlimit limit = { 0 };

	if (err == EFBIG && !getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY)
		snprintf(buf, size, "%s: the process may write files of %llu bytes: raise ulimit -f", strerror(err),
			 (unsigned long long)limit.rlim_cur);
	else
		snprintf(buf, size, "%s", strerror(err));
	return buf;
}
