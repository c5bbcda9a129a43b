/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: nothing the library does, in this thread or another, invalidates a capture in global mode. */
#include <pthread.h>

#include "gpu.h"

typedef unsigned (*mode_fn)(unsigned *);

static unsigned thread_mode(void)
{
	mode_fn exchange = GPU_SYM(mode_fn, "cuThreadExchangeStreamCaptureMode");
	unsigned mode = 2, same;

	exchange(&mode);
	same = mode;
	exchange(&same);
	return mode;
}

/* What would invalidate a capture if it were done in the default mode. */
static void unsafe_work(struct ep_dev *dev)
{
	struct ep_pinned pin;
	struct ep_buffer id;
	struct ep_mem mem;
	void *stream;

	CHECK(dev->ops->mem_alloc(dev, 4096, &mem) == 0, "window");
	CHECK(dev->ops->buffer_id(dev, mem.ptr, 1, &id) == 0, "id");
	CHECK(dev->ops->pinned_alloc(dev, 4096, &pin) == 0, "pinned");
	CHECK(dev->ops->stream_create(dev, &stream) == 0, "stream");
	CHECK(dev->ops->copy(dev, mem.ptr, pin.host, 4096, stream) == 0, "copy");
	CHECK(dev->ops->sync(dev, stream, ep_deadline_ms(20000)) == 0, "sync");
	dev->ops->stream_destroy(dev, stream);
	dev->ops->pinned_free(dev, &pin);
	dev->ops->mem_free(dev, &mem);
	CHECK(thread_mode() == 0, "an operation left the thread in another mode");
}

static void *other_thread(void *arg)
{
	struct ep_dev *dev;

	unsafe_work(arg);
	dev = gpu_open(0); /* does not load code: it is loaded already */
	unsafe_work(dev);
	dev->ops->close(dev);
	return NULL;
}

static void captured(struct ep_dev *dev, void *stream, struct ep_mem *mem, struct ep_pinned *pin)
{
	bool yes = false;
	pthread_t thread;
	int local;

	CHECK(dev->ops->capturing(dev, stream, &yes) == 0 && yes, "not seen");
	CHECK(dev->ops->copy(dev, mem->ptr, pin->host, 4096, stream) == 0, "copy in a capture");
	CHECK(dev->ops->fill(dev, mem->ptr, 9, 16, stream) == 0, "fill in a capture");
	CHECK_FAILS(dev->ops->sync(dev, stream, ep_deadline_ms(1000)), EP_EUSAGE, "captured");
	CHECK_FAILS(dev->ops->copy(dev, mem->ptr, &local, 4, stream), EP_EUSAGE, "pinned");
	unsafe_work(dev);
	REQUIRE(pthread_create(&thread, NULL, other_thread, dev) == 0, "thread");
	pthread_join(thread, NULL);
}

static void replay(struct ep_dev *dev, void *stream, struct ep_mem *mem, struct ep_pinned *pin, void *graph)
{
	unsigned (*make)(void **, void *, unsigned long long) =
		GPU_SYM(unsigned (*)(void **, void *, unsigned long long), "cuGraphInstantiateWithFlags");
	unsigned (*run)(void *, void *) = GPU_SYM(unsigned (*)(void *, void *), "cuGraphLaunch");
	unsigned (*drop)(void *) = GPU_SYM(unsigned (*)(void *), "cuGraphExecDestroy");
	uint8_t *host = pin->host;
	void *exec;

	REQUIRE(make(&exec, graph, 0) == 0, "instantiate");
	for (unsigned seed = 5; seed < 7; seed++) {
		gpu_pattern(host, 4096, seed);
		REQUIRE(run(exec, stream) == 0, "replay");
		REQUIRE(dev->ops->sync(dev, stream, ep_deadline_ms(20000)) == 0, "sync");
		memset(host, 0, 4096);
		gpu_read(dev, pin, mem->ptr, 4096, stream);
		CHECK(host[0] == 9 && host[15] == 9 && host[16] == gpu_byte(16, seed) &&
			      host[4095] == gpu_byte(4095, seed),
		      "replay %u moved other bytes", seed);
	}
	drop(exec);
}

int main(void)
{
	unsigned (*begin)(void *, unsigned) = NULL;
	unsigned (*end)(void *, void **) = NULL;
	struct ep_pinned pin;
	struct ep_dev *dev;
	struct ep_mem mem;
	void *stream, *graph = NULL;
	unsigned result;
	bool yes = true;
	int count;

	gpu_row(&count);
	gpu_make_current();
	dev = gpu_open(0);
	begin = GPU_SYM(unsigned (*)(void *, unsigned), "cuStreamBeginCapture_v2");
	end = GPU_SYM(unsigned (*)(void *, void **), "cuStreamEndCapture");
	REQUIRE(dev->ops->stream_create(dev, &stream) == 0 && dev->ops->mem_alloc(dev, 4096, &mem) == 0, "set-up");
	REQUIRE(dev->ops->pinned_alloc(dev, 4096, &pin) == 0, "pinned");
	CHECK(dev->ops->capturing(dev, stream, &yes) == 0 && !yes, "not yet");
	REQUIRE(begin(stream, 0) == 0, "begin capture");
	captured(dev, stream, &mem, &pin);
	result = end(stream, &graph);
	REQUIRE(result == 0, "the capture was invalidated: error %u", result);
	CHECK(dev->ops->capturing(dev, stream, &yes) == 0 && !yes, "no more");
	replay(dev, stream, &mem, &pin, graph);
	GPU_SYM(unsigned (*)(void *), "cuGraphDestroy")(graph);
	dev->ops->mem_free(dev, &mem);
	dev->ops->pinned_free(dev, &pin);
	dev->ops->stream_destroy(dev, stream);
	dev->ops->close(dev);
	return gpu_end("gpu_capture");
}
