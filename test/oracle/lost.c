/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/lost.h"

#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_ep_ext.h"

#define TIMEOUT 1.5	/* seconds; longer with a real transport, whose threads double the load: */
#define TIMEOUT_NET 3.0 /* (connecting over tcp takes a second) */

/* ---- in a rank ---- */

static void *killer(void *arg)
{
	usleep((useconds_t)(uintptr_t)arg);
	kill(getpid(), SIGKILL);
	return NULL;
}

int lost_kill_soon(struct seat *seat, uint64_t seed, unsigned most_us)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, killer, (void *)(uintptr_t)(ll_random(&seed) % most_us)))
		return seat_fail(seat, "no thread");
	return 0;
}

void lost_check(struct ll_verdict *verdict, int rank, ncclResult_t rc, const char *text)
{
	ll_wrong(verdict, rc != ncclRemoteError && rc != ncclTimeout, "rank %d: returned %s (%s)", rank,
		 ncclGetErrorString(rc), text);
	ll_wrong(verdict, !strstr(text, "rank "), "rank %d: \"%s\" names no rank", rank, text);
}

void lost_check_again(struct ll_verdict *verdict, int rank, bool same_rc, const char *text)
{
	ll_wrong(verdict, !same_rc || strcmp(text, anyEpGetLastError()) != 0, "rank %d: first \"%s\", then \"%s\"",
		 rank, text, anyEpGetLastError());
}

/* ---- the cases ---- */

const char *lost_inner(const struct lost_run *run, int i)
{
	return run->net ? run->net : i & 1 ? "loop:unordered=1" : "loop";
}

/* Errors spread: the first rank to fail tells the others, so nobody waits for its own deadline. */
static double spread(const struct lost_meet *meet, int killed)
{
	double first = 0, last = 0;

	for (int r = 0; r < LOST_RANKS; r++) {
		if (r == killed || meet->told[r] == 0)
			continue;
		first = first == 0 || meet->told[r] < first ? meet->told[r] : first;
		last = meet->told[r] > last ? meet->told[r] : last;
	}
	return last - first;
}

static int case_run(struct lost_run *run, const struct lost_case *c, char *text, size_t room)
{
	struct lost_meet *meet;
	char ms[16];
	int rc;

	if (!run->world && world_open(&run->opts, &run->world))
		exit(1);
	snprintf(ms, sizeof(ms), "%d", (int)(1000 * run->timeout));
	world_setenv(run->world, "NCCL_EP_TIMEOUT_MS", ms);
	far_set_nodes(run->world, &c->nodes, c->net, 0);
	meet = world_board(run->world);
	memset(meet, 0, sizeof(*meet));
	if (c->killed >= 0)
		world_doom(run->world, c->killed);
	rc = world_run(run->world, LOST_RANKS, c->lost, c->job, c->size, 90);
	snprintf(text, room, "%s", world_text(run->world));
	run->checked += meet->checked;
	if (!rc && c->spread > 0 && spread(meet, c->killed) > c->spread) {
		snprintf(text, room, "the last rank got its error %.1f s after the first", spread(meet, c->killed));
		rc = -1;
	}
	if (c->killed >= 0 || world_lost(run->world)) {
		rc = world_close(run->world) || rc ? -1 : 0;
		run->world = NULL;
		return rc;
	}
	far_set_nodes(run->world, &c->nodes, run->net ? run->net : "loop", 0);
	if (!rc && (rc = world_run(run->world, LOST_RANKS, c->sound, c->job, c->size, 60)))
		snprintf(text, room, "a new group: %s", world_text(run->world));
	return rc;
}

void lost_case(struct lost_run *run, const struct lost_case *c)
{
	char sizes[FAR_TEXT_MAX], text[600];
	double start = world_now();
	int number = run->number++, rc;

	if (run->only >= 0 && run->only != number)
		return;
	rc = case_run(run, c, text, sizeof(text));
	far_text(&c->nodes, sizes);
	printf("%s %d %s, nodes of %s, %s%s%s (%.1f s)\n", rc ? "FAILED" : "ok    ", number, c->text, sizes, c->net,
	       rc ? ": " : "", rc ? text : "", world_now() - start);
	fflush(stdout);
	run->passed += !rc;
	run->failed += rc != 0;
}

/* ---- the program ---- */

static int usage(const struct lost_run *run, FILE *out, int status)
{
	fprintf(out,
		"usage: %s [-g] [-c CASE] [-n SEEDS] [-k NET] [-s]\n"
		"  -g  ranks are processes (default: threads)   -c  only this case   -n  seeds (%d)\n"
		"  -k  this transport instead of loop           -s  without killing ranks\n",
		run->program, run->seeds);
	return status;
}

int lost_open(struct lost_run *run, int argc, char **argv)
{
	int c;

	run->opts = (struct world_opts){ .seats = LOST_RANKS, .board = sizeof(struct lost_meet) };
	run->only = -1;
	while ((c = getopt(argc, argv, "gc:n:k:sh")) != -1) {
		if (c == 'h')
			return usage(run, stdout, 0);
		if (c == 'g')
			run->opts.processes = true;
		else if (c == 'c')
			run->only = atoi(optarg);
		else if (c == 'n')
			run->seeds = atoi(optarg);
		else if (c == 'k')
			run->net = optarg;
		else if (c == 's')
			run->spare = true;
		else
			return usage(run, stderr, 2);
	}
	if (optind != argc || run->seeds < 1)
		return usage(run, stderr, 2);
	run->timeout = run->net ? TIMEOUT_NET : TIMEOUT;
	return -1;
}

int lost_close(struct lost_run *run)
{
	if (run->world && world_close(run->world))
		run->failed++;
	printf("%s: %d passed, %d failed", run->program, run->passed, run->failed);
	if (run->checked)
		printf(", %d operations checked", run->checked);
	printf("; %s\n", run->opts.processes ? "processes" : "threads");
	return run->failed ? 1 : 0;
}
