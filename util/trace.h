/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans of time, for a file that chrome://tracing and ui.perfetto.dev read (the JSON array format). One trace per group
 * and rank, of bounded memory; NULL is a trace that is off, everywhere. All ranks of a host may name the same file:
 * each adds its spans when it ends, and the file is valid JSON after each of them.
 */
#ifndef EP_UTIL_TRACE_H
#define EP_UTIL_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "util/clock.h"

struct ep_trace;

/* The rows of a rank; engine i: EP_TRACE_ENGINE + i. */
enum ep_trace_row { EP_TRACE_CALLS, EP_TRACE_KERNELS, EP_TRACE_ENGINE };

/* key tells the groups of a rank apart. */
int ep_trace_open(const char *file, int rank, const char *label, uint32_t key, struct ep_trace **out);
/* Any thread. name stays valid; peer -1: none; n: bytes, or what the name counts. */
void ep_trace_span(struct ep_trace *trace, unsigned row, const char *name, uint64_t from, uint64_t to, int peer,
		   uint64_t n);
/* 0, or a negative errno with a message. Spans that come later are lost. */
int ep_trace_save(struct ep_trace *trace);
/* When nobody adds spans any more. */
void ep_trace_free(struct ep_trace *trace);

/* A kernel that runs in this thread: its time is either in waits or moves rows. */
struct ep_trace_run {
	struct ep_trace *trace;
	const char *name;
	uint64_t from;	      /* the kernel began */
	uint64_t moved;	      /* everything before is in a span */
	uint64_t since, till; /* the wait under way; 0: none */
};

extern _Thread_local struct ep_trace_run *ep_trace_running;

void ep_trace_begin(struct ep_trace_run *run, struct ep_trace *trace, const char *name);
void ep_trace_end(struct ep_trace_run *run);
void ep_trace_waited(struct ep_trace_run *run, uint64_t since);

/* Around one rest of a wait; 0: the thread's kernel is not traced. */
static inline uint64_t ep_trace_rest(void)
{
	return __builtin_expect(ep_trace_running != NULL, 0) ? ep_now_ns() : 0;
}

static inline void ep_trace_rested(uint64_t since)
{
	if (__builtin_expect(since != 0, 0))
		ep_trace_waited(ep_trace_running, since);
}

#endif
