/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Injected failure of one memory registration on one rank, each registration in turn: the call that needed it fails on
 * every rank with a message that names the rank, nothing leaks, and the next try works. Also what LL between nodes
 * cannot hold. With threads or processes (-g). Exit status 0 or 1.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define REFUSER 1
#define TRIES 32 /* a rank has fewer registrations */

enum where { NOWHERE, IN_GROUP, IN_HANDLE };

/* On the board, per rank. */
struct told {
	enum where where;
	char text[512];
};

struct job {
	struct rig_cfg cfg;
};

static struct rig_cfg cfg_make(void)
{
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL, .per_node = RANKS / 2 };

	cfg.shape = (struct ll_shape){ .ranks = RANKS,
				       .experts = 2 * RANKS,
				       .topk = 3,
				       .tmax = 5,
				       .hidden = 64,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL };
	return cfg;
}

/* Without fault injection, against the oracle. */
static int sound_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig rig;

	if (!rig_open(&rig, seat, &job->cfg) && !rig_script(&rig, "DA CA"))
		rig_check_crossed(&rig);
	rig_close(&rig);
	return rig_tell(&rig);
}

static void tell(struct told *told, enum where where)
{
	told->where = where;
	snprintf(told->text, sizeof(told->text), "%s", anyEpGetLastError());
}

static int refused_job(struct seat *seat, const void *arg)
{
	const struct ll_shape *shape = &((const struct job *)arg)->cfg.shape;
	struct told *told = (struct told *)seat_board(seat) + seat_rank(seat);
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpHandle_t handle = NULL;
	ncclEpGroup_t group = NULL;
	ncclComm_t comm = seat_comm(seat);

	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = (unsigned)shape->experts;
	config.max_dispatch_tokens_per_rank = (unsigned)shape->tmax;
	config.max_token_bytes = (unsigned)ll_out_bytes(shape);
	if (!comm)
		return -1;
	if (ncclEpCreateGroup(&group, comm, &config) != ncclSuccess) {
		tell(told, IN_GROUP);
		return group ? seat_fail(seat, "a failed ncclEpCreateGroup left a group") : 0;
	}
	if (ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, shape->topk, NULL) != ncclSuccess) {
		tell(told, IN_HANDLE);
		if (handle)
			seat_fail(seat, "a failed ncclEpInitHandle left a handle");
		/* Only this registration fails: the group is still usable. */
		if (ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, shape->topk, NULL) !=
		    ncclSuccess)
			seat_fail(seat, "the second try failed too: %s", anyEpGetLastError());
	}
	if (ncclEpHandleDestroy(handle) != ncclSuccess || ncclEpGroupDestroy(group) != ncclSuccess)
		seat_fail(seat, "%s", anyEpGetLastError());
	return seat_failed(seat) ? -1 : 0;
}

/* More rows than a row's head can number, and tokens of which a command cannot carry as many as it may have to. */
static int large_job(struct seat *seat, const void *arg)
{
	static const struct {
		unsigned tokens, bytes;
		const char *text;
	} large[] = { { 600000, 64, "top-3 of 600000 tokens" }, { 5, 3u << 20, "tokens of 3145728 bytes" } };
	ncclComm_t comm = seat_comm(seat);

	(void)arg;
	for (size_t i = 0; comm && i < sizeof(large) / sizeof(large[0]); i++) {
		ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
		ncclEpHandle_t handle = NULL;
		ncclEpGroup_t group = NULL;

		config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
		config.num_experts = 2 * RANKS;
		config.max_dispatch_tokens_per_rank = large[i].tokens;
		config.max_token_bytes = large[i].bytes;
		if (ncclEpCreateGroup(&group, comm, &config) != ncclSuccess)
			return seat_fail(seat, "%s", anyEpGetLastError());
		if (ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 3, NULL) != ncclInvalidUsage ||
		    handle || !strstr(anyEpGetLastError(), large[i].text) ||
		    !strstr(anyEpGetLastError(), "LL between nodes"))
			seat_fail(seat, "%s: %s", large[i].text, anyEpGetLastError());
		ncclEpGroupDestroy(group);
	}
	return !comm || seat_failed(seat) ? -1 : 0;
}

/* ---- */

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

struct run {
	struct world *world;
	int seen[IN_HANDLE + 1]; /* refusals by the call that reported them */
	int failed;
};

static int complain(struct run *run, int number, const char *text)
{
	printf("FAILED refuse=%d: %s\n", number, text);
	run->failed++;
	return -1;
}

/* Reported on all ranks, by the same call, with the rank. */
static int told_judge(struct run *run, int number)
{
	const struct told *told = world_board(run->world);
	char name[16];

	snprintf(name, sizeof(name), "rank %d", REFUSER);
	for (int r = 0; r < RANKS; r++) {
		if (told[r].where != told[0].where)
			return complain(run, number, "the call failed on some ranks only");
		if (told[r].where && !strstr(told[r].text, name))
			return complain(run, number, told[r].text[0] ? told[r].text : "no message");
	}
	run->seen[told[0].where]++;
	return 0;
}

static void run_all(struct run *run)
{
	struct job job = { .cfg = cfg_make() };
	int before = 0;

	for (int number = 1; number <= TRIES && !run->failed && !run->seen[NOWHERE]; number++) {
		char net[FAR_NET_MAX];

		snprintf(net, sizeof(net), "faulty(loop):refuse=%d,rank=%d", number, REFUSER);
		far_set(run->world, RANKS / 2, net, 0);
		memset(world_board(run->world), 0, RANKS * sizeof(struct told));
		if (world_run(run->world, RANKS, refused_job, &job, sizeof(job), 60))
			complain(run, number, world_text(run->world));
		else
			told_judge(run, number);
		far_set(run->world, RANKS / 2, "loop", 0);
		if (world_run(run->world, RANKS, sound_job, &job, sizeof(job), 60))
			complain(run, number, world_text(run->world));
		/* Without what the first group leaves open for later ones. */
		if (!before)
			before = descriptors();
	}
	if (world_run(run->world, RANKS, large_job, NULL, 0, 60))
		complain(run, 0, world_text(run->world));
	if (!run->failed && descriptors() > before)
		complain(run, 0, "file descriptors leaked");
	if (!run->failed && (!run->seen[NOWHERE] || !run->seen[IN_GROUP] || !run->seen[IN_HANDLE]))
		complain(run, 0, "expected refusals in groups, then in handles, then none");
}

int main(int argc, char **argv)
{
	struct world_opts opts = { .seats = RANKS, .board = RANKS * sizeof(struct told) };
	struct run run = { 0 };

	opts.processes = argc == 2 && !strcmp(argv[1], "-g");
	if (argc > 1 && !opts.processes) {
		fprintf(stderr, "usage: link_refuse [-g]\n  -g  ranks are processes (default: threads)\n");
		return 2;
	}
	if (world_open(&opts, &run.world))
		return 1;
	run_all(&run);
	run.failed += world_close(run.world) != 0;
	printf("link_refuse: %s; %d refused in groups, %d in handles; %s\n", run.failed ? "failed" : "passed",
	       run.seen[IN_GROUP], run.seen[IN_HANDLE], opts.processes ? "processes" : "threads");
	return run.failed ? 1 : 0;
}
