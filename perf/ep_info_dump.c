/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the dumps of a job's ranks (plugin/group/dump.c writes them) into one message: who holds up whom, and where. */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/ep_info.h"

#define RANKS_MAX 65536
#define UNKNOWN UINT64_MAX

enum doing { IDLE, RUNNING, WAITED };

struct rank {
	bool here; /* there is a dump of it */
	enum doing doing;
	char host[64], kind[16], phase[16], code[16], last[16];
	long pid;
	unsigned launched, ended;
	uint64_t epoch;	       /* of the operation it is in */
	uint64_t age;	       /* ms since its last launch */
	unsigned named, other; /* ranks that it waited for */
	bool stuck;	       /* an engine did not answer */
	char lost[64];	       /* peers that its transport has lost */
	uint64_t *heard;       /* [n] */
};

struct group {
	struct group *next;
	unsigned key, n;
	char algorithm[16];
	struct rank *rank;
};

static struct group *group_find(struct group **all, unsigned key, unsigned n)
{
	struct group *g = *all;

	while (g && g->key != key)
		g = g->next;
	if (g)
		return g->n == n ? g : NULL;
	g = calloc(1, sizeof(*g));
	if (g)
		g->rank = calloc(n, sizeof(*g->rank));
	if (!g || !g->rank) {
		free(g);
		return NULL;
	}
	g->key = key;
	g->n = n;
	g->next = *all;
	*all = g;
	return g;
}

static void heard_take(const struct group *g, struct rank *r, const char *line)
{
	unsigned long long epoch;
	unsigned from;

	if (sscanf(line, "heard %u %llu", &from, &epoch) == 2 && from < g->n)
		r->heard[from] = epoch;
}

static void line_take(struct group *g, struct rank *r, const char *line)
{
	unsigned long long a;
	unsigned peer;

	heard_take(g, r, line);
	sscanf(line, "host %63s pid %ld", r->host, &r->pid);
	sscanf(line, "algorithm %15s", g->algorithm);
	if (sscanf(line, "launched %u ended %u last %15s age_ms %llu", &r->launched, &r->ended, r->last, &a) == 4)
		r->age = a;
	if (sscanf(line, "waited %15s %15s %llu phase %15s rank %u and %u", r->code, r->kind, &a, r->phase, &r->named,
		   &r->other) == 6) {
		r->doing = WAITED;
		r->epoch = a;
	}
	if (!strncmp(line, "engine ", 7) && strstr(line, "does_not_answer"))
		r->stuck = true;
	if (sscanf(line, "channel %u", &peer) == 1 && strstr(line, " lost"))
		snprintf(r->lost + strlen(r->lost), sizeof(r->lost) - strlen(r->lost), " %u", peer);
}

/* After its last line: a kernel that waits without a report is in the operation after the last that ended. */
static void rank_settle(struct rank *r, unsigned self)
{
	r->here = true;
	if (r->doing == WAITED || r->launched == r->ended)
		return;
	r->doing = RUNNING;
	r->epoch = r->heard[self] == UNKNOWN ? UNKNOWN : r->heard[self] + 1;
	memcpy(r->kind, r->last, sizeof(r->kind));
}

/* 0, or -1 with a line on stderr: another file, or one that a writer did not finish. */
static int file_take(const char *path, struct group **all)
{
	unsigned version = 0, key = 0, self = 0, n = 0;
	struct group *g = NULL;
	struct rank *r = NULL;
	bool end = false;
	char line[1024];
	FILE *f = fopen(path, "re");

	while (f && fgets(line, sizeof(line), f)) {
		sscanf(line, "anyep_dump %u", &version);
		sscanf(line, "group %x", &key);
		if (!r && version == 1 && sscanf(line, "rank %u of %u", &self, &n) == 2 && n <= RANKS_MAX && self < n &&
		    (g = group_find(all, key, n)) && !g->rank[self].here) {
			r = &g->rank[self];
			r->heard = malloc(n * sizeof(*r->heard));
			for (unsigned i = 0; r->heard && i < n; i++)
				r->heard[i] = UNKNOWN;
		} else if (r && r->heard) {
			line_take(g, r, line);
		}
		end |= !strcmp(line, "end\n");
	}
	if (f)
		fclose(f);
	if (r && r->heard && end)
		rank_settle(r, self);
	if (r && r->here)
		return 0;
	if (r) {
		free(r->heard);
		*r = (struct rank){ 0 };
	}
	fprintf(stderr, "ep_info: %s: %s\n", path, f ? "no complete dump of a rank" : strerror(errno));
	return -1;
}

/* ---- what they say together ---- */

/* The operation that holds up the group: the first in which a rank waits. NULL: none does. */
static const struct rank *held_up(const struct group *g)
{
	const struct rank *first = NULL;

	for (unsigned i = 0; i < g->n; i++) {
		const struct rank *r = &g->rank[i];

		if (r->here && r->doing != IDLE && r->epoch != UNKNOWN && (!first || r->epoch < first->epoch))
			first = r;
	}
	return first;
}

/* Nothing of the operation has come from this rank, and it does not say itself that it is in it. */
static bool absent(const struct group *g, unsigned x, uint64_t epoch)
{
	const struct rank *own = &g->rank[x];
	bool known = false;

	if (own->here && (own->doing != IDLE || own->heard[x] == UNKNOWN || own->heard[x] >= epoch))
		return false;
	for (unsigned i = 0; i < g->n; i++) {
		uint64_t heard = g->rank[i].here && i != x ? g->rank[i].heard[x] : UNKNOWN;

		if (heard != UNKNOWN && heard >= epoch)
			return false;
		known |= heard != UNKNOWN;
	}
	return known || own->here;
}

/* Whether its report blames x. Of a failure that another rank reported the first is only who reported it. */
static bool names(const struct rank *r, unsigned x)
{
	return r->doing == WAITED && (r->other == x || (r->named == x && strcmp(r->code, "remote") != 0));
}

static bool waits_for(const struct group *g, unsigned i, unsigned x, uint64_t epoch)
{
	const struct rank *r = &g->rank[i];

	if (!r->here || i == x || r->doing == IDLE || r->epoch < epoch)
		return false;
	if (r->heard[x] != UNKNOWN)
		return r->heard[x] < epoch;
	return names(r, x);
}

static unsigned waiters(const struct group *g, unsigned x, uint64_t epoch)
{
	unsigned n = 0;

	for (unsigned i = 0; i < g->n; i++)
		n += waits_for(g, i, x, epoch);
	return n;
}

/* Where all are in the operation: whom most name; before all others one that writes no dump, and one whose engine
 * stands still, named or not: the others may have noticed each other first. */
static unsigned most_named(const struct group *g, uint64_t epoch)
{
	unsigned best = g->n, best_votes = 0;

	for (unsigned x = 0; x < g->n; x++) {
		unsigned votes = 0;

		for (unsigned i = 0; i < g->n; i++)
			votes += g->rank[i].here && i != x && g->rank[i].epoch == epoch && names(&g->rank[i], x);
		if (g->rank[x].stuck || (votes && !g->rank[x].here))
			votes += g->n;
		if (votes > best_votes) {
			best_votes = votes;
			best = x;
		}
	}
	return best;
}

static const char *phase_text(const char *phase)
{
	return !strcmp(phase, "send")	   ? "while sending"
	       : !strcmp(phase, "receive") ? "while receiving"
	       : !strcmp(phase, "start")   ? "at its start"
					   : "where is not known";
}

/* ---- text ---- */

static void rank_print(const struct group *g, unsigned i)
{
	const struct rank *r = &g->rank[i];

	printf("# rank %u: ", i);
	if (!r->here) {
		printf("no dump\n");
		return;
	}
	printf("%s, process %ld: ", r->host, r->pid);
	if (r->doing == WAITED)
		printf("%s %llu, %s: waited for rank %u (%s)", r->kind, (unsigned long long)r->epoch,
		       phase_text(r->phase), r->named, r->code);
	else if (r->doing == RUNNING)
		printf("in %s for %llu ms", r->kind, (unsigned long long)r->age);
	else
		printf("in no operation; its last, %s, was launched %llu ms before", r->last,
		       (unsigned long long)r->age);
	printf("%s%s%s\n", r->stuck ? "; its engine does not answer: it is stuck in the transport" : "",
	       *r->lost ? "; its transport has lost rank" : "", r->lost);
}

/* at: the rank that waits longest */
static void wait_print(unsigned n, const struct rank *at)
{
	printf("%u %s for it%s%s", n, n == 1 ? "rank waits" : "ranks wait", at->doing == WAITED ? ", " : "",
	       at->doing == WAITED ? phase_text(at->phase) : "");
}

/* One line for a rank that never came. */
static void absent_print(const struct group *g, unsigned x, const struct rank *at)
{
	const struct rank *own = &g->rank[x];
	unsigned long long epoch = at->epoch;

	if (own->here) {
		printf("rank %u never entered %s %llu; ", x, at->kind, epoch);
		wait_print(waiters(g, x, at->epoch), at);
		printf(". It is alive, and in no operation since %llu: see what its program does (%s, process %ld)\n",
		       (unsigned long long)own->heard[x], own->host, own->pid);
		return;
	}
	printf("rank %u has sent nothing of %s %llu; ", x, at->kind, epoch);
	wait_print(waiters(g, x, at->epoch), at);
	printf(". It never entered it, or stopped before it sent, and it has written no dump: its process is stopped "
	       "or "
	       "dead, or does not write to this folder\n");
}

/* One line for a rank that came: it is in the operation, or its puts of it did not arrive. */
static void inside_print(const struct group *g, unsigned x, const struct rank *at)
{
	const struct rank *own = &g->rank[x];
	bool past = own->here && own->doing != IDLE && own->epoch != UNKNOWN && own->epoch > at->epoch;

	if (past)
		printf("rank %u is past %s %llu, but what it sent there has not arrived; ", x, at->kind,
		       (unsigned long long)at->epoch);
	else
		printf("rank %u stands still in %s %llu, %s; ", x, at->kind, (unsigned long long)at->epoch,
		       own->here && own->doing == WAITED ? phase_text(own->phase) : "after it entered");
	wait_print(waiters(g, x, at->epoch), at);
	if (!own->here)
		printf(". It has written no dump: its process is stopped or dead\n");
	else
		printf("%s\n", own->stuck ? ". Its engine is stuck in the transport: see its NIC"
			       : past	  ? ". See its NIC, and the channels in its dump"
					  : "");
}

/* Nobody waits: with masks the others went on. The last operation of which anything came from the rank. */
static uint64_t last_heard(const struct group *g, unsigned x)
{
	uint64_t last = 0;

	for (unsigned i = 0; i < g->n; i++)
		if (g->rank[i].here && g->rank[i].heard[x] != UNKNOWN && g->rank[i].heard[x] > last)
			last = g->rank[i].heard[x];
	return last;
}

static void behind_print(const struct group *g)
{
	uint64_t most = 0;
	bool none = true;

	for (unsigned x = 0; x < g->n; x++)
		most = last_heard(g, x) > most ? last_heard(g, x) : most;
	for (unsigned x = 0; x < g->n; x++) {
		if (last_heard(g, x) == most)
			continue;
		none = false;
		printf("rank %u is behind: nothing came from it since operation %llu, and the others have ended %llu "
		       "without "
		       "it: it is masked there\n",
		       x, (unsigned long long)last_heard(g, x), (unsigned long long)most);
	}
	if (none)
		printf("no rank is in an operation\n");
}

static void group_print(const struct group *g)
{
	const struct rank *at = held_up(g);
	unsigned found = 0, x;

	printf("# group %08x: %s, %u ranks\n", g->key, g->algorithm, g->n);
	for (unsigned i = 0; i < g->n; i++)
		rank_print(g, i);
	if (!at) {
		behind_print(g);
		return;
	}
	for (unsigned i = 0; i < g->n; i++)
		if (absent(g, i, at->epoch)) {
			absent_print(g, i, at);
			found++;
		}
	if (found)
		return;
	x = most_named(g, at->epoch);
	if (x < g->n)
		inside_print(g, x, at);
	else
		printf("%s %llu has not ended, and no rank says whom it waits for: dump again, later\n", at->kind,
		       (unsigned long long)at->epoch);
}

static void groups_free(struct group *g)
{
	while (g) {
		struct group *next = g->next;

		for (unsigned i = 0; i < g->n; i++)
			free(g->rank[i].heard);
		free(g->rank);
		free(g);
		g = next;
	}
}

int ep_info_dump(const char *folder)
{
	struct group *all = NULL;
	struct dirent *entry;
	char path[4096];
	DIR *dir = opendir(folder);
	bool none;

	if (!dir) {
		fprintf(stderr, "ep_info: %s: %s\n", folder, strerror(errno));
		return 2;
	}
	while ((entry = readdir(dir))) {
		const char *dot = strrchr(entry->d_name, '.');

		if (!dot || strcmp(dot, ".dump"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		file_take(path, &all);
	}
	closedir(dir);
	for (const struct group *g = all; g; g = g->next)
		group_print(g);
	none = !all;
	if (none)
		fprintf(stderr, "ep_info: %s: no dumps: set NCCL_EP_DUMP_DIR to it for all ranks, and run again\n",
			folder);
	groups_free(all);
	return none ? 1 : 0;
}
