/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chaos_strike [-s SEED] [-n STRIKES] [-T SECONDS] [-j JOBS] [-t TIMEOUT_MS] [-x EXTRA_S] [-v] [SEED...]: kills and
 * stops of ranks at random moments: those of the seeds given, then STRIKES from SEED on; none begins after SECONDS.
 * Every other rank must name the struck one, and each of its calls must return within the timeout + 1 s (with masks
 * twice the timeout + 1 s; EXTRA_S more for slow builds). None may crash or hang. Exit status 0 or 1.
 */
#include "test/chaos/strike.h"

#include <ctype.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const strike_phases[PHASES] = { "none",   "ncclCommInitRank",   "ncclEpCreateGroup", "ncclEpInitHandle",
					    "rounds", "ncclEpGroupDestroy", "ncclCommDestroy" };
const char *const strike_nets[NETS] = { "one node", "loop", "fabric tcp" };

struct opts {
	uint64_t seed;
	int strikes, jobs, timeout_ms;
	double extra, end; /* end: when the last strike may begin */
	char **known;	   /* seeds to begin with */
	int knowns;
	bool verbose;
};

struct totals {
	atomic_int next, done, empty, hangs, crashes, late, unnamed, innocent;
	atomic_int slowest_ms; /* beyond the timeout, of all calls */
};

static uint64_t draw(uint64_t *state, uint64_t n)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) % n;
}

static struct strike strike_draw(uint64_t seed, const struct opts *opts)
{
	uint64_t s = seed;
	struct strike k = { .seed = seed, .timeout_ms = opts->timeout_ms, .slack = 1 + opts->extra };

	k.ranks = 2 + (int)draw(&s, STRIKE_RANKS - 1);
	k.victim = (int)draw(&s, (uint64_t)k.ranks);
	k.phase = draw(&s, 2) ? PHASE_OPS : PHASE_INIT + (enum strike_phase)draw(&s, PHASES - PHASE_INIT);
	k.delay_us = (unsigned)draw(&s, draw(&s, 2) ? 30000 : 1000);
	k.ht = draw(&s, 3) == 0;
	k.net = k.ht ? NET_NONE : (enum strike_net)draw(&s, NETS);
	/* Six ranks take a second and more to connect by tcp on two busy cores. */
	k.timeout_ms *= k.net == NET_TCP ? 2 : 1;
	k.per_node = k.net == NET_NONE ? 0 : 1 + (int)draw(&s, 2);
	k.masks = !k.ht && draw(&s, 2);
	k.stop = draw(&s, 2);
	k.wake_ms = draw(&s, 3) ? -1 : (int)draw(&s, (uint64_t)(3 * k.timeout_ms));
	k.rounds = 20 + (int)draw(&s, 60);
	/* Drawn last: the seeds of LL that are kept mean what they did. */
	if (k.ht && draw(&s, 3)) {
		k.net = NET_LOOP + (enum strike_net)draw(&s, NETS - NET_LOOP);
		k.per_node = 1 + (int)draw(&s, 3);
		k.timeout_ms *= k.net == NET_TCP ? 2 : 1;
	}
	return k;
}

static void env_set(const struct strike *k)
{
	char text[32];

	snprintf(text, sizeof(text), "%d", k->timeout_ms);
	setenv("NCCL_EP_TIMEOUT_MS", text, 1);
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", text, 1);
	setenv("NCCL_EP_DEVICE", "host", 1);
	setenv("NCCL_EP_DEBUG", "NONE", 0);
	snprintf(text, sizeof(text), "%d", k->per_node);
	setenv("NCCL_EP_RANKS_PER_NODE", text, 1);
	setenv("NCCL_EP_NET", k->net == NET_TCP ? "fabric" : "loop", 1);
	setenv("NCCL_EP_FABRIC_PROVIDER", "tcp", 1);
}

/* ---- one strike ---- */

struct run {
	struct strike_board *board;
	const struct strike *strike;
	pid_t pid[STRIKE_RANKS];
	int status[STRIKE_RANKS];
	bool ended[STRIKE_RANKS], hung[STRIKE_RANKS];
	double woken;
	bool empty; /* is_void */
};

static bool ranks_start(struct run *run)
{
	for (int r = 0; r < run->strike->ranks; r++) {
		run->pid[r] = fork();
		if (run->pid[r] < 0)
			return false;
		if (run->pid[r] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			env_set(run->strike);
			strike_live(run->board, r);
			_exit(0);
		}
	}
	return true;
}

static void reap(struct run *run)
{
	for (int r = 0; r < run->strike->ranks; r++)
		if (!run->ended[r] && waitpid(run->pid[r], &run->status[r], WNOHANG) == run->pid[r])
			run->ended[r] = true;
}

/* Until the victim is in its phase; it may pass through it unseen, and is then struck later. */
static void await_phase(struct run *run)
{
	const struct strike_rank *victim = &run->board->rank[run->strike->victim];
	double end = strike_now() + 60;

	while (atomic_load(&victim->phase) < (int)run->strike->phase && !atomic_load(&victim->ended) &&
	       strike_now() < end)
		usleep(50);
	usleep(run->strike->delay_us);
}

static void hit(struct run *run)
{
	int victim = run->strike->victim;
	double now = strike_now();

	atomic_store(&run->board->at_strike, atomic_load(&run->board->rank[victim].phase));
	kill(run->pid[victim], run->strike->stop ? SIGSTOP : SIGKILL);
	/* Read again: it may have moved on before the signal arrived. */
	usleep(1000);
	atomic_store(&run->board->at_strike, atomic_load(&run->board->rank[victim].phase));
	atomic_store(&run->board->struck, now);
}

static void wake(struct run *run)
{
	if (!run->woken)
		run->woken = strike_now();
	kill(run->pid[run->strike->victim], SIGCONT);
}

/* A rank hangs when one call takes far longer than it may. */
static bool is_hung(const struct run *run, int rank)
{
	double since = atomic_load(&run->board->rank[rank].since), from = since;

	if (rank == run->strike->victim && run->woken > from)
		from = run->woken;
	return since > 0 && strike_now() - from > strike_limit(run->strike) + 10;
}

static bool others_ended(const struct run *run)
{
	for (int r = 0; r < run->strike->ranks; r++)
		if (r != run->strike->victim && !run->ended[r])
			return false;
	return true;
}

static void await_ends(struct run *run)
{
	const struct strike *k = run->strike;
	double start = strike_now();

	for (;;) {
		bool all = true;

		reap(run);
		if (k->stop && !run->woken &&
		    (others_ended(run) || (k->wake_ms >= 0 && strike_now() - start > 1e-3 * k->wake_ms)))
			wake(run);
		for (int r = 0; r < k->ranks; r++) {
			bool asleep = r == k->victim && k->stop && !run->woken;

			all &= run->ended[r];
			if (!run->ended[r] && !asleep && is_hung(run, r)) {
				run->hung[r] = true;
				kill(run->pid[r], SIGKILL);
			}
		}
		if (all)
			return;
		usleep(1000);
	}
}

/* ---- verdict ---- */

/* A list ("rank 0, 1, 2") blames the innocent too, and names nobody. */
static bool names(const char *text, int rank)
{
	char word[16];
	size_t n = (size_t)snprintf(word, sizeof(word), "rank %d", rank);

	for (const char *at = text; (at = strstr(at, word)); at++) {
		bool list = at[n] == ',' && at[n + 1] == ' ' && isdigit((unsigned char)at[n + 2]);

		if (!isdigit((unsigned char)at[n]) && !list)
			return true;
	}
	return false;
}

/* Before all ranks have met, the others know only the process they meet at, and it ends with the first failure. */
static bool names_root(const struct run *run, const char *text)
{
	return atomic_load(&run->board->at_strike) <= PHASE_GROUP &&
	       (strstr(text, "bootstrap root") || strstr(text, "process that created the id"));
}

static const char *fault(atomic_int *count, const char *what)
{
	atomic_fetch_add(count, 1);
	return what;
}

/* Ranks, as bits, that got no handle because of the struck one, and left after an error that names it: to mask them is
 * right. */
static int left_early(const struct run *run)
{
	int bits = 0;

	for (int r = 0; r < run->strike->ranks; r++) {
		const struct strike_rank *rank = &run->board->rank[r];

		if (!strcmp(rank->failed, "ncclEpInitHandle") && names(rank->text, run->strike->victim))
			bits |= 1 << r;
	}
	return bits;
}

/* NULL: this survivor behaved. */
static const char *judge(const struct run *run, int rank, struct totals *totals)
{
	const struct strike *k = run->strike;
	const struct strike_rank *me = &run->board->rank[rank];
	int at = atomic_load(&run->board->at_strike), others = me->masked & ~(1 << k->victim | left_early(run));
	bool masked = me->masked >> k->victim & 1;

	if (run->hung[rank])
		return fault(&totals->hangs, "hangs");
	if (!WIFEXITED(run->status[rank]) || WEXITSTATUS(run->status[rank]) || !me->ended)
		return fault(&totals->crashes, "crashed");
	/* A woken rank has lost the others as they have lost it. */
	if (rank == k->victim || run->empty)
		return NULL;
	if (me->late[0])
		return fault(&totals->late, "is late");
	if (others)
		return fault(&totals->innocent, "masked an innocent rank");
	if (me->failed[0] && !names(me->text, k->victim) && !names_root(run, me->text))
		return fault(&totals->unnamed, "names another");
	/* A rank that is woken may be in time; one that has begun to part may be needed no more. */
	if (!me->failed[0] && !masked && at < PHASE_PART && !(k->stop && k->wake_ms >= 0))
		return fault(&totals->unnamed, "noticed nothing");
	return NULL;
}

static void tell(const struct run *run, int rank, const char *what, const struct opts *opts)
{
	const struct strike *k = run->strike;
	const struct strike_rank *me = &run->board->rank[rank];

	printf("seed %llu: rank %d %s (%s of rank %d of %d in %s, %s%s%s, per node %d, wake %d, status %#x)\n"
	       "  last call %s, slowest %.2f s of %.2f%s%s, masked %#x, failed: %s: \"%s\"\n"
	       "  again: chaos_strike -s %llu -n 1 -t %d -x %g -v\n",
	       (unsigned long long)k->seed, rank, what, k->stop ? "stop" : "kill", k->victim, k->ranks,
	       strike_phases[atomic_load(&run->board->at_strike)], k->ht ? "HT " : "LL ", strike_nets[k->net],
	       k->masks ? " masks" : "", k->per_node, k->wake_ms, run->status[rank], me->call, me->worst,
	       strike_limit(k), me->late[0] ? ", late: " : "", me->late, (unsigned)me->masked,
	       me->failed[0] ? me->failed : "nothing", me->text, (unsigned long long)k->seed, k->timeout_ms,
	       opts->extra);
	fflush(stdout);
}

/* A rank failed before the strike, as when a busy machine cannot create the group in time: that says nothing. */
static bool is_void(const struct run *run)
{
	for (int r = 0; r < run->strike->ranks; r++)
		if (run->board->rank[r].failed[0] && run->board->rank[r].failed_at < atomic_load(&run->board->struck))
			return true;
	return false;
}

static void verdict(const struct run *run, struct totals *totals, const struct opts *opts)
{
	for (int r = 0; r < run->strike->ranks; r++) {
		bool dead = r == run->strike->victim && !run->strike->stop;
		const char *what = dead ? NULL : judge(run, r, totals);
		double over = run->board->rank[r].worst - 1e-3 * run->strike->timeout_ms * (run->strike->masks ? 2 : 1);

		if (r != run->strike->victim && !run->empty && (int)(1000 * over) > atomic_load(&totals->slowest_ms))
			atomic_store(&totals->slowest_ms, (int)(1000 * over));
		if (what || opts->verbose)
			tell(run, r, what ? what : "is fine", opts);
	}
}

static void strike_once(uint64_t seed, const struct opts *opts, struct totals *totals, struct strike_board *board)
{
	struct run run = { .board = board, .strike = &board->strike };

	memset(board, 0, sizeof(*board));
	board->strike = strike_draw(seed, opts);
	if (!ranks_start(&run)) {
		perror("fork");
		exit(1);
	}
	await_phase(&run);
	hit(&run);
	await_ends(&run);
	run.empty = is_void(&run);
	verdict(&run, totals, opts);
	atomic_fetch_add(run.empty ? &totals->empty : &totals->done, 1);
}

static void *shared(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return at;
}

static void work(const struct opts *opts, struct totals *totals)
{
	struct strike_board *board = shared(sizeof(*board));
	int i;

	while (strike_now() < opts->end && (i = atomic_fetch_add(&totals->next, 1)) < opts->knowns + opts->strikes)
		strike_once(i < opts->knowns ? strtoull(opts->known[i], NULL, 0)
					     : opts->seed + (uint64_t)(i - opts->knowns),
			    opts, totals, board);
}

static void opts_read(int argc, char **argv, struct opts *opts)
{
	int c;

	while ((c = getopt(argc, argv, "s:n:T:j:t:x:v")) != -1) {
		switch (c) {
		case 's':
			opts->seed = strtoull(optarg, NULL, 0);
			break;
		case 'n':
			opts->strikes = atoi(optarg);
			break;
		case 'T':
			opts->end = strike_now() + atof(optarg);
			break;
		case 'j':
			opts->jobs = atoi(optarg);
			break;
		case 't':
			opts->timeout_ms = atoi(optarg);
			break;
		case 'x':
			opts->extra = atof(optarg);
			break;
		case 'v':
			opts->verbose = true;
			break;
		default:
			fprintf(stderr, "usage: see the top of test/chaos/strike.c\n");
			exit(2);
		}
	}
	opts->known = argv + optind;
	opts->knowns = argc - optind;
}

int main(int argc, char **argv)
{
	struct opts opts = { .seed = 1, .strikes = 20, .jobs = 1, .timeout_ms = 2000, .end = 1e300 };
	struct totals *totals = shared(sizeof(*totals));
	int status, bad = 0;

	opts_read(argc, argv, &opts);
	for (int j = 0; j < opts.jobs; j++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			work(&opts, totals);
			_exit(0);
		}
	while (wait(&status) > 0)
		bad += status != 0;
	bad += totals->hangs + totals->crashes + totals->late + totals->unnamed + totals->innocent;
	printf("%d strikes from seed %llu: %d hangs, %d crashes, %d late, %d without the name, %d innocent masked; "
	       "slowest call: timeout %+.2f s; %d void\n",
	       totals->done, (unsigned long long)opts.seed, totals->hangs, totals->crashes, totals->late,
	       totals->unnamed, totals->innocent, 1e-3 * totals->slowest_ms, totals->empty);
	return bad || !totals->done || totals->empty > totals->done / 10;
}
