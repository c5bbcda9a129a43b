/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank stands still in the middle of a job, in LL and HT, in one node and across two simulated ones: it computes
 * elsewhere and makes no call, or its process is stopped, or its transport blocks inside an operation. The dumps that
 * the others write, and it itself where it can, joined by ep_info, name it and the operation. Without NCCL_EP_DUMP_DIR
 * nothing is written, and a dump that is asked for is ncclInvalidUsage. Exit status 0 or 1; arguments: ep_info.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/ht_rig.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define LOST 3
#define TIMEOUT "1500"
#define STALL_MS 4000

enum how { AWAY, STOPPED, BLOCKED };

struct job {
	bool ht, two; /* two nodes */
	bool mask;    /* the others go on without it */
	enum how how;
	char ep_info[400], dir[64];
};

/* On the board. */
struct meet {
	atomic_int told, judged; /* ranks that got an error; the dumps were joined */
	pid_t pid;		 /* of the rank that is stopped */
};

static int count_files(const char *dir)
{
	struct dirent *entry;
	DIR *d = opendir(dir);
	int n = 0;

	while (d && (entry = readdir(d)))
		n += strstr(entry->d_name, ".dump") && !strstr(entry->d_name, ".part");
	if (d)
		closedir(d);
	return n;
}

static void folder_empty(const char *dir)
{
	struct dirent *entry;
	char path[400];
	DIR *d = opendir(dir);

	while (d && (entry = readdir(d))) {
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		if (entry->d_name[0] != '.')
			unlink(path);
	}
	if (d)
		closedir(d);
}

/* What ep_info prints, without its table. */
static void joined(const struct job *job, char *out, size_t size)
{
	char command[600], line[1024];
	FILE *f;

	out[0] = 0;
	snprintf(command, sizeof(command), "'%s' --dump '%s' 2>&1", job->ep_info, job->dir);
	f = popen(command, "r");
	while (f && fgets(line, sizeof(line), f)) {
		if (getenv("DUMP_SHOW"))
			fputs(line, stderr);
		if (line[0] != '#')
			snprintf(out + strlen(out), size - strlen(out), "%s", line);
	}
	if (f)
		pclose(f);
}

/* The operation: dispatch and combine, in HT with an update before them, are numbered from 1. */
static void wanted(const struct job *job, char *out, size_t size)
{
	int combine = job->ht ? 6 : 4, dispatch = job->ht ? 2 : 1;

	if (job->mask)
		snprintf(out, size, "rank %d is behind: nothing came from it since operation %d, ", LOST, combine - 1);
	else if (job->how == AWAY)
		snprintf(out, size, "rank %d never entered combine %d; ", LOST, combine);
	else if (job->how == STOPPED)
		snprintf(out, size, "rank %d has sent nothing of combine %d; ", LOST, combine);
	else /* its kernel needs only what the others send, and goes on */
		snprintf(out, size, "rank %d is past dispatch %d, but what it sent there has not arrived; ", LOST,
			 dispatch);
}

/* By rank 0, when every rank that can has written. */
static void judge(struct ll_verdict *verdict, const struct job *job)
{
	/* With masks no error reaches the lost rank. */
	int n, files = job->how == STOPPED || job->mask ? RANKS - 1 : RANKS;
	double end = world_now() + 10;
	char text[2048], want[128];

	while (count_files(job->dir) < files && world_now() < end)
		usleep(10000);
	joined(job, text, sizeof(text));
	wanted(job, want, sizeof(want));
	ll_wrong(verdict, count_files(job->dir) != files, "%d dumps, expected %d", count_files(job->dir), files);
	ll_wrong(verdict, strncmp(text, want, strlen(want)) != 0, "\"%s\" does not begin with \"%s\"", text, want);
	if (job->mask)
		return;
	ll_wrong(verdict, !strstr(text, "for it, while receiving") && !strstr(text, "for it, at its start"),
		 "\"%s\" names no phase", text);
	ll_wrong(verdict, strchr(text, '\n') != strrchr(text, '\n'), "\"%s\" is more than one line", text);
	n = atoi(strchr(text, ';') ? strchr(text, ';') + 1 : "0");
	/* Across nodes HT's ranks wait for their relay; what blocks in a transport came to the ranks of its node. */
	ll_wrong(verdict, job->how == BLOCKED || (job->ht && job->two) ? n < 1 : n != RANKS - 1,
		 "\"%s\" counts %d ranks that wait", text, n);
}

/* The lost rank, until rank 0 has joined the dumps; when all have what it sent before. */
static void stand_still(struct seat *seat, const struct job *job)
{
	struct meet *meet = seat_board(seat);
	double end = world_now() + 30;

	if (job->how == BLOCKED || seat_barrier(seat) || seat_rank(seat) != LOST)
		return;
	meet->pid = getpid();
	if (job->how == STOPPED)
		raise(SIGSTOP);
	while (!meet->judged && world_now() < end)
		usleep(10000);
}

static void told(struct seat *seat, struct ll_verdict *verdict, const struct job *job, ncclResult_t rc)
{
	struct meet *meet = seat_board(seat);
	int others = RANKS - 1;

	if (seat_rank(seat) != LOST) {
		ll_wrong(verdict, job->mask ? rc != ncclSuccess : rc != ncclTimeout && rc != ncclRemoteError,
			 "rank %d: %s", seat_rank(seat), ncclGetErrorString(rc));
		seat_meet(seat, &meet->told, others);
	}
	if (seat_rank(seat) == 0) {
		judge(verdict, job);
		meet->judged = 1;
		if (job->how == STOPPED)
			kill(meet->pid, SIGCONT);
	}
	while (!meet->judged)
		usleep(10000);
}

static struct rig_cfg ll_cfg(const struct job *job)
{
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL, .per_node = job->two ? RANKS / 2 : 0, .mask = job->mask };

	cfg.shape = (struct ll_shape){ .layout = LL_EXPERT_MAJOR,
				       .ranks = RANKS,
				       .experts = RANKS,
				       .topk = RANKS,
				       .tmax = 2,
				       .hidden = 128,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = 1, .fill = LL_FILL_FULL };
	return cfg;
}

static ncclResult_t ll_round(struct rig *rig, bool last, const struct job *job)
{
	ncclResult_t rc;

	if (rig_load(rig, 0) || rig_update(rig, 0))
		return ncclInternalError;
	rc = rig_dispatch(rig, 0, false);
	if (rc != ncclSuccess || rig_check_rows(rig, 0) || rig_answer(rig, 0))
		return rc;
	if (last)
		stand_still(rig->seat, job);
	rc = rig_combine(rig, 0, false);
	if (last && job->mask)
		return rc; /* sums without a rank's rows, which other tests check */
	return rc == ncclSuccess && rig_check_sums(rig, 0) ? ncclInternalError : rc;
}

static int ll_job(struct seat *seat, const struct job *job)
{
	struct rig_cfg cfg = ll_cfg(job);
	struct rig rig;

	if (!rig_open(&rig, seat, &cfg) && !seat_barrier(seat)) {
		ncclResult_t rc = ll_round(&rig, false, job);

		rig.parted = true;
		rc = rc == ncclSuccess ? ll_round(&rig, true, job) : rc;
		told(seat, &rig.verdict, job, rc);
	}
	rig_close(&rig);
	return rig_tell(&rig);
}

static struct ht_cfg ht_config(const struct job *job)
{
	struct ht_cfg cfg = { .handles = 1, .spare = LL_ALL, .counters = 32, .tell_topk = true };

	cfg.shape = (struct ht_shape){ .base = { .ranks = RANKS,
						 .experts = RANKS,
						 .topk = RANKS,
						 .tmax = 1,
						 .hidden = 64,
						 .token = NUM_BF16,
						 .combine = NUM_BF16 } };
	if (job->two)
		cfg.shape.nodes.size[0] = RANKS / 2;
	cfg.shape.capacity = ht_bound(&cfg.shape);
	cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL };
	return cfg;
}

static ncclResult_t ht_once(struct ht_rig *rig, bool last, const struct job *job)
{
	for (enum ht_op op = HT_UPDATE; op <= HT_COMBINE; op++) {
		ncclResult_t rc;

		if (op == HT_UPDATE ? ht_round(rig, 0) : ht_load(rig, 0, op))
			return ncclInternalError;
		if (last && op == HT_COMBINE)
			stand_still(rig->seat, job);
		rc = ht_call(rig, 0, op, false);
		if (rc != ncclSuccess)
			return rc;
		if (ht_check(rig, 0, op))
			return ncclInternalError;
	}
	return ncclSuccess;
}

static int ht_job(struct seat *seat, const struct job *job)
{
	struct ht_cfg cfg = ht_config(job);
	struct ht_rig rig;

	if (!ht_open(&rig, seat, &cfg) && !seat_barrier(seat)) {
		ncclResult_t rc = ht_once(&rig, false, job);

		rig.parted = true;
		rc = rc == ncclSuccess ? ht_once(&rig, true, job) : rc;
		told(seat, &rig.verdict, job, rc);
	}
	ht_close(&rig);
	return ht_tell(&rig);
}

static int dump_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;

	return job->ht ? ht_job(seat, job) : ll_job(seat, job);
}

static int run_job(const struct job *job)
{
	static const char *const hows[] = { "makes no call", "is stopped", "blocks in its transport" };
	struct world_opts opts = { .seats = RANKS, .processes = true, .board = sizeof(struct meet) };
	struct far_nodes nodes = { .size = { job->two ? RANKS / 2 : RANKS } };
	double start = world_now();
	struct world *world;
	char net[FAR_NET_MAX];
	int rc;

	if (world_open(&opts, &world))
		return 1;
	world_setenv(world, "NCCL_EP_TIMEOUT_MS", TIMEOUT);
	world_setenv(world, "NCCL_EP_DUMP_DIR", job->dir);
	/* Puts before the dispatch: a word to each peer when the group is made, and HT's counts with their signal. */
	snprintf(net, sizeof(net), job->how == BLOCKED ? "faulty(loop):stall=%d,after=%d,rank=%d" : "loop", STALL_MS,
		 job->ht ? 3 : 2, LOST);
	far_set_nodes(world, &nodes, net, 0);
	rc = world_run(world, RANKS, dump_job, job, sizeof(*job), 60);
	printf("%s %s, %d: rank %d %s%s%s (%.1f s)\n", rc ? "FAILED" : "ok    ", job->ht ? "HT" : "LL",
	       job->two ? 2 : 1, LOST, job->mask ? "is masked" : hows[job->how], rc ? ": " : "",
	       rc ? world_text(world) : "", world_now() - start);
	fflush(stdout);
	folder_empty(job->dir);
	return world_close(world) || rc ? 1 : 0;
}

/* Asked for, in the middle of nothing; and with no folder. */
static int ask_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig_cfg cfg = ll_cfg(job);
	bool set = getenv("NCCL_EP_DUMP_DIR") && *getenv("NCCL_EP_DUMP_DIR");
	struct rig rig;

	if (!rig_open(&rig, seat, &cfg) && !rig_script(&rig, "DA CA")) {
		ncclResult_t rc = anyEpGroupDump(rig.group, "the test asks");

		ll_wrong(&rig.verdict, rc != (set ? ncclSuccess : ncclInvalidUsage), "rank %d: %s: %s", seat_rank(seat),
			 ncclGetErrorString(rc), anyEpGetLastError());
		seat_barrier(seat);
		ll_wrong(&rig.verdict, count_files(job->dir) != (set ? RANKS : 0), "%d files", count_files(job->dir));
		seat_barrier(seat);
	}
	rig_close(&rig);
	return rig_tell(&rig);
}

static int run_asked(const struct job *job)
{
	struct world_opts opts = { .seats = RANKS, .processes = true, .board = sizeof(struct meet) };
	char text[2048];
	struct world *world;
	int rc;

	if (world_open(&opts, &world))
		return 1;
	far_set(world, RANKS / 2, "loop", 0);
	rc = world_run(world, RANKS, ask_job, job, sizeof(*job), 60);
	world_setenv(world, "NCCL_EP_DUMP_DIR", job->dir);
	rc |= rc ? 0 : world_run(world, RANKS, ask_job, job, sizeof(*job), 60);
	joined(job, text, sizeof(text));
	rc |= strcmp(text, "no rank is in an operation\n") != 0;
	printf("%s asked for: %s%s", rc ? "FAILED" : "ok    ", world_text(world), text);
	folder_empty(job->dir);
	return world_close(world) || rc ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct job job = { .dir = "/tmp/ep_dump_XXXXXX" };
	int failed = 0, only = argc > 2 ? atoi(argv[2]) : -1;

	if (argc < 2 || !mkdtemp(job.dir))
		return 1;
	snprintf(job.ep_info, sizeof(job.ep_info), "%s", argv[1]);
	job.two = true;
	if (only < 0)
		failed += run_asked(&job);
	for (int i = 0; i < 12; i++) {
		job.ht = i % 2;
		job.two = i / 2 % 2;
		job.how = (enum how)(i / 4);
		if ((job.how == BLOCKED && !job.two) || (only >= 0 && only != i)) /* one node has no transport */
			continue;
		failed += run_job(&job);
	}
	job.ht = job.two = false;
	job.how = AWAY;
	job.mask = true;
	if (only < 0 || only == 12)
		failed += run_job(&job);
	rmdir(job.dir);
	printf("dump: %d failed\n", failed);
	return failed ? 1 : 0;
}
