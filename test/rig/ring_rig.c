/* SPDX-License-Identifier: Apache-2.0 */
#include "ring_rig.h"

#include <stdlib.h>

#include "util/clock.h"
#include "util/error.h"

/* In stream order, and waits. */
static int rig_copy(struct ring_rig *rig, void *dst, const void *src, size_t n)
{
	const struct ep_dev_ops *ops = rig->dev->ops;
	void *stream;
	int rc = ops->stream_create(rig->dev, &stream);

	if (rc)
		return rc;
	rc = ops->copy(rig->dev, dst, src, n, stream);
	if (!rc)
		rc = ops->sync(rig->dev, stream, ep_deadline_ms(20000));
	ops->stream_destroy(rig->dev, stream);
	return rc;
}

static int rig_memory(struct ring_rig *rig, uint32_t rings, uint64_t start, size_t payload)
{
	const struct ep_dev_ops *ops = rig->dev->ops;
	int rc;

	if ((rc = ops->mem_alloc(rig->dev, sizeof(struct rig_device), &rig->device)) ||
	    (rc = ops->pinned_alloc(rig->dev, sizeof(struct rig_page), &rig->page)) ||
	    (payload && (rc = ops->pinned_alloc(rig->dev, payload * sizeof(uint64_t), &rig->payload))))
		return rc;
	for (; rig->rings < rings; rig->rings++) {
		uint32_t i = rig->rings;

		rc = ops->pinned_alloc(rig->dev, ep_cmd_pinned_size(rig->entries), &rig->memory[i]);
		if (rc || (rc = ep_ring_init(&rig->ring[i], rig->memory[i].host, rig->entries, start)))
			return rc;
	}
	return 0;
}

int rig_open(struct ring_rig *rig, enum ep_dev_kind kind, uint32_t rings, uint32_t entries, uint64_t start,
	     size_t payload)
{
	struct rig_device *at, *d;
	int rc;

	*rig = (struct ring_rig){ .entries = entries };
	if (rings > RIG_RINGS)
		return EP_FAIL(EP_PROXY, EP_EARG, "%u rings, at most %d", rings, RIG_RINGS);
	rc = ep_dev_row(kind)->open(0, &rig->dev);
	if (rc)
		return rc;
	rc = rig_memory(rig, rings, start, payload);
	d = calloc(1, sizeof(*d));
	if (!rc && !d)
		rc = -ENOMEM;
	at = rig->device.ptr;
	for (uint32_t i = 0; !rc && i < rings; i++) {
		d->head[i].claim = d->head[i].seen = start;
		d->ring[i] = ep_ring_for_device(&rig->ring[i], rig->memory[i].dev, &at->head[i]);
	}
	if (!rc)
		rc = rig_copy(rig, at, d, sizeof(*d));
	free(d);
	if (rc)
		rig_close(rig);
	return rc;
}

void rig_close(struct ring_rig *rig)
{
	const struct ep_dev_ops *ops = rig->dev->ops;

	for (uint32_t i = 0; i < RIG_RINGS; i++)
		if (rig->memory[i].host)
			ops->pinned_free(rig->dev, &rig->memory[i]);
	if (rig->payload.host)
		ops->pinned_free(rig->dev, &rig->payload);
	if (rig->page.host)
		ops->pinned_free(rig->dev, &rig->page);
	if (rig->device.ptr)
		ops->mem_free(rig->dev, &rig->device);
	ops->close(rig->dev);
}

int rig_head(struct ring_rig *rig, uint32_t ring, struct ep_cmd_head *out)
{
	struct rig_device *at = rig->device.ptr;

	return rig_copy(rig, out, &at->head[ring], sizeof(*out));
}

static void *rig_run(void *arg)
{
	struct rig_job *job = arg;
	struct ep_dev *dev = job->rig->dev;
	struct ep_launch launch = { .kernel = EP_K_ring_push,
				    .grid = job->grid,
				    .block = job->warps * dev->warp,
				    .args = &job->args,
				    .args_size = sizeof(job->args) };
	uint64_t start;

	job->rc = dev->ops->stream_create(dev, &launch.stream);
	if (!job->rc) {
		start = ep_now_ns();
		job->rc = dev->ops->launch(dev, &launch);
		if (!job->rc)
			job->rc = dev->ops->sync(dev, launch.stream, start + 2 * job->args.timeout_ns + 20000000000ull);
		job->wall_ns = ep_now_ns() - start;
		dev->ops->stream_destroy(dev, launch.stream);
	}
	__atomic_store_n(&job->ended, 1, __ATOMIC_RELEASE);
	return NULL;
}

int rig_start(struct rig_job *job)
{
	struct rig_device *at = job->rig->device.ptr;
	struct rig_page *page = job->rig->page.dev;

	job->args.ring = at->ring;
	job->args.state = &at->state[job->index];
	job->args.report = &page->report[job->index];
	job->args.payload = job->rig->payload.dev;
	job->args.abort = &page->abort;
	job->args.rings = job->rig->rings;
	job->ended = 0;
	rig_page(job->rig)->report[job->index] = (struct ep_ring_push_report){ 0 };
	return -pthread_create(&job->thread, NULL, rig_run, job);
}

int rig_join(struct rig_job *job, uint64_t *failed)
{
	pthread_join(job->thread, NULL);
	*failed = __atomic_load_n(&rig_page(job->rig)->report[job->index].failed, __ATOMIC_RELAXED);
	return job->rc;
}

int rig_ended(const struct rig_job *job)
{
	return __atomic_load_n(&job->ended, __ATOMIC_ACQUIRE);
}
