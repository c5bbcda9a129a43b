/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several devices of a net used as one: NCCL_EP_NET="rails(verbs):n=2". Puts alternate between them, so the net is
 * unordered, and puts are numbered by their immediate data. Options:
 *   n=N              rails per device (2): device i consists of i and the N - 1 after it, modulo the number of devices
 *   devices=A+B+...  a single device consisting of these, by name or number
 *
 * The handles and keys of all rails are packed into one, each without its trailing zeroes. The alternative, to send all
 * but the first over the first rail, would need memory registered before ranks are connected.
 */
#include "net/rails/rails.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/base/base.h"
#include "net/option.h"
#include "net/table.h"
#include "util/error.h"

#define PACK_MAGIC 0x5b

/* ---- packed handles and keys ---- */

/* PACK_MAGIC, the number of parts, then each part with its length in front (2 bytes, little endian). */
struct pack {
	uint8_t *out;
	size_t size, used;
};

static void pack_begin(struct pack *pack, void *out, size_t size, int n)
{
	memset(out, 0, size);
	*pack = (struct pack){ .out = out, .size = size, .used = 2 };
	pack->out[0] = PACK_MAGIC;
	pack->out[1] = (uint8_t)n;
}

static int pack_add(struct pack *pack, const uint8_t *part, size_t size)
{
	while (size && !part[size - 1])
		size--;
	if (pack->used + 2 + size > pack->size)
		return -ENOSPC;
	pack->out[pack->used] = (uint8_t)(size & 0xff);
	pack->out[pack->used + 1] = (uint8_t)(size >> 8);
	memcpy(pack->out + pack->used + 2, part, size);
	pack->used += 2 + size;
	return 0;
}

/* Unpacks the parts of one rank to `size` bytes each, `stride` bytes apart. */
static int pack_open(const uint8_t *in, size_t size, int n, uint8_t *out, size_t stride)
{
	size_t at = 2, length;

	if (in[0] != PACK_MAGIC || in[1] != n)
		return -EP_EREMOTE;
	for (int i = 0; i < n; i++, out += stride) {
		length = at + 2 <= size ? in[at] | (size_t)in[at + 1] << 8 : size;
		if (length > size || at + 2 + length > size)
			return -EP_EREMOTE;
		memset(out, 0, size);
		memcpy(out, in + at + 2, length);
		at += 2 + length;
	}
	return 0;
}

/* Unpacks those of all ranks to [n][nranks]. Zeroes, of a rank that is not connected to, stay so. */
static int packs_open(const void *packs, size_t size, int n, int nranks, uint8_t **out)
{
	uint8_t *parts = EP_CALLOC(EP_NET, (size_t)n * (size_t)nranks, size, "handles or keys of rails");

	if (!parts)
		return -ENOMEM;
	for (int r = 0; r < nranks; r++)
		if (!ep_base_is_blank((const uint8_t *)packs + (size_t)r * size, size) &&
		    pack_open((const uint8_t *)packs + (size_t)r * size, size, n, parts + (size_t)r * size,
			      (size_t)nranks * size)) {
			free(parts);
			return EP_FAIL(EP_NET, EP_EREMOTE,
				       "rails: rank %d does not use %d rails; set NCCL_EP_NET alike on all ranks", r,
				       n);
		}
	*out = parts;
	return 0;
}

/* ---- devices ---- */

static int device_find(const struct rails_net *net, int count, const char *name, size_t n)
{
	ncclEpNetProperties_v1_t props;
	char *end;
	long number;

	for (int i = 0; i < count; i++)
		if (!net->inner->getProperties(net->net, i, &props) && strlen(props.name) == n &&
		    !memcmp(props.name, name, n))
			return i;
	number = strtol(name, &end, 10);
	return end == name + n && n && number >= 0 && number < count ? (int)number : -1;
}

static int devices_named(struct rails_net *net, int count, const char *names)
{
	struct rails_dev *dev = &net->devs[0];

	net->count = 1;
	net->n = 0;
	for (size_t n; *names; names += n + (names[n] == '+')) {
		int i;

		n = strcspn(names, "+");
		i = device_find(net, count, names, n);
		if (i < 0)
			return EP_FAIL(EP_NET, EP_EARG, "rails: transport %s has no device \"%.*s\"; see ep_info -n",
				       net->inner->name, (int)n, names);
		if (net->n == RAILS_MAX)
			return EP_FAIL(EP_NET, EP_EARG, "rails: more than %d devices", RAILS_MAX);
		dev->inner[net->n++] = i;
	}
	return 0;
}

static void devices_all(struct rails_net *net, int count)
{
	net->count = count;
	for (int i = 0; i < count; i++)
		for (int k = 0; k < net->n; k++)
			net->devs[i].inner[k] = (i + k) % count;
}

static int device_name(struct rails_net *net, struct rails_dev *dev)
{
	ncclEpNetProperties_v1_t props;
	size_t used = 0;

	for (int k = 0; k < net->n; k++) {
		int rc = net->inner->getProperties(net->net, dev->inner[k], &props);

		if (rc)
			return rc;
		if (props.immBits < 32)
			return EP_FAIL(EP_NET, EP_EUSAGE,
				       "rails: %s of transport %s has no immediate data, which rails need to order "
				       "puts",
				       props.name, net->inner->name);
		if (used < sizeof(dev->name))
			used += (size_t)snprintf(dev->name + used, sizeof(dev->name) - used, "%s%s", k ? "+" : "",
						 props.name);
	}
	return 0;
}

static int rails_finalize(void *n)
{
	struct rails_net *net = n;

	free(net->devs);
	free(net);
	return 0;
}

static int rails_init(const ncclEpNetInit_v1_t *args, void **out)
{
	struct rails_net *net = EP_CALLOC(EP_NET, 1, sizeof(*net), "transport rails");
	char names[256] = "";
	uint64_t n = 2;
	int count = 0, rc;
	const struct ep_net_option options[] = {
		{ "n", &n, RAILS_MAX, NULL },
		{ "devices", NULL, sizeof(names), names },
	};

	if (!net)
		return -ENOMEM;
	net->inner = args->inner;
	net->net = args->innerNet;
	rc = ep_net_options("rails", args->options, options, sizeof(options) / sizeof(options[0]));
	rc = rc || n ? rc : EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: rails: n must be at least 1");
	net->n = (int)n;
	rc = rc ? rc : net->inner->devices(net->net, &count);
	net->devs = EP_CALLOC(EP_NET, (size_t)count + 1, sizeof(*net->devs), "devices");
	rc = rc || net->devs ? rc : -ENOMEM;
	if (!rc && names[0])
		rc = devices_named(net, count, names);
	else if (!rc)
		devices_all(net, count);
	for (int i = 0; i < net->count && !rc; i++)
		rc = device_name(net, &net->devs[i]);
	if (rc)
		rails_finalize(net);
	else
		*out = net;
	return rc;
}

static int rails_devices(void *n, int *count)
{
	struct rails_net *net = n;

	*count = net->count;
	return 0;
}

static void flow_add(ncclEpNetFlow_v1_t *to, const ncclEpNetFlow_v1_t *flow)
{
	to->maxBytes = to->maxBytes && flow->maxBytes ? to->maxBytes + flow->maxBytes : 0;
	to->maxPuts = to->maxPuts && flow->maxPuts ? to->maxPuts + flow->maxPuts : 0;
	to->ringPuts = to->ringPuts && flow->ringPuts ? to->ringPuts + flow->ringPuts : 0;
}

#define LEAST(field) (to->field = p->field < to->field ? p->field : to->field)

/* The common capabilities of all rails, and the sum of their limits. */
static void props_join(ncclEpNetProperties_v1_t *to, const ncclEpNetProperties_v1_t *p)
{
	to->memKinds &= p->memKinds;
	to->dmaBuf = to->dmaBuf && p->dmaBuf;
	to->flushes = to->flushes && p->flushes;
	to->forceFlush = to->forceFlush || p->forceFlush;
	to->maxPuts = to->maxPuts && p->maxPuts ? to->maxPuts + p->maxPuts : 0;
	to->speed += p->speed;
	to->numaNode = to->numaNode == p->numaNode ? to->numaNode : -1;
	LEAST(maxInline);
	LEAST(maxContexts);
	LEAST(maxPutSize);
	LEAST(maxRegSize);
	flow_add(&to->lowLatency, &p->lowLatency);
	flow_add(&to->throughput, &p->throughput);
}

static int rails_getProperties(void *n, int dev, ncclEpNetProperties_v1_t *props)
{
	struct rails_net *net = n;
	ncclEpNetProperties_v1_t all, one;
	int rc;

	if (dev < 0 || dev >= net->count)
		return EP_FAIL(EP_NET, EP_EARG, "rails: no device %d; there are %d", dev, net->count);
	rc = net->inner->getProperties(net->net, net->devs[dev].inner[0], &all);
	for (int k = 1; k < net->n && !rc; k++) {
		rc = net->inner->getProperties(net->net, net->devs[dev].inner[k], &one);
		if (!rc)
			props_join(&all, &one);
	}
	if (rc)
		return rc;
	all.name = net->devs[dev].name;
	all.ordered = 0;
	*props = all;
	return 0;
}

/* ---- connections ---- */

static int rails_closeListen(void *l)
{
	struct rails_listener *listener = l;
	const ncclEpNet_v1_t *ops = listener->net->inner;

	for (int k = 0; k < listener->net->n; k++) {
		if (listener->comm[k])
			ops->closeComm(listener->comm[k]);
		if (listener->inner[k])
			ops->closeListen(listener->inner[k]);
	}
	free(listener->handles);
	free(listener);
	return 0;
}

static int rails_listen(void *n, int dev, int nranks, void *handle, void **out)
{
	struct rails_net *net = n;
	uint8_t mine[NCCL_EP_NET_HANDLE_SIZE], packed[NCCL_EP_NET_HANDLE_SIZE];
	struct rails_listener *l;
	struct pack pack;
	int rc = 0;

	if (dev < 0 || dev >= net->count)
		return EP_FAIL(EP_NET, EP_EARG, "rails: no device %d; there are %d", dev, net->count);
	l = EP_CALLOC(EP_NET, 1, sizeof(*l), "a listener");
	if (!l)
		return -ENOMEM;
	l->net = net;
	l->nranks = nranks;
	pack_begin(&pack, packed, sizeof(packed), net->n);
	for (int k = 0; k < net->n && !rc; k++) {
		memset(mine, 0, sizeof(mine));
		rc = net->inner->listen(net->net, net->devs[dev].inner[k], nranks, mine, &l->inner[k]);
		if (!rc && pack_add(&pack, mine, sizeof(mine)))
			rc = EP_FAIL(EP_NET, EP_EUSAGE,
				     "rails: the handles of %d rails of transport %s exceed %zu bytes; use n=%d",
				     net->n, net->inner->name, sizeof(packed), k);
	}
	if (rc) {
		rails_closeListen(l);
		return rc;
	}
	memcpy(handle, packed, sizeof(packed));
	*out = l;
	return 0;
}

static int rails_connect(void *l, const void *handles, int nranks, int rank, void **out)
{
	struct rails_listener *listener = l;
	struct rails_net *net = listener->net;
	struct rails_comm *comm;
	int rc = 0, missing = 0;

	if (nranks != listener->nranks || rank < 0 || rank >= nranks)
		return EP_FAIL(EP_NET, EP_EARG,
			       "rails: connecting as rank %d of %d; the listener has another number of ranks", rank,
			       nranks);
	if (!listener->handles)
		rc = packs_open(handles, NCCL_EP_NET_HANDLE_SIZE, net->n, nranks, &listener->handles);
	for (int k = 0; k < net->n && !rc; k++) {
		if (!listener->comm[k])
			rc = net->inner->connect(listener->inner[k],
						 listener->handles +
							 (size_t)k * (size_t)nranks * NCCL_EP_NET_HANDLE_SIZE,
						 nranks, rank, &listener->comm[k]);
		missing += !listener->comm[k];
	}
	if (rc || missing)
		return rc;
	comm = EP_CALLOC(EP_NET, 1, sizeof(*comm), "a comm");
	if (!comm)
		return -ENOMEM;
	*comm = (struct rails_comm){ .net = net, .rank = rank, .nranks = nranks };
	memcpy(comm->inner, listener->comm, sizeof(comm->inner));
	memset(listener->comm, 0, sizeof(listener->comm));
	*out = comm;
	return 0;
}

static int rails_closeComm(void *c)
{
	struct rails_comm *comm = c;
	int rc = 0, one;

	for (int k = 0; k < comm->net->n; k++) {
		one = comm->net->inner->closeComm(comm->inner[k]);
		rc = rc ? rc : one;
	}
	free(comm);
	return rc;
}

/* ---- contexts ---- */

static int rails_destroyContext(void *c)
{
	struct rails_ctx *ctx = c;
	int rc = 0, one;

	for (int k = 0; k < ctx->n; k++) {
		one = ctx->comm->net->inner->destroyContext(ctx->inner[k]);
		rc = rc ? rc : one;
	}
	for (size_t i = 0; i < ctx->nslabs; i++)
		free(ctx->slabs[i]);
	free(ctx->slabs);
	free(ctx);
	return rc;
}

static int rails_createContext(void *c, int index, void **out)
{
	struct rails_comm *comm = c;
	size_t size = sizeof(struct rails_ctx) + (size_t)comm->nranks * sizeof(struct rails_conn);
	struct rails_ctx *ctx = EP_CALLOC(EP_NET, 1, size, "a context");
	int rc = 0;

	if (!ctx)
		return -ENOMEM;
	ctx->comm = comm;
	ctx->hot = comm->net->inner->hot;
	for (int k = 0; k < comm->net->n && !rc; k++) {
		rc = comm->net->inner->createContext(comm->inner[k], index, &ctx->inner[k]);
		ctx->n += !rc;
	}
	if (rc) {
		rails_destroyContext(ctx);
		return rc;
	}
	/* Staggered: many peers with one put each should use all rails. */
	for (int r = 0; r < comm->nranks; r++) {
		ctx->conns[r].rail = (comm->rank + r) % ctx->n;
		ctx->conns[r].end = &ctx->conns[r].first;
	}
	*out = ctx;
	return 0;
}

/* ---- registrations ---- */

static int rails_deregMr(void *c, void *m)
{
	struct rails_comm *comm = c;
	struct rails_mr *mr = m;
	int rc = 0, one;

	for (int k = 0; k < comm->net->n && mr->inner[k]; k++) {
		one = comm->net->inner->deregMr(comm->inner[k], mr->inner[k]);
		rc = rc ? rc : one;
	}
	free(mr);
	return rc;
}

typedef int (*reg_fn)(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr);

static int mr_make(struct rails_comm *comm, reg_fn reg, const ncclEpNetMem_v1_t *mem, void *key, void **out)
{
	uint8_t mine[NCCL_EP_NET_KEY_SIZE], packed[NCCL_EP_NET_KEY_SIZE];
	struct rails_mr *mr = EP_CALLOC(EP_NET, 1, sizeof(*mr), "a registration");
	struct pack pack;
	int rc = 0;

	if (!mr)
		return -ENOMEM;
	pack_begin(&pack, packed, sizeof(packed), comm->net->n);
	for (int k = 0; k < comm->net->n && !rc; k++) {
		memset(mine, 0, sizeof(mine));
		rc = reg(comm->inner[k], mem, mine, &mr->inner[k]);
		if (!rc && pack_add(&pack, mine, sizeof(mine)))
			rc = EP_FAIL(EP_NET, EP_EUSAGE,
				     "rails: the keys of %d rails of transport %s exceed %zu bytes; use n=%d",
				     comm->net->n, comm->net->inner->name, sizeof(packed), k);
	}
	if (rc) {
		rails_deregMr(comm, mr);
		return rc;
	}
	memcpy(key, packed, sizeof(packed));
	*out = mr;
	return 0;
}

static int rails_regMr(void *c, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	struct rails_comm *comm = c;

	return mr_make(comm, comm->net->inner->regMr, mem, key, mr);
}

static int rails_regMrDmaBuf(void *c, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	struct rails_comm *comm = c;

	return mr_make(comm, comm->net->inner->regMrDmaBuf, mem, key, mr);
}

static int rails_shareMr(void *c, void *m, const void *keys)
{
	struct rails_comm *comm = c;
	struct rails_mr *mr = m;
	uint8_t *parts = NULL;
	int rc = packs_open(keys, NCCL_EP_NET_KEY_SIZE, comm->net->n, comm->nranks, &parts);

	if (rc)
		return rc;
	for (int k = 0; k < comm->net->n && !rc; k++)
		rc = comm->net->inner->shareMr(comm->inner[k], mr->inner[k],
					       parts + (size_t)k * (size_t)comm->nranks * NCCL_EP_NET_KEY_SIZE);
	free(parts);
	return rc;
}

/* A peer that is lost on one rail is lost: puts to it use all of them. */
static int rails_queryLastError(void *c, int peer, const char **message)
{
	struct rails_comm *comm = c;
	int rc = 0;

	for (int k = 0; k < comm->net->n && !rc; k++)
		rc = comm->net->inner->queryLastError(comm->inner[k], peer, message);
	return rc;
}

const ncclEpNet_v1_t ep_net_rails = {
	EP_NET_OPS("rails", rails),
	.devices = rails_devices,
	.regMrDmaBuf = rails_regMrDmaBuf,
	.queryLastError = rails_queryLastError,
};
