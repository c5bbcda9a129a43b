/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin that breaks P3 of nccl_ep_net.h: leaky(X) is X, but the 40th put to rank 1, or the first after it that is
 * not quiet, fails and is never sent, while all later ones are. net_order.c and engine_leaky.c must notice.
 */
#include <errno.h>

#include <nccl_ep_net.h>

#define PEER 1
#define LEAK 40u

static const ncclEpNet_v1_t *inner;
static unsigned made; /* puts to PEER */
static char lost;     /* the request of the lost put */

static int leaky_init(const ncclEpNetInit_v1_t *args, void **net)
{
	inner = args->inner;
	*net = args->innerNet;
	return inner ? 0 : -EINVAL;
}

static int leaky_finalize(void *net)
{
	(void)net; /* the library closes the inner net */
	return 0;
}

static int leaky_devices(void *net, int *count)
{
	return inner->devices(net, count);
}

static int leaky_getProperties(void *net, int dev, ncclEpNetProperties_v1_t *props)
{
	return inner->getProperties(net, dev, props);
}

static int leaky_listen(void *net, int dev, int nranks, void *handle, void **listener)
{
	return inner->listen(net, dev, nranks, handle, listener);
}

static int leaky_connect(void *listener, const void *handles, int nranks, int rank, void **comm)
{
	return inner->connect(listener, handles, nranks, rank, comm);
}

static int leaky_closeListen(void *listener)
{
	return inner->closeListen(listener);
}

static int leaky_closeComm(void *comm)
{
	return inner->closeComm(comm);
}

static int leaky_createContext(void *comm, int index, void **ctx)
{
	return inner->createContext(comm, index, ctx);
}

static int leaky_destroyContext(void *ctx)
{
	return inner->destroyContext(ctx);
}

static int leaky_regMr(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	return inner->regMr(comm, mem, key, mr);
}

static int leaky_shareMr(void *comm, void *mr, const void *keys)
{
	return inner->shareMr(comm, mr, keys);
}

static int leaky_deregMr(void *comm, void *mr)
{
	return inner->deregMr(comm, mr);
}

static int leaky_queryLastError(void *comm, int peer, const char **message)
{
	return inner->queryLastError(comm, peer, message);
}

static int leaky_iput(void *ctx, const ncclEpNetPut_v1_t *put, void **request)
{
	if (put->peer == PEER && made <= LEAK) {
		made += made < LEAK || !(put->flags & NCCL_EP_NET_QUIET);
		if (made > LEAK) {
			*request = &lost;
			return 0;
		}
	}
	return inner->hot->iput(ctx, put, request);
}

static int leaky_test(void *ctx, void *request, int *done)
{
	if (request != &lost)
		return inner->hot->test(ctx, request, done);
	*done = 1;
	return -EIO;
}

static int leaky_progress(void *ctx, uint32_t *imms, int max, int *count)
{
	return inner->hot->progress(ctx, imms, max, count);
}

static const ncclEpNetHot_v1_t hot = { .iput = leaky_iput, .test = leaky_test, .progress = leaky_progress };

extern const ncclEpNet_v1_t ncclEpNetPlugin_v1;
__attribute__((visibility("default"))) const ncclEpNet_v1_t ncclEpNetPlugin_v1 = {
	.version = NCCL_EP_NET_VERSION,
	.size = sizeof(ncclEpNet_v1_t),
	.name = "leaky",
	.hot = &hot,
	.init = leaky_init,
	.finalize = leaky_finalize,
	.devices = leaky_devices,
	.getProperties = leaky_getProperties,
	.listen = leaky_listen,
	.connect = leaky_connect,
	.closeListen = leaky_closeListen,
	.closeComm = leaky_closeComm,
	.createContext = leaky_createContext,
	.destroyContext = leaky_destroyContext,
	.regMr = leaky_regMr,
	.shareMr = leaky_shareMr,
	.deregMr = leaky_deregMr,
	.queryLastError = leaky_queryLastError,
};
