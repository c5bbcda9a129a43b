/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep_info --check: every rank of a launch opens the libraries, then all run the self-test, and what each found out is
 * gathered by the launcher's means, which still work when the communicator does not. Rank 0 prints.
 */
#include "perf/ep_info_check.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/dev.h"
#include "perf/ep_info.h"
#include "perf/launch.h"
#include "perf/launch_env.h"

#define SLACK_S 10.0  /* to open libraries, and for what has no deadline of its own */
#define WAIT_MS 30000 /* NCCL_EP_TIMEOUT_MS of the self-test, where it is not set (world.c) */
#define AFTER_S 2     /* between rank 0, which prints, and the others, whose end would end it */

enum stage { MEETING, TESTING, PRINTED };

struct check {
	const struct ep_info_check_opts *opts;
	struct launch *launch;	   /* NULL: alone */
	int rank, ranks;	   /* rank: before the watch starts */
	struct ep_check_rank *all; /* [ranks] */
	ep_check_fn run;
	char by[64], text[LAUNCH_TEXT];
	double seconds;	      /* for all of it */
	pthread_mutex_t lock; /* of what follows */
	enum stage stage;
	int status; /* that of PRINTED */
};

/* ---- this rank ---- */

/* In a child, as a process that has started a GPU's driver cannot fork ranks. */
static int gpus_count(void)
{
	int count = 0, status = 0;
	pid_t child;

	fflush(NULL); /* or the child may print it again */
	child = fork();
	if (!child) {
		for (int k = 0; k < EP_DEV_KINDS; k++)
			if (k != EP_DEV_HOST && !count && ep_dev_row((enum ep_dev_kind)k)->count(&count))
				count = 0;
		_exit(count < 100 ? count : 100);
	}
	if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status))
		return WEXITSTATUS(status);
	return 0;
}

static void device_tell(struct ep_check_rank *rank)
{
	const struct ep_dev_ops *row;
	const char *bus;
	struct ep_dev *dev;

	if (rank->device < 0)
		return; /* the driver stays asleep */
	row = ep_dev_row(ep_dev_gpu_kind());
	if (row->open(rank->device, &dev))
		return;
	for (size_t i = 0; i < sizeof(dev->uuid) && 2 * i + 2 < sizeof(rank->uuid); i++)
		snprintf(rank->uuid + 2 * i, 3, "%02x", dev->uuid[i]);
	bus = strrchr(dev->pci, '/');
	snprintf(rank->pci, sizeof(rank->pci), "%s", bus ? bus + 1 : "");
	row->close(dev);
}

static void self_tell(struct ep_check_rank *out, int rank)
{
	FILE *in = fopen("/proc/sys/kernel/random/boot_id", "re");

	*out = (struct ep_check_rank){ .rank = rank, .device = -1 };
	gethostname(out->host, sizeof(out->host) - 1);
	if (in && fgets(out->boot, sizeof(out->boot), in))
		out->boot[strcspn(out->boot, "\n")] = 0;
	if (in)
		fclose(in);
	for (int i = 0; i < EP_PARAMS; i++)
		snprintf(out->param[i], EP_CHECK_PARAM, "%s", ep_param_str((enum ep_param_id)i));
}

/* Only after a failure: what this host lacks. */
static void causes_tell(struct ep_check_rank *out)
{
	if (out->remedy[0])
		return;
	ep_info_listen(); /* what transports log is not for the terminal */
	ep_info_rdma();
	ep_info_transports();
	ep_info_gravest(out->cause, sizeof(out->cause), out->remedy, sizeof(out->remedy));
	ep_info_forget();
}

/* ---- all ranks ---- */

static int gather(struct check *c)
{
	size_t bytes = sizeof(*c->all);
	struct ep_check_rank *all;
	int rc;

	if (!c->launch)
		return 0;
	all = calloc((size_t)c->ranks, bytes); /* not in place: the watch may print what was known before */
	rc = all ? launch_gather(c->launch, &c->all[c->rank], bytes, all, c->text, sizeof(c->text)) : -1;
	if (!rc)
		memcpy(c->all, all, (size_t)c->ranks * bytes);
	free(all);
	return rc;
}

static int peers_gather(void *arg, const void *mine, size_t bytes, void *all, char *text, size_t size)
{
	return launch_gather(arg, mine, bytes, all, text, size);
}

static bool failed(const struct check *c)
{
	for (int r = 0; r < c->ranks; r++)
		if (c->all[r].error[0])
			return true;
	return c->text[0] != 0;
}

static int report(struct check *c)
{
	struct ep_info_check seen = { .by = c->by, .ranks = c->ranks, .all = c->all, .text = c->text };
	int rc;

	ep_info_judge(&seen);
	if (c->rank)
		return ep_info_status();
	if (c->opts->json) {
		printf("{\n");
		ep_info_map_json(&seen);
		rc = ep_info_findings_json();
		printf("}\n");
	} else {
		ep_info_map_print(&seen);
		rc = ep_info_findings_print("between these ranks");
	}
	fflush(stdout);
	return rc;
}

static void test_run(struct check *c)
{
	struct ep_check_job job = { .rank = c->rank,
				    .ranks = c->ranks,
				    .local = c->launch ? launch_local(c->launch) : 0,
				    .processes = c->opts->processes,
				    .seconds = c->seconds,
				    .gather = c->launch ? peers_gather : NULL,
				    .arg = c->launch,
				    .device = device_tell };
	char text[LAUNCH_TEXT] = "";

	if (c->run(&job, c->all, text, sizeof(text)) && !failed(c))
		snprintf(c->text, sizeof(c->text), "%s", text);
}

static void stage_set(struct check *c, enum stage stage, int status)
{
	pthread_mutex_lock(&c->lock);
	c->stage = stage;
	c->status = status;
	pthread_mutex_unlock(&c->lock);
}

static bool same_host(const struct ep_check_rank *a, const struct ep_check_rank *b)
{
	return !strcmp(a->host, b->host) && !strcmp(a->boot, b->boot);
}

/* Nodes by host, until a group says better. */
static void nodes_guess(struct check *c)
{
	int nodes = 0;

	for (int r = 0; r < c->ranks; r++) {
		struct ep_check_rank *rank = &c->all[r];

		rank->local = 0;
		rank->node = -1;
		for (int i = 0; i < r; i++)
			if (same_host(&c->all[i], rank)) {
				rank->node = c->all[i].node;
				rank->local++;
			}
		if (rank->node < 0)
			rank->node = nodes++;
	}
}

/* -1: the ranks lost each other, and the launcher's means with them. */
static int check_all(struct check *c, bool gpu)
{
	struct ep_check_rank *mine = &c->all[c->rank];

	ep_info_open(gpu, mine, &c->run);
	for (int r = 0; !c->launch && r < c->ranks; r++) {
		c->all[r] = *mine;
		c->all[r].rank = r;
	}
	if (gather(c))
		return -1;
	stage_set(c, TESTING, 1);
	nodes_guess(c);
	if (!failed(c)) {
		test_run(c);
		if (gather(c))
			return -1;
	}
	if (!failed(c))
		return 0;
	causes_tell(mine);
	return gather(c);
}

/* ---- no end without a deadline ---- */

static void late_tell(struct check *c)
{
	struct ep_check_rank *mine = c->stage == TESTING ? &c->all[c->rank] : NULL;

	if (mine && !mine->error[0])
		snprintf(mine->error, sizeof(mine->error), "not finished after %.0f s", c->seconds);
	if (!mine) {
		c->ranks = 0; /* nothing is known of the others */
		snprintf(c->text, sizeof(c->text), "rank %d: the launcher has not brought all ranks together in %.0f s",
			 c->rank, c->seconds);
	}
	fprintf(stderr, "ep_info: %s\n", mine ? mine->error : c->text);
	report(c);
}

/* A library that never returns, as NCCL where a rank does not come, or an MPI that waits for a rank that stands still:
 * this process ends, and with it the launch. */
static void *watch(void *arg)
{
	struct check *c = arg;
	struct timespec end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += (time_t)c->seconds + (c->rank ? AFTER_S : 0);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
		;
	pthread_mutex_lock(&c->lock);
	if (c->stage != PRINTED)
		late_tell(c);
	_exit(c->stage == PRINTED ? c->status : 1);
}

/* A thread of its own, before MPI may hang; it ends with the process. */
static void watch_start(struct check *c)
{
	struct launch_env env = { 0 };
	char ignored[LAUNCH_TEXT];
	int64_t ms = ep_param_int(EP_P_TIMEOUT_MS);
	pthread_t thread;

	c->seconds = SLACK_S + 1e-3 * (double)(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS) + 2 * (ms ? ms : WAIT_MS));
	if (launch_env_read(&env, ignored, sizeof(ignored)))
		return;
	c->rank = env.rank;
	if (env.by != LAUNCH_ALONE && !pthread_create(&thread, NULL, watch, c))
		pthread_detach(thread);
}

static int start(struct check *c, int gpus)
{
	const struct ep_info_check_opts *opts = c->opts;

	c->ranks = opts->ranks ? opts->ranks : gpus > 0 ? gpus : 2;
	if (c->launch) {
		c->ranks = launch_ranks(c->launch);
		if (opts->ranks && !c->rank)
			fprintf(stderr, "ep_info: -g and -t start ranks, but a launcher has started them: leave both "
					"out\n");
		if (opts->ranks)
			return -1;
	}
	snprintf(c->by, sizeof(c->by), "%s%s", c->launch || opts->processes ? "processes" : "threads",
		 c->launch ? " by " : "");
	if (c->launch)
		strncat(c->by, launch_name(c->launch), sizeof(c->by) - strlen(c->by) - 1);
	c->all = calloc((size_t)c->ranks, sizeof(*c->all));
	if (!c->all)
		return -1;
	self_tell(&c->all[c->rank], c->rank);
	setenv("NCCL_EP_DEVICE", opts->device ? opts->device : "auto", opts->device != NULL);
	return 0;
}

int ep_info_check(const struct ep_info_check_opts *opts)
{
	static struct check c = { .lock = PTHREAD_MUTEX_INITIALIZER,
				  .status = 1 }; /* outlives this call, for the watch */
	bool host = opts->device ? !strcmp(opts->device, "host") : !strcmp(ep_param_str(EP_P_DEVICE), "host");
	int gpus = host ? 0 : gpus_count(), lost, rc;

	c.opts = opts;
	watch_start(&c);
	if (launch_open(&c.launch, c.text, sizeof(c.text))) { /* rank 0 has a verdict all the same */
		fprintf(stderr, "ep_info: %s\n", c.text);
		return report(&c);
	}
	if (start(&c, gpus)) {
		launch_close(c.launch);
		return 2;
	}
	lost = check_all(&c, gpus > 0);
	stage_set(&c, PRINTED, 1);
	if (lost)
		fprintf(stderr, "ep_info: %s\n", c.text);
	rc = report(&c);
	stage_set(&c, PRINTED, rc);
	/* Launchers end the others when one rank ends with a status: not before rank 0 has printed. */
	if (!lost && !gather(&c))
		launch_close(c.launch);
	return rc;
}
