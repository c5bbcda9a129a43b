/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/standin/job.h"
#include "util/error.h"

struct queued {
	struct ep_job job;
	int rc;
	char text[512];
};

/* Held until all threads are created: a job that started without the last one would wait for its rank. */
struct gate {
	pthread_mutex_t lock;
	bool go;
};

/* One thread runs all jobs with the key of jobs[first]. */
struct runner {
	pthread_t thread;
	struct gate *gate;
	struct queued *jobs;
	int first, count;
};

/* As in NCCL a group belongs to the thread that opened it. */
static _Thread_local struct {
	int depth;
	struct queued *jobs;
	int count, room;
	int error;
	char text[512];
} group;

static void runner_run(struct runner *runner)
{
	for (int i = runner->first; i < runner->count; i++) {
		struct queued *q = &runner->jobs[i];

		if (q->job.key != runner->jobs[runner->first].job.key)
			continue;
		/* After a failure the rest still runs: it fails at once on a broken communicator, and a destroy at the
		 * end must not be skipped. */
		q->rc = q->job.run(&q->job);
		if (q->rc)
			snprintf(q->text, sizeof(q->text), "%s", ep_last_error());
	}
}

static void *runner_main(void *arg)
{
	struct runner *runner = arg;
	bool go;

	pthread_mutex_lock(&runner->gate->lock);
	go = runner->gate->go;
	pthread_mutex_unlock(&runner->gate->lock);
	if (go)
		runner_run(runner);
	return NULL;
}

/* Fills in one runner per key; returns how many. */
static int runners_find(struct queued *jobs, int count, struct gate *gate, struct runner *runners)
{
	int n = 0;

	for (int i = 0; i < count; i++) {
		int j = 0;

		while (j < n && jobs[runners[j].first].job.key != jobs[i].job.key)
			j++;
		if (j == n)
			runners[n++] = (struct runner){ .gate = gate, .jobs = jobs, .first = i, .count = count };
	}
	return n;
}

/* The cause: a rank that fails makes the jobs of the others fail with -EP_EREMOTE. */
static int first_error(const struct queued *jobs, int count)
{
	const struct queued *found = NULL;

	for (int i = 0; i < count; i++)
		if (jobs[i].rc && (!found || (found->rc == -EP_EREMOTE && jobs[i].rc != -EP_EREMOTE)))
			found = &jobs[i];
	if (!found)
		return 0;
	ep_last_error_set(found->text);
	return found->rc;
}

static int jobs_run(struct queued *jobs, int count)
{
	struct gate gate = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct runner *runners = EP_CALLOC(EP_COMM, (size_t)count, sizeof(*runners), "the calls of a group");
	int n, threads = 0, rc = 0;

	if (!runners)
		return -ENOMEM;
	n = runners_find(jobs, count, &gate, runners);
	/* The caller is the last runner, so that a group with one key needs no thread. */
	pthread_mutex_lock(&gate.lock);
	while (threads < n - 1 &&
	       !(rc = pthread_create(&runners[threads].thread, NULL, runner_main, &runners[threads])))
		threads++;
	gate.go = !rc;
	pthread_mutex_unlock(&gate.lock);
	if (gate.go)
		runner_run(&runners[n - 1]);
	for (int i = 0; i < threads; i++)
		pthread_join(runners[i].thread, NULL);
	if (rc)
		rc = EP_FAIL(EP_COMM, rc, "a group of %d communicators needs as many threads, got %d: %s", n, threads,
			     strerror(rc));
	else
		rc = first_error(jobs, count);
	free(runners);
	return rc;
}

int ep_jobs_run(const struct ep_job *jobs, int n)
{
	struct queued *q = EP_CALLOC(EP_COMM, (size_t)n, sizeof(*q), "the calls of all ranks");
	int rc;

	if (!q)
		return -ENOMEM;
	for (int i = 0; i < n; i++)
		q[i].job = jobs[i];
	rc = jobs_run(q, n);
	free(q);
	return rc;
}

static int queue_add(const struct ep_job *job)
{
	if (group.count == group.room) {
		int room = group.room ? 2 * group.room : 16;
		struct queued *jobs = realloc(group.jobs, (size_t)room * sizeof(*jobs));

		if (!jobs)
			return EP_FAIL(EP_COMM, ENOMEM, "out of memory for a group of %d calls", room);
		group.jobs = jobs;
		group.room = room;
	}
	group.jobs[group.count++] = (struct queued){ .job = *job };
	return 0;
}

int ep_job_submit(int rc, const struct ep_job *job)
{
	if (!group.depth)
		return rc ? rc : job->run(job);
	if (!rc)
		rc = queue_add(job);
	if (rc && !group.error) {
		group.error = rc;
		snprintf(group.text, sizeof(group.text), "%s", ep_last_error());
	}
	return rc;
}

ncclResult_t ncclGroupStart(void)
{
	group.depth++;
	return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	struct queued *jobs = group.jobs;
	int count = group.count, rc = group.error;

	if (!group.depth)
		return (ncclResult_t)ep_result(EP_FAIL(EP_COMM, EP_EUSAGE, "ncclGroupEnd without ncclGroupStart"));
	if (--group.depth)
		return ncclSuccess;
	group.jobs = NULL;
	group.count = group.room = group.error = 0;
	if (rc)
		ep_last_error_set(group.text);
	else if (count)
		rc = jobs_run(jobs, count);
	free(jobs);
	return (ncclResult_t)ep_result(rc);
}
