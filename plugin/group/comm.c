/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/comm.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/standin/query.h"
#include "util/clock.h"
#include "util/error.h"

/* Visits every loaded object until one knows the communicator. Objects opened with RTLD_LOCAL are invisible to
 * dlsym(RTLD_DEFAULT) but not to this: torch loads its NCCL that way. */
struct search {
	ncclComm_t comm;
	struct ep_comm_calls *out;
	bool (*ask)(void *lib, struct search *search);
	bool found;
};

static int visit(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *search = arg;
	const char *name = info->dlpi_name && *info->dlpi_name ? info->dlpi_name : NULL;
	void *lib = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);

	(void)size;
	if (!lib)
		return 0;
	search->found = search->ask(lib, search);
	dlclose(lib);
	return search->found;
}

static bool is_standin(const void *symbol)
{
	Dl_info info;
	void *lib;
	bool yes;

	if (!dladdr(symbol, &info) || !info.dli_fname)
		return false;
	lib = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!lib)
		return false;
	yes = dlsym(lib, EP_STANDIN_QUERY_NAME) != NULL;
	dlclose(lib);
	return yes;
}

static bool ask_standin(void *lib, struct search *search)
{
	ep_standin_query_fn query = (ep_standin_query_fn)dlsym(lib, EP_STANDIN_QUERY_NAME);
	const struct ep_standin_query *q = query ? query() : NULL;

	if (!q || q->version != EP_STANDIN_QUERY_VERSION || !q->owns(search->comm))
		return false;
	*search->out = (struct ep_comm_calls){
		.count = q->count,
		.rank = q->user_rank,
		.device = q->cu_device,
		.allgather = q->allgather,
		.error_string = q->error_string,
		.async_error = q->async_error,
		.window = q->win_user_ptr,
		.mem_export = q->mem_export,
		.owner = "the stand-in",
	};
	if (q->size >= offsetof(struct ep_standin_query, mem_find) + sizeof(q->mem_find))
		search->out->mem_find = q->mem_find;
	if (q->size >= offsetof(struct ep_standin_query, last_error) + sizeof(q->last_error))
		search->out->last_error = q->last_error;
	if (q->size >= offsetof(struct ep_standin_query, evidence) + sizeof(q->evidence))
		search->out->evidence = q->evidence;
	if (q->size >= offsetof(struct ep_standin_query, waited) + sizeof(q->waited))
		search->out->waited = q->waited;
	return true;
}

/* A library is taken only if it has every call and none of them is the stand-in's, which does not know this
 * communicator. */
static bool ask_real(void *lib, struct search *search)
{
	struct ep_comm_calls c = { 0 };
	const struct {
		const char *name;
		void *slot;
		bool needed;
	} wanted[] = {
		{ "ncclCommCount", &c.count, true },
		{ "ncclCommUserRank", &c.rank, true },
		{ "ncclCommCuDevice", &c.device, true },
		{ "ncclAllGather", &c.allgather, true },
		{ "ncclGetErrorString", &c.error_string, true },
		{ "ncclGetLastError", &c.last_error, false },
		{ "ncclCommGetAsyncError", &c.async_error, false },
		{ "ncclWinGetUserPtr", &c.window, false },
	};
	Dl_info info;

	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		void *symbol = dlsym(lib, wanted[i].name);

		if (!symbol && wanted[i].needed)
			return false;
		memcpy(wanted[i].slot, &symbol, sizeof(symbol));
	}
	if (is_standin((const void *)c.count))
		return false;
	c.owner = dladdr((const void *)c.count, &info) && info.dli_fname ? info.dli_fname : "NCCL";
	*search->out = c;
	return true;
}

static int find_calls(ncclComm_t comm, struct ep_comm_calls *out)
{
	struct search search = { .comm = comm, .out = out, .ask = ask_standin };

	dl_iterate_phdr(visit, &search);
	if (search.found)
		return 0;
	search.ask = ask_real;
	dl_iterate_phdr(visit, &search);
	if (search.found || ask_real(RTLD_DEFAULT, &search))
		return 0;
	return EP_FAIL(EP_COMM, EP_EARG,
		       "comm: unknown to every library of this process: it is no live communicator of the stand-in, "
		       "and "
		       "no NCCL or RCCL is loaded");
}

/* The owner's own message says which rank failed, the result's text only that one did. */
static int call_failed(const struct ep_comm *comm, const char *name, ncclResult_t rc)
{
	const char *last = comm->calls.last_error ? comm->calls.last_error(comm->handle) : NULL;

	return EP_FAIL(EP_COMM, rc == ncclInvalidArgument ? EP_EARG : EP_EREMOTE, "%s of %s failed: %s", name,
		       comm->calls.owner, last && last[0] ? last : comm->calls.error_string(rc));
}

int ep_comm_open(ncclComm_t handle, struct ep_comm *out)
{
	struct ep_comm comm = { .handle = handle };
	ncclResult_t res;
	int device, rc = find_calls(handle, &comm.calls);

	if (rc)
		return rc;
	if ((res = comm.calls.count(handle, &comm.nranks)) != ncclSuccess)
		return call_failed(&comm, "ncclCommCount", res);
	if ((res = comm.calls.rank(handle, &comm.rank)) != ncclSuccess)
		return call_failed(&comm, "ncclCommUserRank", res);
	if ((res = comm.calls.device(handle, &device)) != ncclSuccess)
		return call_failed(&comm, "ncclCommCuDevice", res);
	if (comm.nranks < 1 || comm.rank < 0 || comm.rank >= comm.nranks)
		return EP_FAIL(EP_COMM, EP_EARG, "comm: %s reports rank %d of %d", comm.calls.owner, comm.rank,
			       comm.nranks);
	comm.kind = device < 0 ? EP_DEV_HOST : ep_dev_gpu_kind();
	comm.ordinal = device < 0 ? 0 : device;
	EP_INFO(EP_COMM, "rank %d of %d, device %s %d, communicator of %s", comm.rank, comm.nranks,
		ep_dev_row(comm.kind)->name, comm.ordinal, comm.calls.owner);
	*out = comm;
	return 0;
}

/* A communicator made with blocking = 0 returns InProgress: NCCL is then polled until the call has completed. */
static int settle(const struct ep_comm *comm, ncclResult_t rc, uint64_t deadline)
{
	while (rc == ncclInProgress && comm->calls.async_error) {
		struct timespec nap = { .tv_nsec = 100000 };

		if (ep_now_ns() > deadline)
			return EP_FAIL(EP_COMM, EP_ETIMEOUT, "ncclAllGather of %s is still in progress",
				       comm->calls.owner);
		nanosleep(&nap, NULL);
		if (comm->calls.async_error(comm->handle, &rc) != ncclSuccess)
			rc = ncclInternalError;
	}
	return rc == ncclSuccess ? 0 : call_failed(comm, "ncclAllGather", rc);
}

/* By way of device memory, which is all that NCCL takes. */
static int allgather_staged(const struct ep_comm *comm, struct ep_dev *dev, void *stream, const void *mine, size_t n,
			    void *all, uint64_t deadline)
{
	const struct ep_dev_ops *ops = dev->ops;
	struct ep_mem mem;
	struct ep_pinned pinned;
	char *send, *recv;
	size_t total = n * (size_t)(comm->nranks + 1);
	int rc;

	if ((rc = ops->mem_alloc(dev, total, &mem)))
		return rc;
	if ((rc = ops->pinned_alloc(dev, total, &pinned)))
		goto free_mem;
	send = mem.ptr;
	recv = send + n;
	memcpy(pinned.host, mine, n);
	if ((rc = ops->copy(dev, send, pinned.host, n, stream)))
		goto free_pinned;
	rc = settle(comm, comm->calls.allgather(send, recv, n, ncclUint8, comm->handle, (cudaStream_t)stream),
		    deadline);
	if (rc)
		goto free_pinned;
	if ((rc = ops->copy(dev, (char *)pinned.host + n, recv, total - n, stream)))
		goto free_pinned;
	if ((rc = ops->sync(dev, stream, deadline)))
		goto leak; /* the kernel may still write: freeing would wait for it, without a bound */
	memcpy(all, (char *)pinned.host + n, total - n);
free_pinned:
	ops->pinned_free(dev, &pinned);
free_mem:
	ops->mem_free(dev, &mem);
leak:
	return rc;
}

int ep_comm_explain(const struct ep_comm *comm, int rc)
{
	char why[400];

	if ((rc != -EP_ETIMEOUT && rc != -EP_EREMOTE) || !comm->calls.evidence ||
	    comm->calls.evidence(comm->handle, why, sizeof(why)))
		return rc;
	return EP_BECAUSE(EP_COMM, rc, why);
}

int ep_comm_waited(const struct ep_comm *comm, uint64_t from, int rc, char *why, size_t size)
{
	return rc == -EP_ETIMEOUT && comm->calls.waited ? comm->calls.waited(comm->handle, from, why, size) : -ENOENT;
}

int ep_comm_allgather(const struct ep_comm *comm, struct ep_dev *dev, void *stream, const void *mine, size_t n,
		      void *all, uint64_t deadline)
{
	if (comm->kind != EP_DEV_HOST)
		return allgather_staged(comm, dev, stream, mine, n, all, deadline);
	return settle(comm, comm->calls.allgather(mine, all, n, ncclUint8, comm->handle, NULL), deadline);
}

int ep_comm_window(const struct ep_comm *comm, ncclWindow_t win, void **out)
{
	ncclResult_t res;

	if (!comm->calls.window)
		return EP_FAIL(EP_COMM, EP_EUSAGE,
			       "%s has no ncclWinGetUserPtr: pass tensors by data instead of windows",
			       comm->calls.owner);
	res = comm->calls.window(comm->handle, win, out);
	return res == ncclSuccess ? 0 : call_failed(comm, "ncclWinGetUserPtr", res);
}
