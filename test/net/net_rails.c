/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How rails uses its inner net: a fake in this file that records what it is given and completes it when the test says
 * so.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/net.h"
#include "util/error.h"

TestSuite(net_rails, .timeout = 30);

enum { DEVICES = 3, MOST = 64, RANKS = 2, FLOW = 1000 };

struct given {
	ncclEpNetPut_v1_t put;
	int dev;
	bool flush, done;
	int rc;
};

static struct {
	struct given given[MOST];
	int count;
	bool full[DEVICES];
	size_t handle, key; /* bytes used */
	int lost;	    /* device that has lost rank 1, or -1 */
	int imms[DEVICES];  /* to deliver, per device; they contain the device */
	int open, mrs;	    /* open listeners and comms, registrations */
	int connects;	    /* calls until device 1 is connected */
	char wrong[128];
} fake;

/* Objects of the fake: the device and what it was created for. */
struct object {
	int dev, index;
};

static void *object_make(int dev, int index)
{
	struct object *o = calloc(1, sizeof(*o));

	*o = (struct object){ dev, index };
	return o;
}

static int dev_of(void *object)
{
	return ((struct object *)object)->dev;
}

static int fake_devices(void *net, int *count)
{
	(void)net;
	*count = DEVICES;
	return 0;
}

static int fake_getProperties(void *net, int dev, ncclEpNetProperties_v1_t *props)
{
	static const char *const names[] = { "a0:1", "a1:1", "a2:1" };

	(void)net;
	*props = (ncclEpNetProperties_v1_t){
		.name = names[dev],
		.ordered = 1,
		.numaNode = -1,
		.memKinds = dev == 1 ? NCCL_EP_NET_MEM_HOST : NCCL_EP_NET_MEM_HOST | NCCL_EP_NET_MEM_CUDA,
		.immBits = 32,
		.maxInline = 64u >> dev,
		.maxPuts = 100,
		.maxContexts = 4 - (uint32_t)dev,
		.maxPutSize = 1u << 20,
		.maxRegSize = 1u << 30,
		.lowLatency = { .maxBytes = FLOW, .maxPuts = dev == 2 ? 0 : 8 },
	};
	return 0;
}

/* A pattern per device whose last byte is not 0. */
static void pattern(uint8_t *out, size_t n, int dev)
{
	for (size_t i = 0; i < n; i++)
		out[i] = (uint8_t)(i * 3 + (size_t)dev * 16 + 1);
	if (n)
		out[n - 1] = 0xff;
}

static void pattern_check(const void *packs, size_t size, size_t used, int dev)
{
	uint8_t want[NCCL_EP_NET_HANDLE_SIZE] = { 0 };

	pattern(want, used, dev);
	for (int r = 0; r < RANKS; r++)
		if (memcmp((const uint8_t *)packs + (size_t)r * size, want, size) != 0)
			snprintf(fake.wrong, sizeof(fake.wrong), "device %d, rank %d: another handle or key", dev, r);
}

static int fake_listen(void *net, int dev, int nranks, void *handle, void **listener)
{
	(void)net;
	(void)nranks;
	pattern(handle, fake.handle, dev);
	*listener = object_make(dev, 0);
	fake.open++;
	return 0;
}

static int fake_connect(void *l, const void *handles, int nranks, int rank, void **comm)
{
	(void)nranks;
	(void)rank;
	pattern_check(handles, NCCL_EP_NET_HANDLE_SIZE, fake.handle, dev_of(l));
	if (dev_of(l) == 1 && fake.connects-- > 0)
		return 0;
	*comm = object_make(dev_of(l), 0);
	fake.open++;
	return 0;
}

static int fake_close(void *object)
{
	free(object);
	fake.open--;
	return 0;
}

static int fake_createContext(void *comm, int index, void **ctx)
{
	*ctx = object_make(dev_of(comm), index);
	fake.open++;
	return 0;
}

static int fake_regMr(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	(void)mem;
	pattern(key, fake.key, dev_of(comm));
	*mr = object_make(dev_of(comm), 0);
	fake.mrs++;
	return 0;
}

static int fake_shareMr(void *comm, void *mr, const void *keys)
{
	(void)mr;
	pattern_check(keys, NCCL_EP_NET_KEY_SIZE, fake.key, dev_of(comm));
	return 0;
}

static int fake_deregMr(void *comm, void *mr)
{
	if (dev_of(comm) != dev_of(mr))
		snprintf(fake.wrong, sizeof(fake.wrong), "a registration of another rail");
	free(mr);
	fake.mrs--;
	return 0;
}

static int fake_queryLastError(void *comm, int peer, const char **message)
{
	bool lost = peer == 1 && dev_of(comm) == fake.lost;

	*message = lost ? "fake: rank 1 is lost" : "";
	return lost ? -EP_EREMOTE : 0;
}

static int fake_take(void *ctx, const struct given *given, void **request)
{
	*request = NULL;
	if (fake.full[dev_of(ctx)])
		return 0;
	cr_assert(lt(int, fake.count, MOST));
	fake.given[fake.count] = *given;
	fake.given[fake.count].dev = dev_of(ctx);
	*request = given->put.flags & NCCL_EP_NET_QUIET ? NCCL_EP_NET_QUIET_REQUEST : (void *)&fake.given[fake.count];
	fake.count++;
	return 0;
}

static int fake_iput(void *ctx, const ncclEpNetPut_v1_t *put, void **request)
{
	struct given given = { .put = *put };

	if ((put->dstMr && dev_of(put->dstMr) != dev_of(ctx)) || (put->srcMr && dev_of(put->srcMr) != dev_of(ctx)))
		snprintf(fake.wrong, sizeof(fake.wrong), "a put with a registration of another rail");
	if (put->peer == 1 && dev_of(ctx) == fake.lost) {
		*request = NULL;
		return -EP_EREMOTE;
	}
	return fake_take(ctx, &given, request);
}

static int fake_iflush(void *ctx, void *mr, void **request)
{
	struct given given = { .flush = true };

	if (dev_of(mr) != dev_of(ctx))
		snprintf(fake.wrong, sizeof(fake.wrong), "a flush of a registration of another rail");
	return fake_take(ctx, &given, request);
}

static int fake_test(void *ctx, void *request, int *done)
{
	struct given *given = request;

	if (given->dev != dev_of(ctx))
		snprintf(fake.wrong, sizeof(fake.wrong), "a request of another rail");
	*done = given->done;
	return given->done ? given->rc : 0;
}

static int fake_progress(void *ctx, uint32_t *imms, int max, int *count)
{
	int dev = dev_of(ctx), n = 0;

	for (; n < max && fake.imms[dev] > 0; fake.imms[dev]--)
		imms[n++] = (uint32_t)dev;
	*count = n;
	return 0;
}

static const ncclEpNetHot_v1_t fake_hot = {
	.iput = fake_iput,
	.iflush = fake_iflush,
	.test = fake_test,
	.progress = fake_progress,
};

static const ncclEpNet_v1_t fake_ops = {
	.version = NCCL_EP_NET_VERSION,
	.size = sizeof(ncclEpNet_v1_t),
	.name = "fake",
	.devices = fake_devices,
	.getProperties = fake_getProperties,
	.listen = fake_listen,
	.connect = fake_connect,
	.closeListen = fake_close,
	.closeComm = fake_close,
	.createContext = fake_createContext,
	.destroyContext = fake_close,
	.regMr = fake_regMr,
	.shareMr = fake_shareMr,
	.deregMr = fake_deregMr,
	.queryLastError = fake_queryLastError,
};

static int fake_finalize(void *net)
{
	(void)net;
	return 0;
}

/* ---- */

struct rig {
	struct ep_net *net;
	void *listener, *comm, *ctx, *mr;
};

static void setup(void)
{
	memset(&fake, 0, sizeof(fake));
	fake.handle = 100;
	fake.key = 24;
	fake.lost = -1;
}

static int net_make(const char *options, struct ep_net **out)
{
	struct ep_net *inner = calloc(1, sizeof(*inner));
	int rc;

	inner->hot = fake_hot;
	inner->ops = fake_ops;
	inner->ops.hot = &inner->hot;
	inner->ops.finalize = fake_finalize;
	rc = ep_net_wrap(inner, "rails", options, out);
	if (rc)
		free(inner);
	return rc;
}

/* All ranks send the same handles: the patterns depend on the device only. */
static struct rig rig_open(const char *options)
{
	static uint8_t handles[RANKS][NCCL_EP_NET_HANDLE_SIZE], keys[RANKS][NCCL_EP_NET_KEY_SIZE];
	ncclEpNetMem_v1_t mem = { .size = 4096 };
	struct rig rig = { 0 };

	cr_assert(eq(int, net_make(options, &rig.net), 0), "%s", ep_last_error());
	cr_assert(eq(int, rig.net->ops.listen(rig.net->net, 0, RANKS, handles[0], &rig.listener), 0));
	memcpy(handles[1], handles[0], sizeof(handles[0]));
	fake.connects = 3;
	for (int i = 0; i < 10 && !rig.comm; i++)
		cr_assert(eq(int, rig.net->ops.connect(rig.listener, handles, RANKS, 0, &rig.comm), 0));
	cr_assert(rig.comm != NULL);
	cr_assert(eq(int, rig.net->ops.createContext(rig.comm, 0, &rig.ctx), 0));
	cr_assert(eq(int, rig.net->ops.regMr(rig.comm, &mem, keys[0], &rig.mr), 0));
	memcpy(keys[1], keys[0], sizeof(keys[0]));
	cr_assert(eq(int, rig.net->ops.shareMr(rig.comm, rig.mr, keys), 0));
	return rig;
}

static void rig_close(struct rig *rig)
{
	cr_expect(eq(int, rig->net->ops.deregMr(rig->comm, rig->mr), 0));
	cr_expect(eq(int, rig->net->ops.destroyContext(rig->ctx), 0));
	cr_expect(eq(int, rig->net->ops.closeListen(rig->listener), 0));
	cr_expect(eq(int, rig->net->ops.closeComm(rig->comm), 0));
	ep_net_close(rig->net);
	cr_expect(eq(int, fake.open, 0));
	cr_expect(eq(int, fake.mrs, 0));
	cr_expect(eq(str, fake.wrong, (char *)""));
}

static int put(struct rig *rig, int peer, uint32_t flags, uint64_t size, void **request)
{
	ncclEpNetPut_v1_t p = { .peer = peer, .flags = flags, .srcMr = rig->mr, .dstMr = rig->mr, .size = size };

	return rig->net->hot.iput(rig->ctx, &p, request);
}

static int done(struct rig *rig, void *request, int *rc)
{
	int ended;

	*rc = rig->net->hot.test(rig->ctx, request, &ended);
	return ended;
}

static const uint32_t more = NCCL_EP_NET_QUIET | NCCL_EP_NET_MORE;

/* The last put of a burst is signaled, and the put that covers them waits for every rail. */
Test(net_rails, bursts, .init = setup)
{
	struct rig rig = rig_open("devices=a0:1+a2:1");
	void *request;
	int first, rc;

	for (int i = 0; i < 5; i++) { /* 10000 each: the fourth is past the burst */
		cr_assert(eq(int, put(&rig, 1, more, 10000, &request), 0));
		cr_assert(eq(ptr, request, NCCL_EP_NET_QUIET_REQUEST));
	}
	cr_assert(eq(int, put(&rig, 1, NCCL_EP_NET_IMM, 10000, &request), 0));
	cr_assert(eq(int, fake.count, 6));
	first = fake.given[0].dev;
	for (int i = 0; i < 6; i++) {
		bool ends = i == 3 || i == 5;

		cr_expect(eq(int, fake.given[i].dev, i < 4 ? first : 2 - first), "put %d", i);
		cr_expect(eq(u32, fake.given[i].put.flags, ends ? (i == 5 ? NCCL_EP_NET_IMM : 0) : more), "put %d", i);
	}
	cr_expect(eq(int, done(&rig, request, &rc), 0));
	fake.given[5].done = true;
	cr_expect(eq(int, done(&rig, request, &rc), 0));
	fake.given[3].done = true;
	cr_expect(eq(int, done(&rig, request, &rc), 1));
	cr_expect(eq(int, rc, 0));
	/* The next put waits only for itself, and uses the next rail. */
	cr_assert(eq(int, put(&rig, 1, 0, 8, &request), 0));
	cr_expect(eq(int, fake.given[6].dev, first));
	fake.given[6].done = true;
	cr_expect(eq(int, done(&rig, request, &rc), 1));
	rig_close(&rig);
}

Test(net_rails, peers_have_bursts_of_their_own, .init = setup)
{
	struct rig rig = rig_open("devices=0+1");
	void *covers, *other;
	int rc;

	cr_assert(eq(int, put(&rig, 0, more, 64, &other), 0));
	cr_assert(eq(int, put(&rig, 1, 0, 64, &covers), 0));
	fake.given[1].done = true;
	cr_expect(eq(int, done(&rig, covers, &rc), 1));
	cr_assert(eq(int, put(&rig, 0, 0, 64, &covers), 0));
	cr_expect(eq(int, fake.given[2].dev, fake.given[0].dev));
	fake.given[2].done = true;
	cr_expect(eq(int, done(&rig, covers, &rc), 1));
	rig_close(&rig);
}

Test(net_rails, no_room, .init = setup)
{
	struct rig rig = rig_open("devices=0+1+2");
	void *request;
	int first;

	cr_assert(eq(int, put(&rig, 1, more, 64, &request), 0));
	first = fake.given[0].dev;
	fake.full[first] = true; /* quiet puts must be covered on their own rail */
	cr_assert(eq(int, put(&rig, 1, 0, 64, &request), 0));
	cr_expect(eq(ptr, request, NULL));
	fake.full[first] = false;
	cr_assert(eq(int, put(&rig, 1, 0, 64, &request), 0));
	cr_expect(eq(int, fake.given[1].dev, first));
	for (int k = 0; k < DEVICES; k++)
		fake.full[k] = k != first;
	for (int i = 2; i < 5; i++) { /* at the start of a burst any rail may be used */
		cr_assert(eq(int, put(&rig, 1, 0, 64, &request), 0));
		cr_expect(eq(int, fake.given[i].dev, first));
	}
	fake.full[first] = true;
	cr_assert(eq(int, put(&rig, 1, 0, 64, &request), 0));
	cr_expect(eq(ptr, request, NULL));
	cr_expect(eq(int, fake.count, 5));
	rig_close(&rig);
}

/* A peer that is lost on one rail is lost; puts to others continue. */
Test(net_rails, lost, .init = setup)
{
	struct rig rig = rig_open("devices=0+1");
	const char *why = "";
	void *request;
	int rc = 0;

	cr_assert(eq(int, put(&rig, 1, 0, 8, &request), 0));
	fake.given[0].done = true;
	fake.given[0].rc = -EP_EREMOTE;
	cr_expect(eq(int, done(&rig, request, &rc), 1));
	cr_expect(eq(int, rc, -EP_EREMOTE));
	for (int i = 0; i < 4; i++)
		cr_expect(eq(int, put(&rig, 1, 0, 8, &request), -EP_EREMOTE));
	cr_expect(eq(int, fake.count, 1));
	cr_expect(eq(int, put(&rig, 0, 0, 8, &request), 0));
	fake.lost = 1;
	cr_expect(eq(int, rig.net->ops.queryLastError(rig.comm, 1, &why), -EP_EREMOTE));
	cr_expect(eq(str, (char *)why, (char *)"fake: rank 1 is lost"));
	cr_expect(eq(int, rig.net->ops.queryLastError(rig.comm, 0, &why), 0));
	rig_close(&rig);
}

/* The result of a quiet put is reported by the request that covers it; the next put, on the other rail, fails. */
Test(net_rails, quiet_failures, .init = setup)
{
	struct rig rig = rig_open("devices=0+1");
	void *request;
	int rc = 0;

	cr_assert(eq(int, put(&rig, 1, NCCL_EP_NET_QUIET, 8, &request), 0));
	cr_assert(eq(int, put(&rig, 1, NCCL_EP_NET_QUIET, 8, &request), 0));
	cr_assert(eq(int, put(&rig, 1, 0, 8, &request), 0));
	fake.given[0].done = fake.given[1].done = fake.given[2].done = true;
	fake.given[0].rc = -EIO;
	cr_expect(eq(int, done(&rig, request, &rc), 1));
	cr_expect(eq(int, rc, -EIO));
	cr_expect(eq(int, put(&rig, 1, 0, 8, &request), -EIO));
	cr_expect(eq(int, fake.count, 3));
	rig_close(&rig);
}

/* If it is known before there is such a request, the put that would cover it is refused. */
Test(net_rails, quiet_failures_early, .init = setup)
{
	struct rig rig = rig_open("devices=0+1");
	void *request;

	cr_assert(eq(int, put(&rig, 1, NCCL_EP_NET_QUIET, 8, &request), 0));
	fake.given[0].done = true;
	fake.given[0].rc = -EIO;
	cr_assert(eq(int, put(&rig, 1, NCCL_EP_NET_QUIET, 8, &request), 0));
	cr_expect(eq(int, put(&rig, 1, 0, 8, &request), -EIO));
	cr_expect(eq(int, fake.count, 2));
	cr_expect(eq(int, put(&rig, 0, 0, 8, &request), 0)); /* another peer */
	rig_close(&rig);
}

Test(net_rails, flush_of_every_rail, .init = setup)
{
	struct rig rig = rig_open("devices=0+1");
	void *request;
	int rc;

	fake.full[1] = true;
	cr_assert(eq(int, rig.net->hot.iflush(rig.ctx, rig.mr, &request), 0));
	cr_assert(request != NULL);
	cr_expect(eq(int, fake.count, 1));
	fake.given[0].done = true;
	cr_expect(eq(int, done(&rig, request, &rc), 0));
	fake.full[1] = false;
	cr_expect(eq(int, done(&rig, request, &rc), 0));
	cr_expect(fake.count == 2 && fake.given[1].flush && fake.given[1].dev == 1);
	fake.given[1].done = true;
	cr_expect(eq(int, done(&rig, request, &rc), 1));
	rig_close(&rig);
}

/* All immediates are delivered, whatever max is, and no rail waits until another is empty. */
Test(net_rails, immediates, .init = setup)
{
	struct rig rig = rig_open("devices=0+1+2");
	int seen[DEVICES] = { 0 }, n, total = 0;
	uint32_t imms[4];

	for (int k = 0; k < DEVICES; k++)
		fake.imms[k] = 100;
	for (int turn = 0; turn < 200 && total < 300; turn++) {
		cr_assert(eq(int, rig.net->hot.progress(rig.ctx, imms, 4, &n), 0));
		for (int i = 0; i < n; i++)
			seen[imms[i]]++;
		total += n;
		if (turn == 10)
			cr_expect(seen[0] && seen[1] && seen[2]);
	}
	cr_expect(seen[0] == 100 && seen[1] == 100 && seen[2] == 100);
	cr_expect(eq(int, rig.net->hot.progress(rig.ctx, NULL, 0, &n), 0));
	rig_close(&rig);
}

Test(net_rails, properties, .init = setup)
{
	ncclEpNetProperties_v1_t p;
	struct ep_net *net;
	int count = 0;

	cr_assert(eq(int, net_make("n=2", &net), 0));
	cr_expect(eq(int, net->ops.devices(net->net, &count), 0));
	cr_expect(eq(int, count, DEVICES));
	cr_expect(eq(int, net->ops.getProperties(net->net, 0, &p), 0));
	cr_expect(eq(str, (char *)p.name, (char *)"a0:1+a1:1"));
	cr_expect(eq(int, p.ordered, 0));
	cr_expect(eq(u32, p.memKinds, NCCL_EP_NET_MEM_HOST));
	cr_expect(eq(u32, p.maxInline, 32));
	cr_expect(eq(u32, p.maxContexts, 3));
	cr_expect(eq(u32, p.maxPuts, 200));
	cr_expect(eq(u64, p.lowLatency.maxBytes, 2 * FLOW));
	cr_expect(eq(u32, p.lowLatency.maxPuts, 16));
	cr_expect(eq(int, net->ops.getProperties(net->net, 2, &p), 0));
	cr_expect(eq(str, (char *)p.name, (char *)"a2:1+a0:1"));
	cr_expect(eq(u32, p.lowLatency.maxPuts, 0)); /* one of them has no limit */
	cr_expect(eq(int, net->ops.getProperties(net->net, DEVICES, &p), -EINVAL));
	ep_net_close(net);
}

Test(net_rails, refused, .init = setup)
{
	static const struct {
		const char *options, *says;
	} rows[] = {
		{ "n=0", "at least 1" },
		{ "n=9", "from 0 to 8" },
		{ "devices=a0:1+b", "no device \"b\"" },
		{ "devices=3", "no device \"3\"" },
		{ "rails=2", "no option" },
		{ "devices=0+0+0+0+0+0+0+0+0", "more than 8" },
	};
	struct ep_net *net;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		cr_expect(eq(int, net_make(rows[i].options, &net), -EINVAL), "%s", rows[i].options);
		cr_expect(strstr(ep_last_error(), rows[i].says) != NULL, "%s", ep_last_error());
	}
}

/* Too many rails for a handle, a different number of rails on a peer, malformed handles. */
Test(net_rails, packs, .init = setup)
{
	static uint8_t handles[RANKS][NCCL_EP_NET_HANDLE_SIZE];
	void *listener = NULL, *comm = NULL;
	struct ep_net *net;

	cr_assert(eq(int, net_make("n=6", &net), 0));
	cr_expect(eq(int, net->ops.listen(net->net, 0, RANKS, handles[0], &listener), -EPERM));
	cr_expect(strstr(ep_last_error(), "exceed 512 bytes; use n=5") != NULL, "%s", ep_last_error());
	cr_expect(fake.open == 0 && !listener);
	ep_net_close(net);
	cr_assert(eq(int, net_make("n=3", &net), 0));
	cr_assert(eq(int, net->ops.listen(net->net, 0, RANKS, handles[0], &listener), 0));
	for (int lie = 0; lie < 3; lie++) {
		memcpy(handles[1], handles[0], sizeof(handles[0]));
		handles[1][lie == 0 ? 0 : lie == 1 ? 1 : 3] ^= lie == 2 ? 0x80 : 1; /* magic, count, a length */
		cr_expect(eq(int, net->ops.connect(listener, handles, RANKS, 0, &comm), -EREMOTEIO), "lie %d", lie);
		cr_expect(strstr(ep_last_error(), "rank 1") != NULL, "%s", ep_last_error());
	}
	cr_expect(comm == NULL);
	cr_expect(eq(int, net->ops.closeListen(listener), 0));
	ep_net_close(net);
	cr_expect(eq(int, fake.open, 0));
}

/* An abandoned connect leaves nothing open. */
Test(net_rails, half_connected, .init = setup)
{
	static uint8_t handles[RANKS][NCCL_EP_NET_HANDLE_SIZE];
	void *listener = NULL, *comm = NULL;
	struct ep_net *net;

	cr_assert(eq(int, net_make("devices=0+1+2", &net), 0));
	cr_assert(eq(int, net->ops.listen(net->net, 0, RANKS, handles[0], &listener), 0));
	memcpy(handles[1], handles[0], sizeof(handles[0]));
	fake.connects = 100;
	cr_assert(eq(int, net->ops.connect(listener, handles, RANKS, 0, &comm), 0));
	cr_expect(comm == NULL && fake.open == 5);
	cr_expect(eq(int, net->ops.closeListen(listener), 0));
	cr_expect(eq(int, fake.open, 0));
	ep_net_close(net);
}
