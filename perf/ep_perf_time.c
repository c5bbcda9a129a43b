/* SPDX-License-Identifier: Apache-2.0 */
/* Timing of every phase, on the host and on the device. */
#include <stdlib.h>

#include "perf/ep_perf.h"

#define SYNC_SECONDS 100.0
/* The longest list of phases. */
#define STEPS_MAX 5

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

/* Created in advance: creating one takes longer than an operation. */
static int events_make(const struct perf_play *play, void *(*event)[STEPS_MAX + 1], int rounds)
{
	for (int i = 0; i < rounds; i++)
		for (int p = 0; p <= STEPS_MAX; p++)
			if (shim_said(play, play->shim->ops->event_create(play->shim, &event[i][p])))
				return -1;
	return 0;
}

static int events_read(const struct perf_play *play, void *(*event)[STEPS_MAX + 1])
{
	const struct perf_opts *opts = play->opts;
	const enum perf_phase *phases = perf_phases(opts);

	for (int i = 0; i < opts->iterations; i++)
		for (int p = 0; phases[p] != PERF_PHASES; p++) {
			void **pair = &event[opts->warmup + i][p];
			struct perf_sample *sample = perf_own_sample(play->board, phases[p], i);

			if (shim_said(play,
				      play->shim->ops->event_elapsed(play->shim, pair[0], pair[1], &sample->device)))
				return -1;
			sample->device /= perf_rounds(opts);
		}
	return 0;
}

/* Everything is launched at once, with an event before and after each phase. */
static int time_device(const struct perf_play *play)
{
	const enum perf_phase *phases = perf_phases(play->opts);
	int rounds = play->opts->warmup + play->opts->iterations, rc = -1;
	void *(*event)[STEPS_MAX + 1] = calloc((size_t)rounds, sizeof(*event));

	if (!event)
		return seat_fail(play->seat, "out of memory");
	if (events_make(play, event, rounds) || seat_barrier(play->seat))
		goto destroy;
	for (int i = 0; i < rounds; i++) {
		if (event_at(play, event[i][0]))
			goto destroy;
		for (int p = 0; phases[p] != PERF_PHASES; p++)
			if (play->step(play->rig, phases[p]) || event_at(play, event[i][p + 1]))
				goto destroy;
	}
	rc = perf_sync(play) || events_read(play, event) ? -1 : 0;
destroy:
	for (int i = 0; i < rounds; i++)
		for (int p = 0; p <= STEPS_MAX; p++)
			if (event[i][p])
				play->shim->ops->event_destroy(play->shim, event[i][p]);
	free(event);
	return rc;
}

int perf_time(const struct perf_play *play)
{
	int rc = time_host(play);

	if (!seat_rank(play->seat))
		perf_progress_end();
	return rc || (shim_is_gpu(play->shim) && time_device(play)) ? -1 : 0;
}
