/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that notices what no call of the caller would: a failure while the caller computes, or hangs elsewhere. */
#ifndef EP_PLUGIN_GUARD_H
#define EP_PLUGIN_GUARD_H

#include <stdbool.h>

struct ep_guard;

/* NULL is accepted as a guard everywhere: nothing is watched. */
int ep_guard_open(bool (*due)(void *arg), void (*report)(void *arg), void *arg, struct ep_guard **out);
/* Something may be due: due() is asked now, and not only a few times per second. Any thread, does not block. */
void ep_guard_wake(struct ep_guard *guard);
/* Calls report(), or waits until the thread has: once until ep_guard_again. */
void ep_guard_report(struct ep_guard *guard);
/* The next failure is to be reported, too. */
void ep_guard_again(struct ep_guard *guard);
/* Reports what is due, then ends the thread. Others may still call the functions above, until ep_guard_free. */
void ep_guard_stop(struct ep_guard *guard);
void ep_guard_free(struct ep_guard *guard);

#endif
