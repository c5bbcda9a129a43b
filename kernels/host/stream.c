/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/stream.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/live.h"

struct stream_op {
	struct stream_op *next;
	ep_host_stream_fn fn;
	void *arg;
};

struct host_stream {
	struct ep_host_stream_head head; /* first: the handle points here */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work, idle;
	struct stream_op *first, **last;
	uint64_t enqueued, finished;
	bool stop;
};

static void *stream_main(void *arg)
{
	struct host_stream *s = arg;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct stream_op *op = s->first;

		if (!op) {
			if (s->stop)
				break;
			pthread_cond_wait(&s->work, &s->lock);
			continue;
		}
		s->first = op->next;
		if (!s->first)
			s->last = &s->first;
		pthread_mutex_unlock(&s->lock);
		op->fn(op->arg);
		free(op);
		pthread_mutex_lock(&s->lock);
		s->finished++;
		pthread_cond_broadcast(&s->idle);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static int stream_enqueue(void *stream, ep_host_stream_fn fn, void *arg)
{
	struct host_stream *s = stream;
	struct stream_op *op = EP_CALLOC(EP_DEV, 1, sizeof(*op), "an operation of a host stream");

	if (!op)
		return -ENOMEM;
	op->fn = fn;
	op->arg = arg;
	pthread_mutex_lock(&s->lock);
	*s->last = op;
	s->last = &op->next;
	s->enqueued++;
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

static int stream_sync(void *stream, uint64_t deadline_ns)
{
	struct host_stream *s = stream;
	struct timespec until = ep_timespec(deadline_ns);
	uint64_t target;
	int rc = 0;

	if (pthread_equal(pthread_self(), s->thread))
		return EP_FAIL(EP_DEV, EDEADLK, "an operation of a host stream cannot wait for its own stream");
	pthread_mutex_lock(&s->lock);
	target = s->enqueued;
	while (s->finished < target && rc == 0)
		rc = pthread_cond_timedwait(&s->idle, &s->lock, &until);
	if (s->finished >= target)
		rc = 0;
	pthread_mutex_unlock(&s->lock);
	if (rc != 0)
		return EP_FAIL(EP_DEV, EP_ETIMEOUT, "timed out waiting for a host stream");
	return 0;
}

/* Condition variables use the clock of the deadlines. */
static int stream_init_sync(struct host_stream *s)
{
	pthread_condattr_t attr;
	int rc = pthread_condattr_init(&attr);

	if (rc != 0)
		return -rc;
	rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (rc == 0)
		rc = pthread_cond_init(&s->idle, &attr);
	pthread_condattr_destroy(&attr);
	if (rc != 0)
		return -rc;
	pthread_cond_init(&s->work, NULL);
	pthread_mutex_init(&s->lock, NULL);
	return 0;
}

static void stream_free(struct host_stream *s)
{
	pthread_cond_destroy(&s->idle);
	pthread_cond_destroy(&s->work);
	pthread_mutex_destroy(&s->lock);
	s->head.magic = 0;
	ep_live_drop(EP_LIVE_STREAM, s);
	free(s);
}

int ep_host_stream_create(void **out)
{
	struct host_stream *s = EP_CALLOC(EP_DEV, 1, sizeof(*s), "a host stream");
	int rc;

	if (!s)
		return -ENOMEM;
	rc = stream_init_sync(s);
	if (rc != 0) {
		free(s);
		return EP_FAIL(EP_DEV, -rc, "cannot create the condition variable of a host stream: %s", strerror(-rc));
	}
	s->last = &s->first;
	s->head.enqueue = stream_enqueue;
	s->head.sync = stream_sync;
	s->head.magic = EP_HOST_STREAM_MAGIC;
	if ((rc = ep_live_add(EP_LIVE_STREAM, s))) {
		stream_free(s);
		return rc;
	}
	rc = pthread_create(&s->thread, NULL, stream_main, s);
	if (rc != 0) {
		stream_free(s);
		return EP_FAIL(EP_DEV, rc, "cannot create the thread of a host stream: %s", strerror(rc));
	}
	*out = s;
	return 0;
}

void ep_host_stream_destroy(void *stream)
{
	struct host_stream *s = stream;

	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	stream_free(s);
}
