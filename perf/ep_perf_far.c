/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs across nodes: what each phase gave to the transport, and where its time went. In rounds of their own after the
 * timed ones: engines that take times stay awake, on the CPU device too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_ep_ext.h"
#include "perf/ep_perf.h"

/* Weak: NCCL EP has neither. */
#pragma weak anyEpGroupNetTimes
#pragma weak anyEpGroupNetCounts

struct snapshot {
	anyEpNetTimes_t times;
	anyEpNetCounts_t counts;
};

static int snapshot_take(const struct perf_play *play, ncclEpGroup_t group, struct snapshot *out)
{
	*out = (struct snapshot){ ANYEP_NET_TIMES_INIT, ANYEP_NET_COUNTS_INIT };
	/* The first waits for everything that was pushed, so that the second is complete. */
	if (anyEpGroupNetTimes(group, &out->times) == ncclSuccess &&
	    anyEpGroupNetCounts(group, &out->counts) == ncclSuccess)
		return 0;
	return seat_fail(play->seat, "times of the transport: %s", anyEpGetLastError());
}

static void sum_add(struct perf_far *sum, const struct snapshot *from, const struct snapshot *to, int rounds)
{
	sum->rounds += rounds;
	sum->commands += (double)(to->counts.commands - from->counts.commands);
	sum->puts += (double)(to->counts.puts - from->counts.puts);
	sum->bytes += (double)(to->counts.bytes - from->counts.bytes);
	sum->signals += (double)(to->counts.signals - from->counts.signals);
	sum->operations += (double)(to->times.operations - from->times.operations);
	sum->popped += 1e-3 * (double)(to->times.popped - from->times.popped);
	sum->given += 1e-3 * (double)(to->times.given - from->times.given);
	sum->completed += 1e-3 * (double)(to->times.completed - from->times.completed);
	sum->ended += 1e-3 * (double)(to->times.ended - from->times.ended);
	sum->arrivals += (double)(to->times.arrivals - from->times.arrivals);
	sum->arrived += 1e-3 * (double)(to->times.arrived - from->times.arrived);
}

/* The number behind an option's name in [at, end), 0: there is none. */
static double option_number(const char *at, const char *end, const char *name)
{
	size_t n = strlen(name);

	for (; at < end; at++)
		if ((*at == ':' || *at == ',') && !strncmp(at + 1, name, n) && at[1 + n] == '=')
			return strtod(at + n + 2, NULL);
	return 0;
}

/* What the transport was told by NCCL_EP_NET, as in sm:rate=400,latency=5000, of whose alternatives (A|B) it is one. */
static double spec_number(const char *net, const char *name)
{
	const char *at = getenv("NCCL_EP_NET");
	size_t n = strcspn(net, "(:");

	while (at && *at) {
		const char *end = at + strcspn(at, "|");

		if (strcspn(at, "(:|") == n && !strncmp(at, net, n))
			return option_number(at, end, name);
		at = *end ? end + 1 : end;
	}
	return 0;
}

static void net_fill(const struct perf_opts *opts, const anyEpNetTimes_t *times, struct perf_net *out)
{
	*out = (struct perf_net){ .ordered = times->ordered != 0, .direct = times->direct != 0 };
	snprintf(out->name, sizeof(out->name), "%s", times->net);
	snprintf(out->device, sizeof(out->device), "%s", times->device);
	out->rate = opts->rate > 0 ? opts->rate : spec_number(out->name, "rate");
	out->latency = opts->latency > 0 ? opts->latency : 1e-3 * spec_number(out->name, "latency");
}

int perf_far_run(const struct perf_play *play, ncclEpGroup_t group, struct perf_rank *out)
{
	const struct perf_opts *opts = play->opts;
	struct snapshot from, to;

	if (!anyEpGroupNetTimes)
		return 0;
	if (snapshot_take(play, group, &from))
		return -1;
	if (!from.times.net[0])
		return 0;
	net_fill(opts, &from.times, &out->net);
	for (int i = -opts->warmup; i < opts->iterations; i++)
		for (const enum perf_phase *phase = perf_phases(opts); *phase != PERF_PHASES; phase++) {
			if (seat_barrier(play->seat) || play->step(play->rig, *phase) || perf_sync(play) ||
			    snapshot_take(play, group, &to))
				return -1;
			if (i >= 0)
				sum_add(&out->far[*phase], &from, &to, perf_rounds(opts));
			from = to;
		}
	return 0;
}

/* ---- rows ---- */

static void mean_make(struct perf_far *far)
{
	double operations = far->operations > 0 ? far->operations : 1, arrivals = far->arrivals > 0 ? far->arrivals : 1;

	far->popped /= operations;
	far->given /= operations;
	far->completed /= operations;
	far->ended /= operations;
	far->arrived /= arrivals;
}

/* Counts of the rank that sent most, times averaged over all ranks' operations. */
void perf_far_row(const struct perf_opts *opts, const struct perf_board *board, enum perf_phase phase,
		  struct perf_row *row)
{
	const struct perf_net *net = &perf_board_rank(board, 0)->net;
	struct perf_far *far = &row->far;
	double gbps = net->rate / 8;

	*far = (struct perf_far){ .wire_us = -1 };
	if (!net->name[0])
		return;
	for (int r = 0; r < opts->ranks; r++) {
		const struct perf_far *one = &perf_board_rank(board, r)->far[phase];

		if (one->rounds && one->bytes / one->rounds >= far->bytes) {
			far->rounds = one->rounds;
			far->bytes = one->bytes / one->rounds;
			far->commands = one->commands / one->rounds;
			far->puts = one->puts / one->rounds;
			far->signals = one->signals / one->rounds;
		}
		far->operations += one->operations;
		far->popped += one->popped;
		far->given += one->given;
		far->completed += one->completed;
		far->ended += one->ended;
		far->arrivals += one->arrivals;
		far->arrived += one->arrived;
	}
	mean_make(far);
	if (gbps > 0) /* a graph has two operations, each behind the other */
		far->wire_us = far->bytes / (1e3 * gbps) + net->latency * (phase == PERF_GRAPH ? 2 : 1);
}
