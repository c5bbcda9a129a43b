/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_UTIL_REST_H
#define EP_UTIL_REST_H

#include <sched.h>

#include "util/clock.h"

#define EP_REST_BUSY_NS 5000000u /* of a yield: more than the slice of one other thread */
#define EP_REST_NAP_NS 20000u
#define EP_REST_NAPS_NS 100000000u
#define EP_REST_STORM_NS 1000000u /* of yields, one after the other */
#define EP_REST_APART_NS 20000u	  /* between two polls: not of one wait */

/*
 * Between two polls of something that another thread may need this CPU for. Yields, which costs less than a microsecond
 * on an idle CPU. But Linux takes the rest of its slice from a thread that yields, so among busy threads every yield
 * lasts as long as the slices of all others, and an operation has a dozen of them, one per handover between a rank and
 * an engine: with ten busy threads per CPU a round of HT across nodes took up to 1.7 s. A thread that sleeps keeps its
 * share and is soon back. So after a yield that lasted long it sleeps instead, for a while: 0.4 s. Not always: where
 * the busy threads are ranks of this job, sleeps of 70 us, as short as they get, double its time.
 * And while threads of a job do nothing but yield to each other, Linux 6.18 may run nothing else on their CPUs, for
 * a minute and more: neither other programs nor its own threads, without which TCP stands still. So a wait of many
 * yields sleeps once in a while.
 */
static inline void ep_rest(void)
{
	static _Thread_local uint64_t naps_end, storm, last;
	struct timespec nap = ep_timespec(EP_REST_NAP_NS);
	uint64_t start = ep_now_ns(), end;

	if (start - last > EP_REST_APART_NS)
		storm = start;
	if (start < naps_end || start - storm > EP_REST_STORM_NS) {
		nanosleep(&nap, NULL);
		last = 0;
		return;
	}
	sched_yield();
	last = end = ep_now_ns();
	if (end - start > EP_REST_BUSY_NS)
		naps_end = end + EP_REST_NAPS_NS;
}

#endif
