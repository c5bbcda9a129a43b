/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives over the bootstrap's allgather, in chunks staged through host memory: every rank receives every rank's
 * chunk and keeps what the call needs. Broadcast thus moves R times the data it needs; these calls set up jobs and
 * check results, and one path for all matters more than the bytes.
 */
#include "plugin/standin/coll.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/host/stream.h"
#include "plugin/standin/reduce.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

#define STAGE_BYTES ((size_t)4 << 20) /* for the chunks of all ranks */
#define CHUNK_MIN ((size_t)4096)

struct work {
	struct ncclComm *comm;
	const struct ep_coll *coll;
	void *stream;  /* of the device; NULL on the host, where ep_coll_run has handled the stream */
	size_t size;   /* of an element */
	size_t chunk;  /* elements */
	char *mine;    /* [chunk] */
	char *reduced; /* [chunk] */
	char *all;     /* [nranks][chunk] */
};

static int copy(const struct work *w, void *dst, const void *src, size_t n)
{
	struct ep_dev *dev = w->comm->dev;

	return dev->ops->copy(dev, dst, src, n * w->size, w->stream);
}

static char *recv_at(const struct work *w, size_t element)
{
	return (char *)w->coll->recv + element * w->size;
}

/* The stores: elements at .. at + n of all send buffers are in w->all, in rank order. */
static int store_gather(const struct work *w, size_t at, size_t n)
{
	int rc = 0;

	for (int r = 0; r < w->comm->nranks && !rc; r++)
		rc = copy(w, recv_at(w, (size_t)r * w->coll->count + at), w->all + (size_t)r * n * w->size, n);
	return rc;
}

static int store_reduced(const struct work *w, size_t at, size_t n)
{
	ep_reduce(w->coll->dtype, w->coll->op, w->all, n, w->comm->nranks, w->reduced);
	return copy(w, recv_at(w, at), w->reduced, n);
}

static int store_my_part(const struct work *w, size_t at, size_t n)
{
	if (at / w->coll->count != (size_t)w->comm->rank)
		return 0;
	return store_reduced(w, at % w->coll->count, n);
}

static int store_root(const struct work *w, size_t at, size_t n)
{
	return copy(w, recv_at(w, at), w->all + (size_t)w->coll->root * n * w->size, n);
}

static const struct shape {
	int (*store)(const struct work *w, size_t at, size_t n);
	bool reduces, rooted;
	bool parts; /* the send buffer has count elements for every rank */
} shapes[] = {
	[EP_SC_ALLGATHER] = { store_gather },
	[EP_SC_ALLREDUCE] = { store_reduced, .reduces = true },
	[EP_SC_REDUCE_SCATTER] = { store_my_part, .reduces = true, .parts = true },
	[EP_SC_BROADCAST] = { store_root, .rooted = true },
};

static bool sends(const struct ncclComm *comm, const struct ep_coll *coll)
{
	return !shapes[coll->kind].rooted || coll->root == comm->rank;
}

static int sync_device(const struct work *w)
{
	struct ep_dev *dev = w->comm->dev;

	return dev->ops->sync(dev, w->stream, ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS)));
}

static int chunk_run(const struct work *w, size_t at, size_t n)
{
	const struct ep_coll *coll = w->coll;
	int rc = 0;

	if (sends(w->comm, coll)) {
		rc = copy(w, w->mine, (const char *)coll->send + at * w->size, n);
		if (!rc)
			rc = sync_device(w);
	}
	if (rc)
		return ep_sc_give_up(w->comm, rc);
	rc = ep_boot_allgather(w->comm->boot, w->mine, n * w->size, w->all);
	if (rc)
		return ep_sc_break(w->comm, rc);
	rc = shapes[coll->kind].store(w, at, n);
	if (!rc)
		rc = sync_device(w);
	return rc ? ep_sc_give_up(w->comm, rc) : 0;
}

static int chunks_run(const struct work *w)
{
	const struct ep_coll *coll = w->coll;
	size_t total = coll->count, n;
	int rc = 0;

	if (shapes[coll->kind].parts)
		total *= (size_t)w->comm->nranks;
	for (size_t at = 0; at < total && !rc; at += n) {
		size_t part = coll->count - at % coll->count;

		n = w->chunk < part ? w->chunk : part;
		rc = chunk_run(w, at, n);
		ep_sc_step(w->comm);
	}
	return rc;
}

/* Inside enter and leave. Pinned: a GPU copies pageable memory with a hidden wait. */
static int work_run(struct ncclComm *comm, const struct ep_coll *coll)
{
	size_t bytes = STAGE_BYTES / (size_t)comm->nranks / CHUNK_MIN * CHUNK_MIN;
	struct work w = { .comm = comm, .coll = coll, .size = ep_dtype_size(coll->dtype) };
	int rc = 0;

	if (bytes < CHUNK_MIN)
		bytes = CHUNK_MIN;
	if (!comm->stage.host)
		rc = comm->dev->ops->pinned_alloc(comm->dev, ((size_t)comm->nranks + 2) * bytes, &comm->stage);
	if (rc)
		return ep_sc_give_up(comm, rc);
	w.stream = comm->device.kind == EP_DEV_HOST ? NULL : coll->stream;
	w.chunk = bytes / w.size;
	w.mine = comm->stage.host;
	w.reduced = w.mine + bytes;
	w.all = w.reduced + bytes;
	return chunks_run(&w);
}

static int coll_turn(struct ncclComm *comm, const struct ep_coll *coll)
{
	struct ep_sc_call call = { .kind = coll->kind, .dtype = coll->dtype, .count = coll->count };
	int rc;

	if (shapes[coll->kind].reduces)
		call.op = coll->op;
	if (shapes[coll->kind].rooted)
		call.root = coll->root;
	rc = ep_sc_meet(comm, &call, NULL);
	if (rc || !coll->count)
		return rc;
	return work_run(comm, coll);
}

static int coll_now(struct ncclComm *comm, const struct ep_coll *coll, uint64_t ticket)
{
	int rc = ep_sc_enter(comm, ticket);

	if (rc)
		return rc;
	rc = coll_turn(comm, coll);
	ep_sc_leave(comm);
	return rc;
}

struct task {
	struct ncclComm *comm;
	struct ep_coll coll;
	uint64_t ticket;
};

/* On the host stream's thread, where no caller sees the result: every failure, also a mismatched call, breaks the
 * communicator and is reported by ncclCommGetAsyncError and the next call. */
static void task_run(void *arg)
{
	struct task *task = arg;
	int rc = coll_now(task->comm, &task->coll, task->ticket);

	if (rc)
		ep_sc_break(task->comm, rc);
	ep_sc_put(task->comm);
	free(task);
}

static int coll_enqueue(struct ncclComm *comm, const struct ep_coll *coll, struct ep_host_stream_head *stream)
{
	struct task *task = EP_CALLOC(EP_COMM, 1, sizeof(*task), ep_sc_kind_name(coll->kind));
	int rc;

	if (!task)
		return ep_sc_give_up(comm, -ENOMEM); /* the others will make this call */
	*task = (struct task){ .comm = comm, .coll = *coll };
	rc = ep_sc_ticket(comm, coll->kind, &task->ticket);
	if (rc)
		goto free_task;
	rc = ep_sc_get(comm, ep_sc_kind_name(coll->kind), &task->comm);
	if (rc)
		goto break_comm;
	rc = stream->enqueue(stream, task_run, task);
	if (!rc)
		return 0;
	EP_FAIL(EP_COMM, -rc, "rank %d: cannot enqueue %s on the host stream", comm->rank, ep_sc_kind_name(coll->kind));
	ep_sc_put(comm);
break_comm:
	ep_sc_give_up(comm, rc); /* its ticket will not be served */
free_task:
	free(task);
	return rc;
}

int ep_coll_run(struct ncclComm *comm, const struct ep_coll *coll)
{
	struct ep_host_stream_head *stream = NULL;
	uint64_t ticket;
	int rc = ep_sc_check(comm);

	if (rc)
		return rc;
	if (comm->device.kind == EP_DEV_HOST)
		stream = ep_host_stream_head(coll->stream);
	if (stream)
		return coll_enqueue(comm, coll, stream);
	rc = ep_sc_ticket(comm, coll->kind, &ticket);
	return rc ? rc : coll_now(comm, coll, ticket);
}

static int check_stream(const struct ncclComm *comm, const struct ep_coll *coll, const char *name)
{
	bool capturing = false;

	if (comm->device.kind == EP_DEV_HOST) {
		if ((uintptr_t)coll->stream > 2 &&
		    !ep_host_stream_head(coll->stream)) /* 1 and 2 are CUDA's default streams */
			return EP_FAIL(EP_COMM, EP_EARG, "%s: rank %d has no GPU, and stream %p is not a host stream",
				       name, comm->rank, coll->stream);
		return 0;
	}
	if (!comm->dev->ops->capturing(comm->dev, coll->stream, &capturing) && capturing)
		return EP_FAIL(EP_COMM, EP_EUSAGE, "%s: collectives of the stand-in cannot be captured in a graph",
			       name);
	return 0;
}

int ep_coll_check(const struct ncclComm *comm, const struct ep_coll *coll)
{
	const char *name = ep_sc_kind_name(coll->kind);
	const struct shape *shape = &shapes[coll->kind];
	size_t size = ep_dtype_size(coll->dtype);

	if (!size)
		return EP_FAIL(EP_COMM, EP_EARG, "%s: invalid datatype %d", name, (int)coll->dtype);
	if (shape->reduces && (unsigned)coll->op >= ncclNumOps)
		return EP_FAIL(EP_COMM, EP_EARG, "%s: unsupported reduction %d", name, (int)coll->op);
	if (shape->rooted && (coll->root < 0 || coll->root >= comm->nranks))
		return EP_FAIL(EP_COMM, EP_EARG, "%s: invalid root %d of %d ranks", name, coll->root, comm->nranks);
	if (coll->count > SIZE_MAX / 2 / size / (size_t)comm->nranks)
		return EP_FAIL(EP_COMM, EP_EARG, "%s: %zu elements of %zu bytes from %d ranks exceed the address space",
			       name, coll->count, size, comm->nranks);
	if (coll->count && !coll->send && sends(comm, coll))
		return EP_FAIL(EP_COMM, EP_EARG, "%s: sendbuff is NULL", name);
	if (coll->count && !coll->recv)
		return EP_FAIL(EP_COMM, EP_EARG, "%s: recvbuff is NULL", name);
	return check_stream(comm, coll, name);
}
