/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The soak under disorder: group after group with random shape, layout, masks, ranks and nodes, over a transport that
 * delays and reorders puts (LL), or with ranks that fall behind (HT, in one node); every output is compared with the
 * oracle. All of it follows from the seed. An operation is one dispatch or one combine of one rank. The last line is
 * "chaos_soak: N operations, N wrong, ..."; exit status 0 or 1.
 */
#include <dlfcn.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/ll/orders.h"
#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define ROUNDS 250	/* of a group */
#define STALL_MAX 2000u /* us */
#define GROUP_SECONDS 120

/* On the board. */
struct tally {
	atomic_ullong operations, wrong; /* wrong: operations of which a value was */
};

struct job {
	uint64_t seed;
	struct rig_cfg ll;
	struct ht_cfg ht;
};

/* What the command line asks for; the rest is drawn. */
struct wish {
	const char *net;
	int algo, masks; /* 'l', 'h' or 0: any; -1: any */
	bool fabric;
	uint64_t seed;
};

static unsigned pick(uint64_t *random, unsigned n)
{
	return (unsigned)(ll_random(random) % n);
}

/* The dispatches and combines among the words of a script. */
static unsigned script_count(const char *script)
{
	unsigned n = 0;

	for (; *script; script++)
		n += strchr("DdCcEeBb", *script) && script[1] >= 'A' && script[1] <= 'D';
	return n;
}

/* ---- LL ---- */

static const char *ll_round(struct rig *rig, uint64_t random)
{
	const char *order = ll_orders[pick(&random, LL_ORDERS)];
	int slow = (int)pick(&random, (unsigned)rig->cfg.shape.ranks);

	rig->cfg.data.fill = (enum ll_fill)pick(&random, LL_FILL_NONE + 1);
	rig->cfg.data.route = (enum ll_route)pick(&random, LL_ROUTE_ONE_RANK + 1);
	rig->stall_at = pick(&random, 16) || slow != seat_rank(rig->seat) ? 0 : 1 + (int)pick(&random, 4);
	rig->stall_us = pick(&random, STALL_MAX);
	return order;
}

static void ll_play(struct seat *seat, const struct job *job, struct tally *tally)
{
	struct rig rig;

	if (!rig_open(&rig, seat, &job->ll))
		for (uint64_t round = 0; round < ROUNDS && !rig.verdict.wrong; round++) {
			const char *order = ll_round(&rig, ll_seed(job->seed, 9, round));

			if (rig_script(&rig, order))
				break;
			tally->operations += script_count(order);
		}
	tally->wrong += rig.verdict.wrong != 0;
	rig_close(&rig);
	rig_tell(&rig);
}

static void ll_draw(struct job *job, uint64_t *random, const struct wish *wish)
{
	static const int hidden[] = { 16, 40, 128 };
	struct ll_shape *s = &job->ll.shape;
	bool fp32 = pick(random, 4) == 0;
	int nodes;

	*s = (struct ll_shape){ .layout = pick(random, 2) ? LL_RANK_MAJOR : LL_EXPERT_MAJOR };
	s->ranks = 2 + (int)pick(random, RANKS - 1);
	s->experts = s->ranks * (1 + (int)pick(random, 3));
	s->topk = 1 + (int)pick(random, s->experts < 4 ? (unsigned)s->experts : 4);
	s->tmax = 1 + (int)pick(random, 8);
	s->hidden = hidden[pick(random, 3)];
	s->token = s->combine = fp32 ? NUM_F32 : NUM_BF16;
	nodes = pick(random, 2) ? 2 : s->ranks;
	job->ll.handles = 2;
	job->ll.spare = LL_ALL;
	job->ll.mask = wish->masks < 0 ? pick(random, 2) : (unsigned)wish->masks;
	job->ll.own_stream = pick(random, 4) == 0;
	job->ll.per_node = far_split(s->ranks, nodes);
	job->ll.data.seed = job->seed;
}

/* The transport between nodes; a complete specification is used as it is. */
static void net_draw(const struct wish *wish, uint64_t *random, char out[FAR_NET_MAX])
{
	static const unsigned reorder[] = { 0, 1, 4, 16, 64, 128 }, delay[] = { 0, 1, 3, 8, 32 };
	const char *inner = wish->net;
	unsigned seed = pick(random, 1u << 30), far = reorder[pick(random, 6)], late = delay[pick(random, 5)];
	bool tcp = pick(random, 4) == 0;

	if (!inner)
		inner = tcp && wish->fabric ? "fabric:provider=tcp" : "loop";
	if (strchr(inner, '('))
		snprintf(out, FAR_NET_MAX, "%s", inner);
	else
		snprintf(out, FAR_NET_MAX, "faulty(%s):seed=%u,reorder=%u,delay=%u", inner, seed, far, late);
}

/* ---- HT ---- */

static void ht_play(struct seat *seat, const struct job *job, struct tally *tally)
{
	static const char *const scripts[] = { "UA DA CA", "UA DA CA EA BA", "UA UB DA DB CB CA", "UA dA xA cA xA" };
	struct ht_rig rig;

	if (!ht_open(&rig, seat, &job->ht))
		for (uint64_t round = 0; round < ROUNDS && !rig.verdict.wrong; round++) {
			uint64_t random = ll_seed(job->seed, 9, round);
			const char *script = scripts[pick(&random, 4)];

			rig.cfg.data.fill = (enum ll_fill)pick(&random, LL_FILL_NONE + 1);
			rig.cfg.data.route = (enum ll_route)pick(&random, LL_ROUTE_NOWHERE + 1);
			if (ht_script(&rig, script))
				break;
			tally->operations += script_count(script);
		}
	if (!seat_failed(seat))
		ht_check_crossed(&rig, 0);
	tally->wrong += rig.verdict.wrong != 0;
	ht_close(&rig);
	ht_tell(&rig);
}

static void ht_draw(struct job *job, uint64_t *random)
{
	struct ll_shape *s = &job->ht.shape.base;

	s->ranks = 2 + (int)pick(random, RANKS - 1);
	s->experts = s->ranks * (1 + (int)pick(random, 3));
	s->topk = 1 + (int)pick(random, s->experts < 4 ? (unsigned)s->experts : 4);
	s->tmax = 1 + (int)pick(random, 8);
	s->hidden = 16 * (1 + (int)pick(random, 8));
	s->token = s->combine = pick(random, 2) ? NUM_BF16 : NUM_F32;
	job->ht.shape.expert_major = pick(random, 2);
	job->ht.shape.capacity = !job->ht.shape.expert_major && pick(random, 2) ? s->ranks * s->tmax : 0;
	job->ht.handles = 2;
	job->ht.spare = LL_ALL;
	job->ht.where = (enum ht_where)pick(random, HT_MIXED + 1);
	job->ht.backward = true;
	job->ht.counters = 32;
	job->ht.tell_topk = true;
	job->ht.stall = pick(random, 8) == 0;
	job->ht.scribble = pick(random, 2);
	job->ht.own_stream = pick(random, 4) == 0;
	job->ht.data.seed = job->seed;
	/* Half of them across nodes, of any sizes. */
	if (pick(random, 2))
		for (int i = 0; i < 3; i++)
			job->ht.shape.nodes.size[i] = (uint8_t)(1 + pick(random, 3));
}

/* ---- groups ---- */

static int soak_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;

	if (job->ht.handles)
		ht_play(seat, job, seat_board(seat));
	else
		ll_play(seat, job, seat_board(seat));
	return seat_failed(seat) ? -1 : 0;
}

/* One group; 0, or -1 after a line that says how to repeat it. */
static int group_run(struct world *world, const struct wish *wish, uint64_t number)
{
	uint64_t random = ll_seed(wish->seed, 1, number);
	bool ht = wish->algo ? wish->algo == 'h' : pick(&random, 8) == 0;
	struct job job = { .seed = ll_random(&random) };
	char net[FAR_NET_MAX] = "loop";
	int ranks;

	if (ht)
		ht_draw(&job, &random);
	else
		ll_draw(&job, &random, wish);
	if (!ht || job.ht.shape.nodes.size[0])
		net_draw(wish, &random, net);
	ranks = ht ? job.ht.shape.base.ranks : job.ll.shape.ranks;
	if (ht)
		far_set_nodes(world, &job.ht.shape.nodes, net, 0);
	else
		far_set(world, job.ll.per_node, net, 0);
	if (!world_run(world, ranks, soak_job, &job, sizeof(job), GROUP_SECONDS))
		return 0;
	printf("FAILED seed %llu, group %llu (-s %llu -f %llu -n 1 and the same options): %s, %d ranks, %s%s: %s\n",
	       wish->seed + 0ull, number + 0ull, wish->seed + 0ull, number + 0ull, ht ? "ht" : "ll", ranks, net,
	       job.ll.mask ? ", masks" : "", world_text(world));
	return -1;
}

/* In a child: nothing may be loaded before ranks are forked. */
static bool fabric_found(void)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL) ? 0 : 1);
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static int usage(FILE *out, int status)
{
	fprintf(out,
		"usage: chaos_soak [-s SEED] [-n OPERATIONS] [-a ll|ht] [-N NET] [-m | -M] [-g] [-f GROUP]\n"
		"  -n  at least so many (20000)      -a  only this algorithm   -m, -M  only with, or without, masks\n"
		"  -N  LL over faulty(NET), or over NET if it wraps one (loop and, where it is installed, libfabric "
		"tcp)\n"
		"  -g  ranks are processes (threads) -f  begin with this group, to repeat a failure\n");
	return status;
}

static int options_read(int argc, char **argv, struct wish *wish, struct world_opts *opts, unsigned long long *want,
			uint64_t *first)
{
	int c;

	while ((c = getopt(argc, argv, "s:n:a:N:mMgf:h")) != -1) {
		if (c == 's')
			wish->seed = strtoull(optarg, NULL, 0);
		else if (c == 'n')
			*want = strtoull(optarg, NULL, 0);
		else if (c == 'a' && (!strcmp(optarg, "ll") || !strcmp(optarg, "ht")))
			wish->algo = optarg[0];
		else if (c == 'N')
			wish->net = optarg;
		else if (c == 'm' || c == 'M')
			wish->masks = c == 'm';
		else if (c == 'g')
			opts->processes = true;
		else if (c == 'f')
			*first = strtoull(optarg, NULL, 0);
		else
			return c == 'h' ? 0 : 2;
	}
	return optind == argc && *want ? -1 : 2;
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS, .board = sizeof(struct tally) };
	struct wish wish = { .masks = -1, .seed = 1 };
	unsigned long long want = 20000;
	uint64_t first = 0, groups = 0;
	int failed = 0, rc = options_read(argc, argv, &wish, &opts, &want, &first);
	double start = world_now(), seconds;
	struct world *world;
	struct tally *tally;

	if (rc >= 0)
		return usage(rc ? stderr : stdout, rc);
	wish.fabric = fabric_found();
	if (world_open(&opts, &world))
		return 1;
	tally = world_board(world);
	for (; tally->operations < want && !world_lost(world) && failed < 10; groups++) {
		failed += group_run(world, &wish, first + groups) != 0;
		fflush(stdout);
	}
	seconds = world_now() - start;
	printf("chaos_soak: %llu operations, %llu wrong, %d of %llu groups failed, seed %llu, %.0f s, %.0f "
	       "operations/s\n",
	       (unsigned long long)tally->operations, (unsigned long long)tally->wrong, failed, groups + 0ull,
	       wish.seed + 0ull, seconds, (double)tally->operations / seconds);
	rc = failed || tally->wrong || tally->operations < want;
	return world_close(world) || rc ? 1 : 0;
}
