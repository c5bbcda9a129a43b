/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anyEpGroupNetTimes and the counts of commands through the public interface: the transport by name, times that do not
 * contradict each other, nothing before the first call and nothing in a group of one node. Exit status 0 or 1.
 */
#include <stdio.h>
#include <string.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 2
#define ROUNDS 200

struct job {
	struct rig_cfg cfg;
	char net[16]; /* "": one node */
	bool ordered;
};

static int ask(struct rig *rig, anyEpNetTimes_t *t, anyEpNetCounts_t *c)
{
	*t = ANYEP_NET_TIMES_INIT;
	*c = ANYEP_NET_COUNTS_INIT;
	return rig_expect(rig, "anyEpGroupNetTimes", anyEpGroupNetTimes(rig->group, t)) ||
	       rig_expect(rig, "anyEpGroupNetCounts", anyEpGroupNetCounts(rig->group, c));
}

static void judge(struct rig *rig, const struct job *job, const anyEpNetTimes_t *t, const anyEpNetCounts_t *c)
{
	int rank = seat_rank(rig->seat);

	ll_wrong(&rig->verdict, strcmp(t->net, job->net) != 0, "rank %d: net \"%s\", must be \"%s\"", rank, t->net,
		 job->net);
	if (!job->net[0]) {
		ll_wrong(&rig->verdict, t->operations || t->ended || t->device[0] || c->commands,
			 "rank %d: times in a group of one node", rank);
		return;
	}
	ll_wrong(&rig->verdict, !t->device[0] || t->direct || (t->ordered != 0) != job->ordered,
		 "rank %d: device \"%s\", direct %u, ordered %u", rank, t->device, t->direct, t->ordered);
	ll_wrong(&rig->verdict, t->operations < 1 || t->operations > 2 * ROUNDS, "rank %d: %llu operations", rank,
		 (unsigned long long)t->operations);
	ll_wrong(&rig->verdict, t->popped > t->given || t->given > t->completed || t->popped > t->ended || !t->ended,
		 "rank %d: popped %llu, given %llu, completed %llu, ended %llu", rank, (unsigned long long)t->popped,
		 (unsigned long long)t->given, (unsigned long long)t->completed, (unsigned long long)t->ended);
	ll_wrong(&rig->verdict,
		 t->arrived > t->ended || (job->ordered ? t->arrivals != 0 : t->arrivals > t->operations),
		 "rank %d: %llu arrivals at %llu", rank, (unsigned long long)t->arrivals,
		 (unsigned long long)t->arrived);
	/* Every command was a signal or went into a put. */
	ll_wrong(&rig->verdict, c->commands < c->puts + c->signals || !c->puts || !c->signals,
		 "rank %d: %llu commands, %llu puts, %llu signals", rank, (unsigned long long)c->commands,
		 (unsigned long long)c->puts, (unsigned long long)c->signals);
}

static int times_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	anyEpNetTimes_t t;
	anyEpNetCounts_t c;
	struct rig rig;

	if (rig_open(&rig, seat, &job->cfg) || rig_script(&rig, "DA CA") || ask(&rig, &t, &c))
		goto close;
	ll_wrong(&rig.verdict, t.operations != 0, "rank %d: %llu operations before the first call", seat_rank(seat),
		 (unsigned long long)t.operations);
	/* An engine that had no CPU during a whole operation has no times of it: as many rounds as it takes, the same
	 * on all ranks. */
	for (int i = 0, *seen = seat_board(seat); i < ROUNDS; i++) {
		if (rig_script(&rig, "DA CA") || ask(&rig, &t, &c))
			goto close;
		__atomic_store_n(&seen[seat_rank(seat)], t.operations > 1 || !job->net[0], __ATOMIC_RELAXED);
		if (seat_barrier(seat))
			goto close;
		if (i > 1 && __atomic_load_n(&seen[0], __ATOMIC_RELAXED) && __atomic_load_n(&seen[1], __ATOMIC_RELAXED))
			break;
		if (seat_barrier(seat))
			goto close;
	}
	judge(&rig, job, &t, &c);
close:
	rig_close(&rig);
	return rig_tell(&rig);
}

static int run_job(struct world *world, const char *net, const char *name, bool ordered)
{
	struct job job = { .ordered = ordered, .cfg = { .handles = 1, .spare = LL_ALL, .per_node = name[0] ? 1 : 0 } };
	int rc;

	snprintf(job.net, sizeof(job.net), "%s", name);
	job.cfg.shape = (struct ll_shape){ .ranks = RANKS,
					   .experts = 4,
					   .topk = 2,
					   .tmax = 6,
					   .hidden = 256,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL };
	far_set(world, job.cfg.per_node, net, 0);
	rc = world_run(world, RANKS, times_job, &job, sizeof(job), 60);
	printf("%s %s%s%s\n", rc ? "FAILED" : "ok    ", name[0] ? net : "one node", rc ? ": " : "",
	       rc ? world_text(world) : "");
	return rc != 0;
}

int main(void)
{
	struct world_opts opts = { .seats = RANKS, .board = RANKS * sizeof(int) };
	struct world *world;
	int failed = 0;

	if (world_open(&opts, &world))
		return 1;
	failed += run_job(world, "loop", "loop", true);
	failed += run_job(world, "loop:unordered=1", "loop", false);
	failed += run_job(world, "loop", "", true);
	failed += world_close(world) != 0;
	return failed ? 1 : 0;
}
