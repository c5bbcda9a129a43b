/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which transport and devices ranks agree on, as logged, and that these work: an operation against the oracle. And the
 * errors where no transport works on every rank. With threads or processes (-g); ranks with different settings are
 * processes. Exit status 0 or 1.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 4
#define ODD 1 /* the rank with different settings */
#define LINES 6

/* What ranks are configured with, and the expected result. Patterns are parts of one line, with * between them: facts
 * (names, ranks, numbers), not prose. */
struct scene {
	const char *net, *odd_net; /* odd_net: of rank ODD, or NULL */
	const char *name, *value;  /* a variable of all ranks, or of rank ODD where odd_net is not NULL */
	bool fails;
	const char *says[LINES]; /* patterns: in the log; where it fails, in every rank's message */
	const char *never;	 /* in the log */
	double within;		 /* seconds that a group may take; 0: any */
};

static const struct scene scenes[] = {
	/* One host: loop, and no other transport is tried. */
	{ .net = "", .says = { "loop*(loop, ordered)" }, .never = "fabric" },
	{ .net = "loop", .says = { "loop*(loop, ordered)" } },
	/* One that fails on one rank. */
	{ .net = "faulty(loop):connect=0,rank=2|loop:unordered=1",
	  .says = { "loop*(loop, unordered)*faulty(loop):connect=0,rank=2*rank 2",
		    "WARN GROUP*faulty(loop):connect=0,rank=2*rank 2*faulty*rank 2" } },
	{ .net = "loop:devices=0|faulty(loop)|loop",
	  .says = { "faulty*ordered)*loop:devices=0*rank 0", "INFO GROUP*loop:devices=0" },
	  .never = "WARN" },
	/* One that connects, and yet moves nothing between some ranks. */
	{ .net = "faulty(loop):mute=1,rank=2|loop",
	  .name = "NCCL_EP_BOOTSTRAP_TIMEOUT_MS",
	  .value = "8000",
	  .says = { "loop*(loop, ordered)*faulty(loop):mute=1,rank=2: rank *",
		    "WARN GROUP*faulty(loop):mute=1,rank=2*nothing came from rank 2" } },
	{ .net = "faulty(loop):drop=3|loop",
	  .says = { "loop*(loop, ordered)*faulty(loop):drop=3",
		    "WARN GROUP*faulty(loop):drop=3*does not reach rank 3" } },
	{ .net = "faulty(loop):drop=3",
	  .name = "NCCL_EP_BOOTSTRAP_TIMEOUT_MS",
	  .value = "8000",
	  .fails = true,
	  .says = { "rank 3" } },
	/* None works. */
	{ .net = "loop:devices=0|faulty(loop):connect=0,rank=3|nothing",
	  .fails = true,
	  .says = { "loop:devices=0*rank 0", "connect=0,rank=3*rank 3*faulty", "nothing*rank 0*NCCL_EP_NET" } },
	{ .net = "faulty(loop):connect=0,rank=3", .fails = true, .says = { "faulty*rank 3" } },
	{ .net = "loop:devices=0", .fails = true, .says = { "loop*device" } },
	{ .net = "^loop,fabric,verbs", .fails = true, .says = { "NCCL_EP_NET=^loop,fabric,verbs" } },
	{ .net = "loop:no=1", .fails = true, .says = { "NCCL_EP_NET*loop*option*no" } },
	/* Which device: round robin among equally near ones, several per rank if there are more than ranks. */
	{ .net = "loop:devices=2",
	  .says = { "rank 0: *loop, device loop0:", "rank 1: *loop, device loop1:", "rank 2: *loop, device loop0:",
		    "rank 3: *loop, device loop1: *2 of 2*shared" } },
	{ .net = "loop:devices=9",
	  .says = { "rank 0: *rails, device loop0+loop4:", "rank 3: *rails, device loop3+loop7:",
		    "rails*(loop0+loop4, unordered)" },
	  .never = "loop0+loop4+loop8" },
	{ .net = "loop:devices=8",
	  .name = "NCCL_EP_RAILS",
	  .value = "1",
	  .says = { "rank 0: *loop, device loop0:", "rank 3: *loop, device loop3:" },
	  .never = "loop0+" },
	{ .net = "loop:devices=3",
	  .name = "NCCL_EP_RAILS",
	  .value = "2",
	  .says = { "rank 0: *rails, device loop0+loop1:", "rank 2: *rails, device loop2+loop0:" } },
	{ .net = "faulty(loop:devices=4):reorder=8,delay=4",
	  .name = "NCCL_EP_RAILS",
	  .value = "4",
	  .says = { "rank 1: *rails, device loop1+loop2+loop3+loop0:" } },
	{ .net = "loop:devices=8", /* more than a handle can hold: then one */
	  .name = "NCCL_EP_RAILS",
	  .value = "8",
	  .says = { "rank 0: *loop, device loop0:", "rank 3: *loop, device loop3:",
		    "WARN GROUP*loop:devices=8*8*rank 0*rails" } },
	{ .net = "loop:devices=8",
	  .name = "NCCL_EP_NET_DEVICE",
	  .value = "loop6,loop3",
	  .says = { "rank 0: *loop, device loop6: *NCCL_EP_NET_DEVICE*shared", "rank 1: *loop, device loop3:" } },
	{ .net = "loop:devices=3|loop:devices=2",
	  .name = "NCCL_EP_NET_DEVICE",
	  .value = "nic0",
	  .fails = true,
	  .says = { "NCCL_EP_NET_DEVICE=nic0*loop*loop0 loop1 loop2" } },
	{ .net = "rails(loop:devices=4):n=2", .says = { "rank 3: *rails, device loop3+loop0:", "rails*ordered)" } },

	/* Ranks that are configured differently. */
	{ .net = "", .odd_net = "^fabric", .says = { "loop*(loop, ordered)" } },
	{ .net = "loop:unordered=1|loop", .odd_net = "loop|nothing", .says = { "loop*(loop, ordered)" } },
	{ .net = "loop",
	  .odd_net = "faulty(loop)",
	  .fails = true,
	  .says = { "rank 0*loop*rank 1*faulty(loop)*NCCL_EP_NET" } },
	{ .net = "loop", .odd_net = "loop:unordered=1", .says = { "loop*(loop, unordered)", "rank 0: *device*order" } },
	{ .net = "loop:devices=2|loop",
	  .odd_net = "loop:devices=2|loop",
	  .name = "NCCL_EP_NET_DEVICE",
	  .value = "loop",
	  .says = { "loop*(loop, ordered)", "WARN GROUP*loop:devices=2*rank 1*NCCL_EP_NET_DEVICE" } },
	{ .net = "loop:devices=8",
	  .odd_net = "loop:devices=8",
	  .name = "NCCL_EP_RAILS",
	  .value = "1",
	  .says = { "rank 1: *loop, device loop1:", "rank 0: *loop, device loop0:" },
	  .never = "loop0+" },
};

/* Without loop: libfabric's tcp provider, if installed. */
static const struct scene fabric_scenes[] = {
	{ .net = "^loop,verbs", .says = { "fabric*ordered)", "fabric:provider=efa*rank 0*libfabric" } },
	{ .net = "^loop,verbs",
	  .odd_net = "^loop,verbs",
	  .name = "NCCL_EP_NET_DEVICE",
	  .value = "nic0",
	  .fails = true,
	  .says = { "fabric:provider=efa*rank 0", "fabric:provider=tcp*rank 1" } },
};
/* The others wait for the rank that does not connect, for a quarter of the bootstrap's timeout. */
static const struct scene late_scene = {
	.net = "faulty(fabric:provider=tcp):connect=0,rank=2|loop",
	.name = "NCCL_EP_BOOTSTRAP_TIMEOUT_MS",
	.value = "8000",
	.says = { "loop*(loop, ordered)*faulty(fabric:provider=tcp)",
		  "WARN GROUP*faulty(fabric:provider=tcp):connect=0,rank=2*rank 2*faulty" },
};
static const struct scene bare_scene = { .net = "^loop,verbs", .fails = true, .says = { "libfabric" } };

/* In a machine where RoCE's packets are lost, which may be emulated by a busy host. Had nothing given up early, a group
 * would take a quarter of its timeout, which is longer here than usual. */
#define BLOCKED_TIMEOUT_MS "480000"
static const struct scene blocked_scene = {
	.net = "^loop",
	.name = "NCCL_EP_NET_DEVICE",
	.value = "rxe0,rxe1,lo",
	.within = 90,
	.says = { "fabric*(lo, *verbs: rank ", "WARN GROUP*net verbs is not used" },
};

/* On the board, per rank. */
struct told {
	bool failed;
	double seconds;
	char text[512];
};

struct job {
	struct rig_cfg cfg;
	char net[FAR_NET_MAX], name[32], value[32];
	bool odd;
};

static void seat_tell(const struct seat *seat, const struct job *job)
{
	if (!job->odd || seat_rank(seat) != ODD)
		return;
	setenv("NCCL_EP_NET", job->net, 1);
	if (job->name[0])
		setenv(job->name, job->value, 1);
}

/* The odd rank's process changes its environment first. */
static int scene_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct told *told = (struct told *)seat_board(seat) + seat_rank(seat);
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclComm_t comm = seat_comm(seat);
	ncclEpGroup_t group = NULL;
	struct rig rig;

	if (!comm)
		return -1;
	seat_tell(seat, job);
	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = (unsigned)job->cfg.shape.experts;
	config.max_dispatch_tokens_per_rank = (unsigned)job->cfg.shape.tmax;
	config.max_token_bytes = (unsigned)ll_out_bytes(&job->cfg.shape);
	told->seconds = -world_now();
	told->failed = ncclEpCreateGroup(&group, comm, &config) != ncclSuccess;
	told->seconds += world_now();
	if (told->failed)
		snprintf(told->text, sizeof(told->text), "%s", anyEpGetLastError());
	else if (ncclEpGroupDestroy(group) != ncclSuccess)
		seat_fail(seat, "%s", anyEpGetLastError());
	if (told->failed || seat_failed(seat))
		return seat_failed(seat) ? -1 : 0;
	if (!rig_open(&rig, seat, &job->cfg) && !rig_script(&rig, "DA CA DA CA"))
		rig_check_crossed(&rig);
	rig_close(&rig);
	return rig_tell(&rig);
}

/* ---- */

struct run {
	struct world_opts opts;
	char log[64];
	int failed, seen;
};

static void complain(struct run *run, const struct scene *scene, const char *what, const char *text)
{
	printf("FAILED \"%s\"%s%s%s%s: %s%s\n", scene->net, scene->odd_net ? ", one rank \"" : "",
	       scene->odd_net ? scene->odd_net : "", scene->odd_net ? "\"" : "", scene->name ? scene->name : "", what,
	       text);
	run->failed++;
}

static void log_read(const struct run *run, char *text, size_t size)
{
	int fd = open(run->log, O_RDONLY | O_CLOEXEC);
	ssize_t n = 0, got;

	while (fd >= 0 && (got = read(fd, text + n, size - 1 - (size_t)n)) > 0)
		n += got;
	text[n] = 0;
	if (fd >= 0)
		close(fd);
}

/* Whether the parts of the pattern follow each other in one line of the text. */
static bool matches(const char *text, const char *pattern)
{
	for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		const char *at = line, *end = line + strcspn(line, "\n"), *part = pattern;

		while (at && *part) {
			size_t n = strcspn(part, "*");

			at = memmem(at, (size_t)(end - at), part, n);
			at = at ? at + n : NULL;
			part += n + (part[n] == '*');
		}
		if (at)
			return true;
	}
	return false;
}

static void scene_judge(struct run *run, const struct scene *scene, const struct told *told)
{
	static char log[1 << 20];
	char seconds[32];

	log_read(run, log, sizeof(log));
	for (int r = 0; r < RANKS; r++)
		if (told[r].failed != scene->fails)
			complain(run, scene, told[r].failed ? "it failed: " : "it did not fail", told[r].text);
		else if (scene->within > 0 && told[r].seconds > scene->within) {
			snprintf(seconds, sizeof(seconds), "%.1f s", told[r].seconds);
			complain(run, scene, "it took too long: ", seconds);
		}
	for (int i = 0; i < LINES && scene->says[i] && !run->failed; i++) {
		if (!scene->fails && !matches(log, scene->says[i]))
			complain(run, scene, "not in the log: ", scene->says[i]);
		for (int r = 0; r < RANKS && scene->fails; r++)
			if (!matches(told[r].text, scene->says[i]))
				complain(run, scene, "a message is ", told[r].text);
	}
	if (scene->never && strstr(log, scene->never))
		complain(run, scene, "must not be in the log: ", scene->never);
}

/* A new world for each: settings of a process must not persist. */
static void scene_run(struct run *run, const struct scene *scene)
{
	struct job job = { .odd = scene->odd_net };
	struct world *world;

	if (scene->odd_net && !run->opts.processes)
		return;
	job.cfg = (struct rig_cfg){ .handles = 1, .spare = LL_ALL, .per_node = RANKS / 2 };
	job.cfg.shape = (struct ll_shape){ .ranks = RANKS,
					   .experts = 2 * RANKS,
					   .topk = 3,
					   .tmax = 20,
					   .hidden = 64,
					   .token = NUM_BF16,
					   .combine = NUM_BF16 };
	job.cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL };
	snprintf(job.net, sizeof(job.net), "%s", scene->odd_net ? scene->odd_net : "");
	snprintf(job.name, sizeof(job.name), "%s", scene->name ? scene->name : "");
	snprintf(job.value, sizeof(job.value), "%s", scene->value ? scene->value : "");
	unsetenv("NCCL_EP_RAILS");
	unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	unsetenv("NCCL_EP_NET_DEVICE");
	if (scene->within > 0)
		setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", BLOCKED_TIMEOUT_MS, 1);
	if (scene->name && !scene->odd_net)
		setenv(scene->name, scene->value, 1);
	far_set(NULL, RANKS / 2, scene->net, 0);
	if (truncate(run->log, 0) || world_open(&run->opts, &world)) {
		complain(run, scene, "no world", "");
		return;
	}
	if (world_run(world, RANKS, scene_job, &job, sizeof(job), scene->within > 0 ? 180 : 60))
		complain(run, scene, "", world_text(world));
	else
		scene_judge(run, scene, world_board(world));
	run->failed += world_close(world) != 0;
	run->seen++;
}

/* In a child, so that libfabric is not loaded before the ranks are forked. */
static bool fabric_there(void)
{
	pid_t pid = fork();
	int status = 1;

	if (pid == 0)
		_exit(dlopen("libfabric.so.1", RTLD_LAZY | RTLD_LOCAL) ? 0 : 1);
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static void fabric_run(struct run *run)
{
	if (!fabric_there()) {
		scene_run(run, &bare_scene);
		return;
	}
	for (size_t i = 0; i < sizeof(fabric_scenes) / sizeof(fabric_scenes[0]) && !run->failed; i++)
		scene_run(run, &fabric_scenes[i]);
	if (!run->failed)
		scene_run(run, &late_scene);
}

int main(int argc, char **argv)
{
	struct run run = { .opts = { .seats = RANKS, .board = RANKS * sizeof(struct told) } };
	bool blocked;
	int fd;

	blocked = argc == 2 && !strcmp(argv[1], "-b");
	run.opts.processes = blocked || (argc == 2 && !strcmp(argv[1], "-g"));
	if (argc > 1 && !run.opts.processes) {
		fprintf(stderr, "usage: link_choice [-g | -b]\n  -g  ranks are processes (default: threads)\n"
				"  -b  RoCE is blocked between rxe0 and rxe1\n");
		return 2;
	}
	snprintf(run.log, sizeof(run.log), "/tmp/link_choice.%d.log", (int)getpid());
	setenv("NCCL_EP_DEBUG_FILE", run.log, 1);
	setenv("NCCL_EP_DEBUG", "INFO", 1);
	fd = open(run.log, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	if (fd < 0)
		return 1;
	close(fd);
	if (blocked)
		scene_run(&run, &blocked_scene);
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]) && !run.failed && !blocked; i++)
		scene_run(&run, &scenes[i]);
	if (run.opts.processes && !blocked) /* libfabric is not instrumented for TSan */
		fabric_run(&run);
	unlink(run.log);
	printf("link_choice: %s; %d scenes, %s\n", run.failed ? "failed" : "passed", run.seen,
	       run.opts.processes ? "processes" : "threads");
	return run.failed ? 1 : 0;
}
