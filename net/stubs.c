/* SPDX-License-Identifier: Apache-2.0 */
/* Stubs for the operations that a net lacks. They do not know the net's name. */
#include "net/table.h"
#include "util/error.h"

#define MISSING(what) EP_FAIL(EP_NET, ENOTSUP, "this transport cannot " what)

static int no_init(const ncclEpNetInit_v1_t *args, void **net)
{
	(void)args;
	(void)net;
	return MISSING("be opened: it has no init");
}

static int no_finalize(void *net)
{
	(void)net;
	return 0;
}

static int no_devices(void *net, int *count)
{
	(void)net;
	(void)count;
	return MISSING("list its devices");
}

static int no_getProperties(void *net, int dev, ncclEpNetProperties_v1_t *props)
{
	(void)net;
	(void)dev;
	(void)props;
	return MISSING("describe its devices");
}

static int no_listen(void *net, int dev, int nranks, void *handle, void **listener)
{
	(void)net;
	(void)dev;
	(void)nranks;
	(void)handle;
	(void)listener;
	return MISSING("listen");
}

static int no_connect(void *listener, const void *handles, int nranks, int rank, void **comm)
{
	(void)listener;
	(void)handles;
	(void)nranks;
	(void)rank;
	(void)comm;
	return MISSING("connect");
}

/* Nothing to close is no failure. */
static int no_close(void *what)
{
	(void)what;
	return 0;
}

static int no_createContext(void *comm, int index, void **ctx)
{
	(void)comm;
	(void)index;
	(void)ctx;
	return MISSING("create contexts");
}

static int no_regMr(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	(void)comm;
	(void)mem;
	(void)key;
	(void)mr;
	return MISSING("register memory by address");
}

static int no_regMrDmaBuf(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	(void)comm;
	(void)mem;
	(void)key;
	(void)mr;
	return MISSING("register memory by a dma-buf");
}

static int no_shareMr(void *comm, void *mr, const void *keys)
{
	(void)comm;
	(void)mr;
	(void)keys;
	return MISSING("receive puts: it has no shareMr");
}

static int no_deregMr(void *comm, void *mr)
{
	(void)comm;
	(void)mr;
	return 0;
}

/* Engines ask all the time: not logged. */
static int no_queryLastError(void *comm, int peer, const char **message)
{
	(void)comm;
	(void)peer;
	(void)message;
	return -ENOTSUP;
}

static int no_iput(void *ctx, const ncclEpNetPut_v1_t *put, void **request)
{
	(void)ctx;
	(void)put;
	*request = NULL;
	return MISSING("put");
}

static int no_iflush(void *ctx, void *mr, void **request)
{
	(void)ctx;
	(void)mr;
	*request = NULL;
	return MISSING("flush; use the device's own flush");
}

static int no_test(void *ctx, void *request, int *done)
{
	(void)ctx;
	(void)request;
	*done = 0;
	return MISSING("report completions");
}

static int no_progress(void *ctx, uint32_t *imms, int max, int *count)
{
	(void)ctx;
	(void)imms;
	(void)max;
	*count = 0;
	return MISSING("progress");
}

#define FILL(row, op, stub)               \
	do {                              \
		if (!(row)->op)           \
			(row)->op = stub; \
	} while (0)

void ep_net_fill(ncclEpNet_v1_t *ops, ncclEpNetHot_v1_t *hot)
{
	FILL(ops, init, no_init);
	FILL(ops, finalize, no_finalize);
	FILL(ops, devices, no_devices);
	FILL(ops, getProperties, no_getProperties);
	FILL(ops, listen, no_listen);
	FILL(ops, connect, no_connect);
	FILL(ops, closeListen, no_close);
	FILL(ops, closeComm, no_close);
	FILL(ops, createContext, no_createContext);
	FILL(ops, destroyContext, no_close);
	FILL(ops, regMr, no_regMr);
	FILL(ops, regMrDmaBuf, no_regMrDmaBuf);
	FILL(ops, shareMr, no_shareMr);
	FILL(ops, deregMr, no_deregMr);
	FILL(ops, queryLastError, no_queryLastError);
	FILL(hot, iput, no_iput);
	FILL(hot, iflush, no_iflush);
	FILL(hot, test, no_test);
	FILL(hot, progress, no_progress);
}
