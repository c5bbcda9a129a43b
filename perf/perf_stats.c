/* SPDX-License-Identifier: Apache-2.0 */
/* Percentiles, and the line that shows how far a run is. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "perf/perf.h"
#include "util/clock.h"

static int before(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double perf_percentile(double *samples, int count, double part)
{
	int at = (int)ceil(part * count) - 1;

	qsort(samples, (size_t)count, sizeof(*samples), before);
	return samples[at < 0 ? 0 : at];
}

/* Only rank 0 writes, from one thread. */
static uint64_t next_line;
static bool shown;

void perf_progress(const char *format, ...)
{
	va_list args;

	if (ep_now_ns() < next_line || !isatty(STDOUT_FILENO))
		return;
	next_line = ep_deadline_ms(100);
	shown = true;
	va_start(args, format);
	printf("\r\033[K# ");
	vprintf(format, args);
	va_end(args);
	fflush(stdout);
}

void perf_progress_end(void)
{
	if (shown) {
		printf("\r\033[K");
		fflush(stdout);
	}
	shown = false;
}
