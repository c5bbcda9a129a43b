/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is stopped (SIGSTOP) or killed before each call of a job. Every other rank gets an error that names it, within
 * the timeout and a second; with masks within twice the timeout and a second, or sees the rank masked. The stopped rank
 * may be one that forwards other ranks' blocks: they are not blamed. Exit status 0 or 1.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/rig/strike.h"

#define TIMEOUT_MS 1500
#define TIMEOUT_NET_MS 3000 /* connecting over tcp takes a second on two busy cores */
#define RANKS 4
#define RANKS_NET 3
#define AT_ONCE 3 /* jobs: they mostly wait */

struct row {
	const char *name;
	struct strike_job job;
	const char *net;   /* NULL: ranks share a node */
	const char *nodes; /* NCCL_EP_RANKS_PER_NODE; NULL: three nodes of one rank */
};

#define STOP_AT(call) .victim = 0, .signal = SIGSTOP, .at = call
static const struct row rows[] = {
	{ "init", { STOP_AT(STRIKE_INIT) }, NULL },
	{ "init of another", { .victim = 2, .signal = SIGSTOP, .at = STRIKE_INIT }, NULL },
	{ "group", { STOP_AT(STRIKE_GROUP) }, NULL },
	{ "handle", { STOP_AT(STRIKE_HANDLE) }, NULL },
	{ "dispatch", { STOP_AT(STRIKE_DISPATCH) }, NULL },
	{ "combine", { STOP_AT(STRIKE_COMBINE) }, NULL },
	{ "handle end", { STOP_AT(STRIKE_HANDLE_END) }, NULL },
	{ "group end", { STOP_AT(STRIKE_GROUP_END) }, NULL },
	{ "comm end", { STOP_AT(STRIKE_COMM_END) }, NULL },
	{ "ht update", { STOP_AT(STRIKE_UPDATE), .ht = true }, NULL },
	{ "ht dispatch", { STOP_AT(STRIKE_DISPATCH), .ht = true }, NULL },
	{ "ht combine", { STOP_AT(STRIKE_COMBINE), .ht = true }, NULL },
	{ "tcp group", { STOP_AT(STRIKE_GROUP) }, "fabric" },
	{ "tcp dispatch", { STOP_AT(STRIKE_DISPATCH) }, "fabric" },
	{ "tcp group end", { STOP_AT(STRIKE_GROUP_END) }, "fabric" },
	{ "masks", { STOP_AT(STRIKE_DISPATCH), .masks = true }, NULL },
	{ "masks group end", { STOP_AT(STRIKE_GROUP_END), .masks = true }, NULL },
	{ "masks tcp", { STOP_AT(STRIKE_DISPATCH), .masks = true }, "fabric" },
	{ "eight ranks", { STOP_AT(STRIKE_GROUP_END), .ranks = 8 }, NULL },
	{ "killed", { .victim = 2, .signal = SIGKILL, .at = STRIKE_COMBINE }, NULL },
	{ "killed group", { .victim = 0, .signal = SIGKILL, .at = STRIKE_GROUP }, NULL },
	/* HT's ranks relay for others: the struck one is named, not its relay, its client or its node. */
	{ "ht nodes update", { STOP_AT(STRIKE_UPDATE), .ht = true }, "loop", "2" },
	{ "ht nodes dispatch", { STOP_AT(STRIKE_DISPATCH), .ht = true }, "loop", "2" },
	{ "ht nodes combine", { STOP_AT(STRIKE_COMBINE), .ht = true }, "loop", "2" },
	{ "ht alone", { STOP_AT(STRIKE_DISPATCH), .ht = true }, "loop", "1,3" },
	{ "ht unordered",
	  { .victim = 3, .signal = SIGSTOP, .at = STRIKE_COMBINE, .ht = true },
	  "loop:unordered=1",
	  "3,1" },
	{ "ht tcp", { .victim = 2, .signal = SIGSTOP, .at = STRIKE_DISPATCH, .ht = true }, "fabric", "2" },
	{ "ht killed update", { .victim = 1, .signal = SIGKILL, .at = STRIKE_UPDATE, .ht = true }, "loop", "2" },
	{ "ht killed dispatch", { .victim = 3, .signal = SIGKILL, .at = STRIKE_DISPATCH, .ht = true }, "loop", "2" },
	{ "ht killed combine", { .victim = 0, .signal = SIGKILL, .at = STRIKE_COMBINE, .ht = true }, "loop", "1,3" },
	{ "ht killed tcp", { .victim = 2, .signal = SIGKILL, .at = STRIKE_COMBINE, .ht = true }, "fabric", "2" },
	{ "killed tcp", { .victim = 2, .signal = SIGKILL, .at = STRIKE_COMBINE }, "fabric" },
};

/* A call that needs no other rank, or was through before, may succeed. */
static bool may_succeed(const struct strike_job *job)
{
	return job->at >= STRIKE_FINALIZE;
}

static int judge(const struct strike_job *job, const struct strike_rank *rank, double limit)
{
	int bad = 0;

	for (int r = 0; r < job->ranks; r++) {
		const struct strike_rank *s = &rank[r];
		bool failed = s->call != STRIKE_CALLS, named = failed && strike_names(s->text, job->victim);
		/* Before the meeting ends the bootstrap root will do. */
		bool root = s->call == STRIKE_INIT && job->victim == 0 && strstr(s->text, "bootstrap root");

		if (r == job->victim)
			continue;
		if (!s->done)
			printf("  rank %d hangs\n", r);
		else if (s->seconds > limit)
			printf("  rank %d: %s took %.2f s, at most %.2f\n", r, strike_name(s->slow), s->seconds, limit);
		else if (failed ? !named && !root : !may_succeed(job))
			printf("  rank %d does not name rank %d: %s: %s\n", r, job->victim, strike_name(s->call),
			       s->text);
		else
			continue;
		bad++;
	}
	return bad;
}

static int run(const struct row *row, double slack, bool verbose)
{
	struct strike_rank rank[STRIKE_RANKS];
	struct strike_job job = row->job;
	int bad, timeout = row->net ? TIMEOUT_NET_MS : TIMEOUT_MS;
	char ms[16];

	job.ranks = job.ranks ? job.ranks : row->net && !row->nodes ? RANKS_NET : RANKS;
	job.rounds = 2;
	job.round = job.at > STRIKE_HANDLE && job.at < STRIKE_HANDLE_END;
	job.patience = 30;
	snprintf(ms, sizeof(ms), "%d", timeout);
	setenv("NCCL_EP_TIMEOUT_MS", ms, 1);
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", ms, 1);
	if (row->net) {
		setenv("NCCL_EP_NET", row->net, 1);
		setenv("NCCL_EP_RANKS_PER_NODE", row->nodes ? row->nodes : "1", 1);
	} else {
		unsetenv("NCCL_EP_NET");
		unsetenv("NCCL_EP_RANKS_PER_NODE");
	}
	if (strike_run(&job, rank))
		return -1;
	bad = judge(&job, rank, timeout / 1000.0 * (job.masks ? 2 : 1) + 1 + slack);
	printf("%s %s\n", bad ? "FAILED" : "ok    ", row->name);
	for (int r = 0; r < job.ranks && verbose; r++)
		printf("  rank %d: %s in %.2f s, slowest %s%s: %s\n", r, strike_name(rank[r].call), rank[r].seconds,
		       strike_name(rank[r].slow), rank[r].masked ? ", masked" : "", rank[r].text);
	fflush(stdout);
	return bad;
}

static int ended(int *running)
{
	int status = -1;

	--*running;
	return wait(&status) < 0 || status != 0;
}

int main(int argc, char **argv)
{
	const char *only = NULL;
	bool verbose = false;
	double slack = 0;
	int c, failed = 0, running = 0;

	while ((c = getopt(argc, argv, "c:s:v")) != -1) {
		if (c == 'c')
			only = optarg;
		else if (c == 's')
			slack = atof(optarg);
		else if (c == 'v')
			verbose = true;
		else
			return 2;
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (only && strcmp(only, rows[i].name) != 0)
			continue;
		if (running == AT_ONCE)
			failed += ended(&running);
		running++;
		if (!fork())
			_exit(run(&rows[i], slack, verbose) != 0);
	}
	while (running)
		failed += ended(&running);
	return failed ? 1 : 0;
}
