/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA row, operation by operation: devices, pinned memory, copies, waits, buffer ids, addresses, and
 * invalid arguments. */
#include <unistd.h>

#include "gpu.h"

static void nap(void *arg)
{
	struct timespec t = ep_timespec(*(uint64_t *)arg);

	nanosleep(&t, NULL);
}

static void devices(const struct ep_dev_ops *row, int count)
{
	struct ep_dev *dev = (struct ep_dev *)&count, *same = dev;
	int ordinal = -7;

	CHECK_FAILS(row->open(count, &dev), EP_EDEVICE, "CUDA_VISIBLE_DEVICES");
	CHECK_FAILS(row->open(-1, &dev), EP_EDEVICE, "no GPU -1");
	CHECK(dev == same, "a failed open wrote its output");
	CHECK_FAILS(row->current(&ordinal), ENODEV, "cudaSetDevice");
	CHECK(ordinal == -7, "a failed current wrote its output");
	dev = gpu_open(count - 1);
	CHECK(dev->warp == 32 && dev->sms > 0 && dev->shared_max >= 40000, "warp %u, sms %u, shared %zu", dev->warp,
	      dev->sms, dev->shared_max);
	CHECK(memcmp(dev->uuid, (uint8_t[16]){ 0 }, 16) && strrchr(dev->pci, ':'), "neither UUID nor address: %s",
	      dev->pci);
	CHECK(dev->sms_all >= dev->sms, "%u of %u multiprocessors: is there no NVML?", dev->sms, dev->sms_all);
	CHECK(dev->ordinal == count - 1 && dev->ops == row, "ordinal %d", dev->ordinal);
	CHECK(!gpu_current_context(), "open left its context with the caller");
	row->close(dev);
	row->close(NULL);
}

static void pinned(struct ep_dev *dev, void *stream)
{
	struct ep_pinned a, b;
	struct ep_mem mem;
	size_t n = (3u << 20) + 7, at;

	REQUIRE(dev->ops->pinned_alloc(dev, n, &a) == 0 && dev->ops->pinned_alloc(dev, n, &b) == 0, "pinned");
	REQUIRE(dev->ops->mem_alloc(dev, n, &mem) == 0, "window");
	for (at = 0; at < n && !((uint8_t *)a.host)[at]; at++)
		;
	CHECK(at == n && a.size == n && a.dev, "pinned memory is not zero at %zu", at);
	gpu_pattern(a.host, n, 1);
	gpu_write(dev, mem.ptr, &a, n, stream);
	gpu_read(dev, &b, mem.ptr, n, stream);
	CHECK((at = gpu_differs(b.host, n, 1)) == n, "came back different at %zu", at);
	/* The device address of pinned memory works too. */
	CHECK(dev->ops->copy(dev, b.dev, a.dev, 4096, NULL) == 0 &&
		      dev->ops->sync(dev, NULL, ep_deadline_ms(20000)) == 0,
	      "pinned to pinned in the default stream");
	REQUIRE(dev->ops->fill(dev, (char *)mem.ptr + 5, 0x5a, 100, stream) == 0, "fill");
	gpu_read(dev, &b, mem.ptr, 128, stream);
	for (at = 0; at < 128; at++)
		CHECK(((uint8_t *)b.host)[at] == (at >= 5 && at < 105 ? 0x5a : gpu_byte(at, 1)), "fill at %zu", at);
	CHECK(dev->ops->copy(dev, NULL, NULL, 0, stream) == 0 && dev->ops->fill(dev, NULL, 0, 0, stream) == 0,
	      "nothing to do");
	dev->ops->pinned_free(dev, &a);
	dev->ops->pinned_free(dev, &b);
	CHECK(!a.host && !b.host, "free clears");
	dev->ops->pinned_free(dev, &b);
	dev->ops->mem_free(dev, &mem);
}

/* Pageable memory: staged by the row, in pieces, and done when the call returns. */
static void pageable(struct ep_dev *dev, void *stream)
{
	size_t n = (1u << 20) + 3, at;
	uint8_t *a = malloc(n), *b = malloc(n);
	struct ep_mem mem;

	REQUIRE(a && b && dev->ops->mem_alloc(dev, n, &mem) == 0, "set-up");
	gpu_pattern(a, n, 4);
	CHECK(dev->ops->copy(dev, mem.ptr, a, n, stream) == 0, "to the device");
	memset(a, 0, n);
	CHECK(dev->ops->copy(dev, b, mem.ptr, n, stream) == 0, "from the device");
	CHECK((at = gpu_differs(b, n, 4)) == n, "came back different at %zu", at);
	CHECK(dev->ops->copy(dev, a, b, n, NULL) == 0 && !memcmp(a, b, n), "between the two");
	dev->ops->mem_free(dev, &mem);
	free(a);
	free(b);
}

/* A blocked stream: the copy gives up at the deadline, and the buffer it leaks is not used again. */
static void pageable_stuck(void)
{
	unsigned (*host)(void *, void (*)(void *), void *) =
		GPU_SYM(unsigned (*)(void *, void (*)(void *), void *), "cuLaunchHostFunc");
	struct ep_dev *dev = gpu_open(0);
	uint64_t long_nap = 300000000;
	struct ep_mem mem;
	uint8_t byte = 0;
	void *stream;

	REQUIRE(dev->ops->mem_alloc(dev, 16, &mem) == 0 && dev->ops->stream_create(dev, &stream) == 0, "set-up");
	REQUIRE(host(stream, nap, &long_nap) == 0, "host function");
	setenv("NCCL_EP_TIMEOUT_MS", "30", 1);
	CHECK_FAILS(dev->ops->copy(dev, &byte, mem.ptr, 1, stream), EP_ETIMEOUT, "in time");
	CHECK_FAILS(dev->ops->copy(dev, &byte, mem.ptr, 1, NULL), EP_EDEVICE, "never ended");
	unsetenv("NCCL_EP_TIMEOUT_MS");
	CHECK(dev->ops->sync(dev, stream, ep_deadline_ms(20000)) == 0, "the nap ends");
	dev->ops->stream_destroy(dev, stream);
	dev->ops->mem_free(dev, &mem);
	dev->ops->close(dev);
}

static void waits(struct ep_dev *dev, void *stream)
{
	unsigned (*host)(void *, void (*)(void *), void *) =
		GPU_SYM(unsigned (*)(void *, void (*)(void *), void *), "cuLaunchHostFunc");
	uint64_t long_nap = 400000000, start;
	struct ep_mem mem;

	CHECK(dev->ops->sync(dev, stream, 0) == 0, "an idle stream needs no time");
	gpu_make_current();
	REQUIRE(host(stream, nap, &long_nap) == 0, "host function");
	start = ep_now_ns();
	CHECK_FAILS(dev->ops->sync(dev, stream, ep_deadline_ms(50)), EP_ETIMEOUT, "in time");
	CHECK(ep_now_ns() - start >= 50000000 && ep_now_ns() - start < 300000000, "waited %llu us instead of 50000",
	      (unsigned long long)(ep_now_ns() - start) / 1000);
	/* A window can be allocated and zeroed while another stream is busy. */
	CHECK(dev->ops->mem_alloc(dev, 100, &mem) == 0, "window beside a busy stream");
	CHECK(dev->ops->sync(dev, stream, ep_deadline_ms(20000)) == 0, "the nap ends");
	dev->ops->mem_free(dev, &mem);
}

static void buffers(struct ep_dev *dev)
{
	struct ep_buffer a, b, c;
	struct ep_pinned pin;
	struct ep_mem one, two;
	uint64_t seen[4];
	int local;

	REQUIRE(dev->ops->mem_alloc(dev, 1000, &one) == 0 && dev->ops->mem_alloc(dev, 1000, &two) == 0, "windows");
	REQUIRE(dev->ops->pinned_alloc(dev, 1000, &pin) == 0, "pinned");
	CHECK(dev->ops->buffer_id(dev, one.ptr, 1, &a) == 0 && dev->ops->buffer_id(dev, two.ptr, 1, &b) == 0, "ids");
	CHECK(a.id && b.id && a.id != b.id, "ids %llx and %llx", (unsigned long long)a.id, (unsigned long long)b.id);
	CHECK(a.base == one.ptr && a.size >= 1000, "base %p, size %zu", a.base, a.size);
	CHECK(dev->ops->buffer_id(dev, (char *)one.ptr + 999, 1, &c) == 0 && c.id == a.id && c.base == a.base,
	      "inside");
	CHECK(dev->ops->buffer_id(dev, pin.host, 1, &c) == 0 && c.id && c.id != a.id && c.base == pin.host, "pinned");
	CHECK(dev->ops->buffer_id(dev, &local, 1, &c) == -ENOENT, "not device memory");
	for (int i = 0; i < 4; i++) {
		dev->ops->mem_free(dev, &one);
		REQUIRE(dev->ops->mem_alloc(dev, 1000, &one) == 0, "again");
		REQUIRE(dev->ops->buffer_id(dev, one.ptr, 1, &c) == 0, "id");
		seen[i] = c.id;
		CHECK(c.id != a.id && c.id != b.id, "an id came back");
		for (int j = 0; j < i; j++)
			CHECK(c.id != seen[j], "an id came back");
	}
	dev->ops->mem_free(dev, &one);
	dev->ops->mem_free(dev, &two);
	dev->ops->pinned_free(dev, &pin);
}

/* Where kernels access what a caller may pass: windows, pinned and registered host memory, not pageable memory. */
static void addresses(struct ep_dev *dev, void *stream)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct ep_pinned pin, reg;
	void *there = NULL, *host = NULL;
	struct ep_mem mem;

	REQUIRE(dev->ops->mem_alloc(dev, 1000, &mem) == 0 && dev->ops->pinned_alloc(dev, 1000, &pin) == 0, "set-up");
	REQUIRE(!posix_memalign(&host, page, page), "host memory");
	CHECK(dev->ops->address(dev, (char *)mem.ptr + 8, &there) == 0 && there == (char *)mem.ptr + 8, "window");
	CHECK(dev->ops->address(dev, (char *)pin.host + 8, &there) == 0 && there == (char *)pin.dev + 8, "pinned");
	there = &there;
	CHECK(dev->ops->address(dev, host, &there) == -ENOENT && there == &there, "pageable");
	CHECK(dev->ops->address(dev, &there, &there) == -ENOENT && there == &there, "the stack");
	memset(host, 9, page);
	REQUIRE(dev->ops->pin(dev, host, page, &reg) == 0, "registered");
	CHECK(dev->ops->address(dev, (char *)host + 8, &there) == 0 && there == (char *)reg.dev + 8, "registered");
	CHECK(dev->ops->copy(dev, there, mem.ptr, 1, stream) == 0 &&
		      dev->ops->sync(dev, stream, ep_deadline_ms(20000)) == 0 && ((char *)host)[8] == 0,
	      "the device writes there");
	dev->ops->unpin(dev, &reg);
	free(host);
	dev->ops->pinned_free(dev, &pin);
	dev->ops->mem_free(dev, &mem);
}

static void refusals(struct ep_dev *dev)
{
	struct ep_mem mem = { .size = 77 };
	struct ep_pinned pin = { .size = 77 };

	CHECK_FAILS(dev->ops->mem_alloc(dev, 0, &mem), EP_EARG, "0 bytes");
	CHECK_FAILS(dev->ops->mem_alloc(dev, SIZE_MAX, &mem), EP_EARG, "window");
	CHECK_FAILS(dev->ops->mem_alloc(dev, (size_t)1 << 45, &mem), EP_EDEVICE, "CUDA_ERROR_OUT_OF_MEMORY");
	CHECK_FAILS(dev->ops->pinned_alloc(dev, 0, &pin), EP_EARG, "0 bytes");
	CHECK(mem.size == 77 && pin.size == 77, "a failure wrote its output");
}

int main(void)
{
	int count;
	const struct ep_dev_ops *row = gpu_row(&count);
	struct ep_dev *dev;
	void *stream;

	devices(row, count);
	dev = gpu_open(0);
	REQUIRE(row->stream_create(dev, &stream) == 0, "stream");
	pinned(dev, stream);
	pageable(dev, stream);
	buffers(dev);
	addresses(dev, stream);
	refusals(dev);
	CHECK(!gpu_current_context(), "an operation left its context with the caller");
	waits(dev, stream);
	pageable_stuck();
	CHECK(row->current(&count) == 0 && count == 0, "current is %d", count);
	row->stream_destroy(dev, stream);
	row->close(dev);
	return gpu_end("gpu_dev");
}
