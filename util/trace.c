/* SPDX-License-Identifier: Apache-2.0 */
#include "util/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "util/error.h"
#include "util/lines.h"

#define SPANS 262144u	/* 10 MiB; later ones are counted only */
#define SPAN_TEXT 192u	/* bytes of a span in the file, at most */
#define HEAD_TEXT 2048u /* and of what names the rows */
#define ROWS 16u	/* of a group */
#define LOCK_MS 10000	/* for the other ranks to write theirs */
#define WAIT_NS 1000u	/* shorter waits count as work */
#define APART_NS 20000u /* rests this close are one wait */
#define DAY_NS 86400000000000ull

struct span {
	const char *name; /* written last (release); NULL: not complete */
	uint64_t from, to, n;
	int32_t peer;
	uint32_t row;
};

struct ep_trace {
	char *file, *label;
	int rank;
	uint32_t key;
	/* To the time of day: the monotonic clocks of two hosts have nothing in common. Of day, not of epoch: readers
	 * keep microseconds in a double. */
	uint64_t shift;
	uint64_t used; /* atomic; may exceed SPANS */
	struct span *span;
};

_Thread_local struct ep_trace_run *ep_trace_running;

static uint64_t shift_of(void)
{
	struct timespec day;
	uint64_t now = ep_now_ns();

	clock_gettime(CLOCK_REALTIME, &day);
	return ((uint64_t)day.tv_sec * 1000000000ull + (uint64_t)day.tv_nsec) % DAY_NS - now;
}

int ep_trace_open(const char *file, int rank, const char *label, uint32_t key, struct ep_trace **out)
{
	struct ep_trace *trace = EP_CALLOC(EP_GROUP, 1, sizeof(*trace), "a trace");

	if (!trace)
		return -ENOMEM;
	trace->span = EP_CALLOC(EP_GROUP, SPANS, sizeof(*trace->span), "the spans of a trace");
	trace->file = trace->span ? strdup(file) : NULL;
	trace->label = trace->file ? strdup(label) : NULL;
	trace->rank = rank;
	trace->key = key;
	trace->shift = shift_of();
	if (!trace->label) {
		ep_trace_free(trace);
		return -ENOMEM;
	}
	*out = trace;
	return 0;
}

void ep_trace_free(struct ep_trace *trace)
{
	if (!trace)
		return;
	free(trace->label);
	free(trace->file);
	free(trace->span);
	free(trace);
}

void ep_trace_span(struct ep_trace *trace, unsigned row, const char *name, uint64_t from, uint64_t to, int peer,
		   uint64_t n)
{
	uint64_t i;

	if (!trace || to < from)
		return;
	i = __atomic_fetch_add(&trace->used, 1, __ATOMIC_RELAXED);
	if (i >= SPANS)
		return;
	trace->span[i].from = from;
	trace->span[i].to = to;
	trace->span[i].n = n;
	trace->span[i].peer = peer;
	trace->span[i].row = row;
	/* R1: pairs with A1 in spans_text. */
	__atomic_store_n(&trace->span[i].name, name, __ATOMIC_RELEASE);
}

/* ---- the kernel that runs in this thread ---- */

void ep_trace_begin(struct ep_trace_run *run, struct ep_trace *trace, const char *name)
{
	if (!trace)
		return;
	*run = (struct ep_trace_run){ .trace = trace, .name = name };
	run->from = run->moved = ep_now_ns();
	ep_trace_running = run;
}

static void wait_close(struct ep_trace_run *run)
{
	if (run->till - run->since < WAIT_NS)
		return;
	ep_trace_span(run->trace, EP_TRACE_KERNELS, "rows", run->moved, run->since, -1, 0);
	ep_trace_span(run->trace, EP_TRACE_KERNELS, "wait", run->since, run->till, -1, 0);
	run->moved = run->till;
}

void ep_trace_waited(struct ep_trace_run *run, uint64_t since)
{
	if (!run->since || since - run->till > APART_NS) {
		wait_close(run);
		run->since = since;
	}
	run->till = ep_now_ns();
}

void ep_trace_end(struct ep_trace_run *run)
{
	uint64_t now = ep_now_ns();

	if (ep_trace_running != run)
		return;
	ep_trace_running = NULL;
	wait_close(run);
	ep_trace_span(run->trace, EP_TRACE_KERNELS, "rows", run->moved, now, -1, 0);
	ep_trace_span(run->trace, EP_TRACE_KERNELS, run->name, run->from, now, -1, 0);
}

/* ---- the file ---- */

static void rows_text(const struct ep_trace *trace, uint32_t rows, struct ep_lines *out)
{
	static const char *const names[] = { "calls", "kernels", "engine" };

	ep_lines_add(out, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
		     trace->rank, trace->rank);
	for (uint32_t r = 0; r < rows; r++)
		ep_lines_add(out,
			     ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%u,\"args\":{\"name\":"
			     "\"%s %08x: %s %u\"}}",
			     trace->rank, (trace->key & 0xfffffu) * ROWS + r, trace->label, trace->key,
			     names[r < EP_TRACE_ENGINE ? r : EP_TRACE_ENGINE],
			     r < EP_TRACE_ENGINE ? 0 : r - EP_TRACE_ENGINE);
}

static void span_text(const struct ep_trace *trace, const struct span *s, const char *name, struct ep_lines *out)
{
	uint64_t at = s->from + trace->shift, took = s->to - s->from;

	ep_lines_add(out,
		     ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%u,\"ts\":%llu.%03u,\"dur\":%llu.%03u,"
		     "\"args\":{",
		     name, trace->rank, (trace->key & 0xfffffu) * ROWS + s->row, (unsigned long long)(at / 1000),
		     (unsigned)(at % 1000), (unsigned long long)(took / 1000), (unsigned)(took % 1000));
	if (s->peer >= 0)
		ep_lines_add(out, "\"peer\":%d%s", s->peer, s->n ? "," : "");
	if (s->n)
		ep_lines_add(out, "\"n\":%llu", (unsigned long long)s->n);
	ep_lines_add(out, "}}");
}

static int spans_text(const struct ep_trace *trace, struct ep_lines *out)
{
	uint64_t used = __atomic_load_n(&trace->used, __ATOMIC_RELAXED), n = used < SPANS ? used : SPANS;
	uint32_t rows = 0;

	out->size = HEAD_TEXT + n * SPAN_TEXT;
	out->text = EP_CALLOC(EP_GROUP, 1, out->size, "the text of a trace");
	if (!out->text)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++)
		rows = trace->span[i].row >= rows ? trace->span[i].row + 1 : rows;
	rows_text(trace, rows < ROWS ? rows : ROWS, out);
	for (uint64_t i = 0; i < n; i++) {
		const char *name = __atomic_load_n(&trace->span[i].name, __ATOMIC_ACQUIRE); /* A1 */

		if (name)
			span_text(trace, &trace->span[i], name, out);
	}
	if (used > SPANS)
		EP_WARN(EP_GROUP, "rank %d: %llu spans of the trace are lost: it holds %u", trace->rank,
			(unsigned long long)(used - SPANS), SPANS);
	return 0;
}

/* The file's lock; -ETIMEDOUT. */
static int file_lock(int fd)
{
	uint64_t deadline = ep_deadline_ms(LOCK_MS);
	struct timespec nap = ep_timespec(5000000);

	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -errno;
		if (ep_now_ns() > deadline)
			return -ETIMEDOUT;
		nanosleep(&nap, NULL);
	}
	return 0;
}

/* Over the closing bracket of the spans that are there. */
static int file_add(int fd, const struct ep_lines *lines)
{
	static const char end[] = "\n]\n";
	char tail[sizeof(end)] = "";
	off_t size = lseek(fd, 0, SEEK_END), at = size ? size - 3 : 0;

	if (size && (size < 3 || pread(fd, tail, 3, at) != 3 || strcmp(tail, end)))
		return -EEXIST;
	if (pwrite(fd, size ? ",\n" : "[\n", 2, at) != 2)
		return -EIO;
	at += 2;
	for (size_t done = 0; done < lines->used;) {
		ssize_t n = pwrite(fd, lines->text + done, lines->used - done, at);

		if (n <= 0)
			return -EIO;
		done += (size_t)n;
		at += n;
	}
	return pwrite(fd, end, 3, at) == 3 ? 0 : -EIO;
}

int ep_trace_save(struct ep_trace *trace)
{
	struct ep_lines lines = { 0 };
	int fd, rc;

	if (!trace)
		return 0;
	if ((rc = spans_text(trace, &lines)))
		return rc;
	fd = open(trace->file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	rc = fd < 0 ? -errno : file_lock(fd);
	if (!rc)
		rc = file_add(fd, &lines);
	if (fd >= 0)
		close(fd);
	free(lines.text);
	if (rc)
		return EP_FAIL(EP_GROUP, -rc, "rank %d: cannot add its trace to %s: %s", trace->rank, trace->file,
			       rc == -EEXIST ? "the file is no trace" : strerror(-rc));
	return 0;
}
