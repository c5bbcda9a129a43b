/* SPDX-License-Identifier: Apache-2.0 */
/* Host streams: order, bounded waits, and a handle that another library can recognise. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel_check.h"
#include "kernels/dev.h"
#include "kernels/host/stream.h"
#include "util/clock.h"
#include "util/error.h"

#define OPS 2000

static int order[OPS];
static int at; /* used by the stream's thread only */

static void note(void *arg)
{
	order[at++] = (int)(intptr_t)arg;
}

static int put(void *stream, ep_host_stream_fn fn, void *arg)
{
	return ep_host_stream_head(stream)->enqueue(stream, fn, arg);
}

static int wait_ms(void *stream, int ms)
{
	return ep_host_stream_head(stream)->sync(stream, ep_deadline_ms(ms));
}

static void test_order(void)
{
	void *stream;

	CHECK(ep_host_stream_create(&stream) == 0, "create");
	for (intptr_t i = 0; i < OPS; i++)
		CHECK(put(stream, note, (void *)i) == 0, "enqueue");
	CHECK(wait_ms(stream, 10000) == 0, "sync");
	for (int i = 0; i < OPS; i++)
		CHECK(order[i] == i, "operation %d ran as number %d", order[i], i);
	ep_host_stream_destroy(stream);
}

static void slow(void *arg)
{
	usleep(100000);
	*(int *)arg += 1;
}

static void test_deadline(void)
{
	void *stream;
	int done = 0;
	uint64_t start = ep_now_ns();

	CHECK(ep_host_stream_create(&stream) == 0, "create");
	for (int i = 0; i < 4; i++)
		put(stream, slow, &done);
	CHECK(wait_ms(stream, 20) == -EP_ETIMEOUT, "a wait past its deadline");
	CHECK(ep_now_ns() - start < 90000000ull, "it did not end in time");
	CHECK(wait_ms(stream, 10000) == 0 && done == 4, "%d of 4 done", done);
	put(stream, slow, &done);
	ep_host_stream_destroy(stream); /* runs what is enqueued first */
	CHECK(done == 5, "destroy dropped an operation");
}

struct inner {
	void *stream;
	int sync, ran;
};

static void inner_ran(void *arg)
{
	((struct inner *)arg)->ran = 1;
}

static void inside(void *arg)
{
	struct inner *in = arg;

	in->sync = wait_ms(in->stream, 1000);
	put(in->stream, inner_ran, in);
}

static void test_from_inside(void)
{
	struct inner in = { .sync = 0 };

	CHECK(ep_host_stream_create(&in.stream) == 0, "create");
	put(in.stream, inside, &in);
	CHECK(wait_ms(in.stream, 10000) == 0 && wait_ms(in.stream, 10000) == 0, "sync");
	CHECK(in.sync == -EDEADLK, "a stream that waits for itself returned %d", in.sync);
	CHECK(in.ran == 1, "an operation enqueued from inside did not run");
	ep_host_stream_destroy(in.stream);
}

static void test_handle(void)
{
	uint64_t not_one[4] = { 0 };
	void *stream;

	CHECK(ep_host_stream_head(NULL) == NULL, "NULL");
	CHECK(ep_host_stream_head((void *)1) == NULL && ep_host_stream_head((void *)2) == NULL,
	      "CUDA's special streams");
	CHECK(ep_host_stream_head(not_one) == NULL, "another library's object");
	CHECK(ep_host_stream_head((char *)not_one + 1) == NULL, "an odd address");
	CHECK(ep_host_stream_create(&stream) == 0 && ep_host_stream_head(stream) == stream, "a stream");
	ep_host_stream_destroy(stream);
	ep_host_stream_destroy(NULL);
}

static void *crowd(void *stream)
{
	for (int i = 0; i < OPS / 4; i++)
		put(stream, note, NULL);
	CHECK(wait_ms(stream, 30000) == 0, "sync");
	return NULL;
}

static void test_many_callers(void)
{
	pthread_t thread[4];
	void *stream;

	at = 0;
	CHECK(ep_host_stream_create(&stream) == 0, "create");
	for (int i = 0; i < 4; i++)
		pthread_create(&thread[i], NULL, crowd, stream);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	CHECK(at == OPS, "%d of %d ran", at, OPS);
	ep_host_stream_destroy(stream);
}

/* The row's copies and fills, on a stream and without one. */
static void test_row(void)
{
	const struct ep_dev_ops *ops = ep_dev_row(EP_DEV_HOST);
	struct ep_dev *dev = NULL;
	char a[64], b[64] = { 0 };
	void *stream = NULL;
	bool capturing = true;

	CHECK(ops->open(0, &dev) == 0 && ops->stream_create(dev, &stream) == 0, "open");
	CHECK(ops->fill(dev, a, 3, sizeof(a), stream) == 0 && ops->copy(dev, b, a, sizeof(a), stream) == 0, "enqueue");
	CHECK(ops->sync(dev, stream, ep_deadline_ms(10000)) == 0 && b[63] == 3, "on a stream");
	CHECK(ops->fill(dev, a, 4, sizeof(a), NULL) == 0 && ops->copy(dev, b, a, sizeof(a), NULL) == 0 && b[0] == 4,
	      "in the calling thread");
	CHECK(ops->copy(dev, b, a, sizeof(a), order) == -EP_EARG, "not a stream");
	CHECK(ops->sync(dev, order, ep_deadline_ms(10)) == -EP_EARG, "not a stream");
	CHECK(ops->capturing(dev, stream, &capturing) == 0 && !capturing, "capturing");
	ops->stream_destroy(dev, stream);
	ops->close(dev);
}

int main(void)
{
	alarm(120);
	test_order();
	test_deadline();
	test_from_inside();
	test_handle();
	test_many_callers();
	test_row();
	return check_result("host_stream");
}
