/* SPDX-License-Identifier: Apache-2.0 */
#include "test/callers/caller.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SYNC_SECONDS 60.0

static int usage(FILE *out, const char *program, int status)
{
	fprintf(out,
		"usage: %s [-t | -g] [-n ROUNDS] LIBNCCL_EP.SO\n"
		"  -t  ranks are threads (default)   -g  ranks are processes   -n  passes of each kind (10)\n",
		program);
	return status;
}

int caller_options(struct caller_options *o, const char *program, int argc, char **argv)
{
	int c;

	*o = (struct caller_options){ .rounds = 10 };
	while ((c = getopt(argc, argv, "tgn:h")) != -1) {
		if (c == 'h')
			return usage(stdout, program, 0);
		if (c == 't' || c == 'g')
			o->processes = c == 'g';
		else if (c == 'n')
			o->rounds = atoi(optarg);
		else
			return usage(stderr, program, 2);
	}
	if (optind != argc - 1 || o->rounds < 1)
		return usage(stderr, program, 2);
	snprintf(o->library, sizeof(o->library), "%s", argv[optind]);
	return -1;
}

int caller_open(struct caller *c, struct seat *seat)
{
	*c = (struct caller){ .seat = seat, .rank = seat_rank(seat), .ranks = seat_ranks(seat) };
	c->comm = seat_comm(seat);
	if (!c->comm)
		return -1;
	if (shim_open(&c->shim, c->comm, false))
		return seat_fail(seat, "%s", c->shim.text);
	return 0;
}

int caller_close(struct caller *c)
{
	shim_close(&c->shim);
	if (c->verdict.wrong)
		seat_fail(c->seat, "#wrong %llu: %s", (unsigned long long)c->verdict.wrong, c->verdict.first);
	return seat_failed(c->seat) ? -1 : 0;
}

int caller_sync(struct caller *c)
{
	return c->shim.ops->sync(&c->shim, SYNC_SECONDS) ? seat_fail(c->seat, "%s", c->shim.text) : 0;
}

int caller_meet(struct caller *c)
{
	return caller_sync(c) || seat_barrier(c->seat) ? -1 : 0;
}

int caller_expect(struct caller *c, const char *call, ncclResult_t got)
{
	if (got == ncclSuccess)
		return 0;
	return seat_fail(c->seat, "%s: %s: %s", call, ncclGetErrorString(got), load_error());
}

void caller_want(struct caller *c, const char *call, ncclResult_t want, ncclResult_t got)
{
	ll_wrong(&c->verdict, got != want, "rank %d: %s returned %s, must be %s (%s)", c->rank, call,
		 ncclGetErrorString(got), ncclGetErrorString(want), load_error());
}

int caller_healthy(struct caller *c, ncclEpGroup_t group)
{
	int error = -1;

	if (caller_sync(c) || caller_expect(c, "ncclEpGetAsyncError", ep.ncclEpGetAsyncError(group, &error)))
		return -1;
	ll_wrong(&c->verdict, error != 0, "rank %d: ncclEpGetAsyncError gives %d", c->rank, error);
	return 0;
}

static size_t element(ncclDataType_t type)
{
	switch (type) {
	case ncclInt64:
		return 8;
	case ncclInt32:
	case ncclFloat32:
		return 4;
	case ncclBfloat16:
		return 2;
	default:
		return 1;
	}
}

static int window_open(struct caller *c, struct tensor *t)
{
	ncclResult_t rc = ncclMemAlloc((void **)&t->at, t->bytes);

	if (rc == ncclSuccess)
		rc = ncclCommWindowRegister(c->comm, t->at, t->bytes, &t->t.win_hdl, NCCL_WIN_COLL_SYMMETRIC);
	return rc == ncclSuccess ? 0 : seat_fail(c->seat, "a window: %s", ncclGetLastError(c->comm));
}

int tensor_open(struct caller *c, struct tensor *t, enum where where, ncclDataType_t type, unsigned ndim,
		const size_t *sizes)
{
	size_t count = 1;
	int rc;

	*t = (struct tensor){ .t = NCCL_EP_TENSOR_INIT, .where = where };
	for (unsigned i = 0; i < ndim; i++)
		count *= t->sizes[i] = sizes[i];
	t->t.ndim = ndim;
	t->t.datatype = type;
	t->t.sizes = t->sizes;
	t->bytes = (count ? count : 1) * element(type);
	if (where == IN_WINDOW && window_open(c, t))
		return -1;
	if (where != IN_WINDOW) {
		rc = (where == PINNED ? c->shim.ops->pinned_alloc : c->shim.ops->alloc)(&c->shim, t->bytes,
											(void **)&t->at);
		if (rc)
			return seat_fail(c->seat, "%s", c->shim.text);
		t->t.data = count ? t->at : NULL;
	}
	if (shim_is_gpu(&c->shim) && where != PINNED && !(t->host = malloc(t->bytes)))
		return seat_fail(c->seat, "out of memory");
	return 0;
}

void tensor_close(struct caller *c, struct tensor *t)
{
	if (t->t.win_hdl)
		ncclCommWindowDeregister(c->comm, t->t.win_hdl);
	if (t->at && t->where == IN_WINDOW)
		ncclMemFree(t->at);
	else if (t->at)
		(t->where == PINNED ? c->shim.ops->pinned_free : c->shim.ops->free)(&c->shim, t->at);
	free(t->host);
	*t = (struct tensor){ 0 };
}

void tensors_close(struct caller *c, struct tensor *t, size_t count)
{
	for (size_t i = 0; i < count; i++)
		tensor_close(c, &t[i]);
}

void tensor_rows(struct tensor *t, size_t rows)
{
	t->sizes[0] = rows;
	if (t->where != IN_WINDOW)
		t->t.data = rows ? t->at : NULL;
}

static size_t used(const struct tensor *t)
{
	size_t count = element(t->t.datatype);

	for (unsigned i = 0; i < t->t.ndim; i++)
		count *= t->sizes[i];
	return count;
}

int tensor_put(struct caller *c, struct tensor *t, const void *from)
{
	size_t size = used(t);

	if (t->where == PINNED)
		memcpy(t->at, from, size);
	else if (size && c->shim.ops->put(&c->shim, t->at, from, size))
		return seat_fail(c->seat, "%s", c->shim.text);
	return 0;
}

int tensor_fill(struct caller *c, struct tensor *t, int byte)
{
	if (t->where == PINNED)
		memset(t->at, byte, t->bytes);
	else if (c->shim.ops->fill(&c->shim, t->at, byte, t->bytes))
		return seat_fail(c->seat, "%s", c->shim.text);
	return 0;
}

const void *tensor_get(struct caller *c, struct tensor *t)
{
	if (!t->host)
		return t->at;
	if (c->shim.ops->get(&c->shim, t->host, t->at, t->bytes)) {
		seat_fail(c->seat, "%s", c->shim.text);
		return NULL;
	}
	return t->host;
}

int pages_open(struct caller *c, size_t size, void **out)
{
	if (shim_is_gpu(&c->shim))
		return c->shim.ops->alloc(&c->shim, size, out) ? seat_fail(c->seat, "%s", c->shim.text) : 0;
	*out = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (*out != MAP_FAILED)
		return 0;
	*out = NULL;
	return seat_fail(c->seat, "no memory map of %zu bytes", size);
}

void pages_close(struct caller *c, void *at, size_t size)
{
	if (at && shim_is_gpu(&c->shim))
		c->shim.ops->free(&c->shim, at);
	else if (at)
		mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
