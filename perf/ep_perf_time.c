/* SPDX-License-Identifier: Apache-2.0 */
/* Timing of every phase, on the host and on the device. */
#include <stdlib.h>

#include "perf/ep_perf.h"

#define SYNC_SECONDS 100.0
/* Launches of LL's graphs between two events: an event takes up to 15 us on the stream, a graph of both operations on
 * one rank 23. */
#define GRAPHS_APART 10

struct perf_play perf_play_of(const struct perf_job *job, struct seat *seat, struct shim *shim,
			      int (*step)(void *rig, enum perf_phase phase), void *rig)
{
	return (struct perf_play){ .seat = seat,
				   .shim = shim,
				   .opts = &job->opts,
				   .board = job->board,
				   .tokens = job->tokens,
				   .step = step,
				   .rig = rig };
}

static int shim_said(const struct perf_play *play, int rc)
{
	return rc ? seat_fail(play->seat, "%s", play->shim->text) : 0;
}

int perf_sync(const struct perf_play *play)
{
	return shim_said(play, play->shim->ops->sync(play->shim, SYNC_SECONDS));
}

/* Ranks start each phase together; it ends when the stream is idle. */
static int time_host(const struct perf_play *play)
{
	const struct perf_opts *opts = play->opts;

	for (int i = -opts->warmup; i < opts->iterations; i++)
		for (const enum perf_phase *phase = perf_phases(opts); *phase != PERF_PHASES; phase++) {
			double start;

			if (!seat_rank(play->seat))
				perf_progress("%d tokens, %s: iteration %d of %d, %s", play->tokens,
					      perf_phase_names[*phase], i < 0 ? 0 : i + 1, opts->iterations,
					      i < 0 ? "warm-up" : "timed");
			if (seat_barrier(play->seat))
				return -1;
			start = world_now();
			if (play->step(play->rig, *phase) || perf_sync(play))
				return -1;
			if (i >= 0)
				*perf_own_sample(play->board, *phase, i) =
					(struct perf_sample){ .device = -1,
							      .host = 1e6 * (world_now() - start) / perf_rounds(opts) };
		}
	return 0;
}

static int event_at(const struct perf_play *play, void *event)
{
	return shim_said(play, play->shim->ops->event_record(play->shim, event));
}

/* Events around groups of iterations: one before each, one after each phase of its last iteration. */
struct events {
	int phases, apart, groups; /* apart: iterations of a group; several only of a graph, which is one phase */
	void **event;		   /* [groups][phases + 1] */
};

static void **group_of(const struct events *e, int iteration)
{
	return e->event + iteration / e->apart * (e->phases + 1);
}

/* Created in advance: creating one takes longer than an operation. */
static int events_make(const struct perf_play *play, struct events *e)
{
	const struct perf_opts *opts = play->opts;

	while (perf_phases(opts)[e->phases] != PERF_PHASES)
		e->phases++;
	e->apart = opts->graph && opts->algorithm == PERF_LL ? GRAPHS_APART : 1;
	e->groups = (opts->iterations + e->apart - 1) / e->apart;
	e->event = calloc((size_t)(e->groups * (e->phases + 1)), sizeof(*e->event));
	if (!e->event)
		return seat_fail(play->seat, "out of memory");
	for (int i = 0; i < e->groups * (e->phases + 1); i++)
		if (shim_said(play, play->shim->ops->event_create(play->shim, &e->event[i])))
			return -1;
	return 0;
}

static void events_drop(const struct perf_play *play, struct events *e)
{
	for (int i = 0; e->event && i < e->groups * (e->phases + 1); i++)
		if (e->event[i])
			play->shim->ops->event_destroy(play->shim, e->event[i]);
	free(e->event);
}

/* A group's time is that of each of its iterations. */
static int events_read(const struct perf_play *play, const struct events *e)
{
	const struct perf_opts *opts = play->opts;
	const enum perf_phase *phases = perf_phases(opts);

	for (int i = 0; i < opts->iterations; i++)
		for (int p = 0; p < e->phases; p++) {
			void **pair = group_of(e, i) + p;
			int first = i / e->apart * e->apart, left = opts->iterations - first;
			struct perf_sample *sample = perf_own_sample(play->board, phases[p], i);

			if (shim_said(play,
				      play->shim->ops->event_elapsed(play->shim, pair[0], pair[1], &sample->device)))
				return -1;
			sample->device /= (left < e->apart ? left : e->apart) * perf_rounds(opts);
		}
	return 0;
}

/* Everything is launched at once. */
static int events_launch(const struct perf_play *play, const struct events *e)
{
	const struct perf_opts *opts = play->opts;

	for (int i = -opts->warmup; i < opts->iterations; i++) {
		bool last = i >= 0 && (i % e->apart == e->apart - 1 || i == opts->iterations - 1);

		if (i >= 0 && i % e->apart == 0 && event_at(play, group_of(e, i)[0]))
			return -1;
		for (int p = 0; p < e->phases; p++)
			if (play->step(play->rig, perf_phases(opts)[p]) ||
			    (last && event_at(play, group_of(e, i)[p + 1])))
				return -1;
	}
	return 0;
}

static int time_device(const struct perf_play *play)
{
	struct events e = { 0 };
	int rc = events_make(play, &e) || seat_barrier(play->seat) || events_launch(play, &e) || perf_sync(play) ||
		 events_read(play, &e);

	events_drop(play, &e);
	return rc ? -1 : 0;
}

int perf_time(const struct perf_play *play)
{
	int rc = time_host(play);

	if (!seat_rank(play->seat))
		perf_progress_end();
	return rc || (shim_is_gpu(play->shim) && time_device(play)) ? -1 : 0;
}
