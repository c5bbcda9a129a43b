/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "net_sm.h"
#include "util/clock.h"
#include "util/error.h"

#define STAGE (EP_STAGE_HEAD + 16384u) /* a row of 7168 elements in one piece */
#define HOST_WARPS 14u
#define WAIT_MS 10000

/* One kernel serves the NICs of all ranks: they are threads of this process, each with a net of its own. */
static pthread_mutex_t only_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sm_fabric *only;
static unsigned only_refs;

static void fabric_free(struct sm_fabric *f)
{
	if (f->pinned.host)
		f->dev->ops->pinned_free(f->dev, &f->pinned);
	if (f->state.ptr)
		f->dev->ops->mem_free(f->dev, &f->state);
	if (f->stream)
		f->dev->ops->stream_destroy(f->dev, f->stream);
	if (f->dev)
		f->dev->ops->close(f->dev);
	for (uint32_t i = 0; i < SM_CONTEXTS; i++)
		pthread_mutex_destroy(&f->slot[i].lock);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

static int device_open(struct sm_fabric *f)
{
	enum ep_dev_kind kind = f->config.host ? EP_DEV_HOST : ep_dev_gpu_kind();
	unsigned fit = HOST_WARPS, most;
	int rc = ep_dev_row(kind)->open(0, &f->dev);

	if (rc)
		return rc;
	f->stage = kind == EP_DEV_HOST ? 0 : STAGE;
	if (f->stage)
		fit = (unsigned)(f->dev->shared_max / f->stage);
	most = EP_THREADS_MAX / f->dev->warp;
	f->warps = fit < most ? fit : most;
	if (f->config.warps && f->config.warps < f->warps)
		f->warps = (unsigned)f->config.warps;
	f->grid = (unsigned)f->config.sms;
	if (kind == EP_DEV_HOST && f->grid > f->dev->sms)
		f->grid = f->dev->sms; /* nothing is measured there */
	if (!f->warps || f->grid > f->dev->sms)
		return EP_FAIL(EP_NET, EP_EARG,
			       "sms=%u, but the GPU has %u multiprocessors, with %zu bytes of shared memory each",
			       f->grid, f->dev->sms, f->dev->shared_max);
	return 0;
}

static int fabric_open(struct sm_fabric *f)
{
	struct ep_dev *dev;
	int rc = device_open(f);

	if (rc)
		return rc;
	dev = f->dev;
	if ((rc = dev->ops->stream_create(dev, &f->stream)) ||
	    (rc = dev->ops->mem_alloc(dev, SM_CONTEXTS * sizeof(struct ep_nic_state) + sizeof(struct ep_nic_common),
				      &f->state)) ||
	    (rc = dev->ops->pinned_alloc(dev, sizeof(*f->board) + SM_CONTEXTS * sizeof(struct ep_nic_queue),
					 &f->pinned)))
		return rc;
	f->board = f->pinned.host;
	for (uint32_t i = 0; i < SM_CONTEXTS; i++)
		f->slot[i].queue = (struct ep_nic_queue *)(void *)(f->board + 1) + i;
	return 0;
}

static int fabric_make(const struct sm_config *config)
{
	struct sm_fabric *f = EP_CALLOC(EP_NET, 1, sizeof(*f), "the net sm");
	int rc;

	if (!f)
		return -ENOMEM;
	f->config = *config;
	pthread_mutex_init(&f->lock, NULL);
	for (uint32_t i = 0; i < SM_CONTEXTS; i++)
		pthread_mutex_init(&f->slot[i].lock, NULL);
	if ((rc = fabric_open(f)))
		fabric_free(f);
	else
		only = f;
	return rc;
}

int sm_fabric_get(const struct sm_config *config, struct sm_fabric **out)
{
	int rc = 0;

	pthread_mutex_lock(&only_lock);
	if (!only)
		rc = fabric_make(config);
	else if (memcmp(&only->config, config, sizeof(*config)))
		rc = EP_FAIL(EP_NET, EP_EARG, "sm: another rank of this process has other options: pass the same");
	if (!rc) {
		only_refs++;
		*out = only;
	}
	pthread_mutex_unlock(&only_lock);
	return rc;
}

/* Memory of a kernel that does not end is not freed. */
static void fabric_end(struct sm_fabric *f)
{
	uint64_t puts = 0, late = 0, most = 0;

	for (uint32_t i = 0; i < SM_CONTEXTS; i++) {
		puts += f->slot[i].puts;
		late += f->slot[i].late_ns;
		most = f->slot[i].late_max_ns > most ? f->slot[i].late_max_ns : most;
	}
	__atomic_store_n(&f->board->quit, f->launched, __ATOMIC_RELAXED);
	EP_INFO(EP_NET, "sm: %llu puts, %u launches, delivered %llu ns late on average, %llu at most",
		(unsigned long long)puts, f->launched, (unsigned long long)(puts ? late / puts : 0),
		(unsigned long long)most);
	if (!f->dev->ops->sync(f->dev, f->stream, ep_deadline_ms(WAIT_MS)))
		fabric_free(f);
}

void sm_fabric_put(struct sm_fabric *f)
{
	pthread_mutex_lock(&only_lock);
	if (!--only_refs) {
		only = NULL;
		fabric_end(f);
	}
	pthread_mutex_unlock(&only_lock);
}

/* ---- numbers ---- */

int sm_port_get(struct sm_fabric *f, uint32_t *port)
{
	uint32_t i = 0;

	pthread_mutex_lock(&f->lock);
	while (i < EP_NIC_PORTS && f->port_used[i])
		i++;
	if (i < EP_NIC_PORTS) {
		f->port_used[i] = true;
		if (i >= f->wanted_ports)
			__atomic_store_n(&f->wanted_ports, i + 1, __ATOMIC_RELAXED);
		*port = i;
	}
	pthread_mutex_unlock(&f->lock);
	return i < EP_NIC_PORTS ? 0 : EP_FAIL(EP_NET, EP_EUSAGE, "sm: more than %u communicators", EP_NIC_PORTS);
}

void sm_port_put(struct sm_fabric *f, uint32_t port)
{
	pthread_mutex_lock(&f->lock);
	f->port_used[port] = false;
	pthread_mutex_unlock(&f->lock);
}

int sm_slot_get(struct sm_fabric *f, uint32_t *slot)
{
	uint32_t i = 0;

	pthread_mutex_lock(&f->lock);
	while (i < SM_CONTEXTS && f->slot[i].used)
		i++;
	if (i < SM_CONTEXTS) {
		f->slot[i].used = true;
		f->wanted = i < f->wanted ? f->wanted : i + 1;
		*slot = i;
	}
	pthread_mutex_unlock(&f->lock);
	return i < SM_CONTEXTS ? 0 : EP_FAIL(EP_NET, EP_EUSAGE, "sm: more than %u contexts", SM_CONTEXTS);
}

/* ---- the kernel ---- */

static int launch(struct sm_fabric *f)
{
	struct ep_nic_state *state = f->state.ptr;
	struct ep_nic_board *board = f->pinned.dev;
	uint64_t jitter = f->config.unordered ? 1000 + f->config.latency / 2 : 0;
	uint64_t early = jitter / 2 < f->config.latency ? jitter / 2 : f->config.latency;
	struct ep_nic_args args = {
		.queue = (struct ep_nic_queue *)(void *)(board + 1),
		.state = state,
		.common = (struct ep_nic_common *)(void *)(state + SM_CONTEXTS),
		.board = board,
		.latency_ns = f->config.latency - early,
		.jitter_ns = jitter,
		.idle_ns = f->config.idle,
		.ps_per_byte = f->config.rate ? (uint32_t)((8000 + f->config.rate / 2) / f->config.rate) : 0,
		.contexts = f->wanted,
		.ports = f->wanted_ports,
		.number = f->launched + 1,
		.unordered = f->config.unordered != 0,
		.relaxed = f->config.relaxed != 0,
		.stage = (uint32_t)f->stage,
	};
	struct ep_launch l = {
		.kernel = EP_K_nic,
		.grid = f->grid,
		.block = f->warps * f->dev->warp,
		.shared = f->warps * f->stage,
		.args = &args,
		.args_size = sizeof(args),
		.stream = f->stream,
	};
	int rc = f->dev->ops->launch(f->dev, &l);

	if (rc)
		return rc;
	__atomic_store_n(&f->contexts, args.contexts, __ATOMIC_RELAXED);
	__atomic_store_n(&f->ports, args.ports, __ATOMIC_RELAXED);
	__atomic_store_n(&f->launched, args.number, __ATOMIC_RELEASE);
	return 0;
}

bool sm_serves(struct sm_fabric *f, uint32_t slot)
{
	return slot < __atomic_load_n(&f->contexts, __ATOMIC_RELAXED) &&
	       __atomic_load_n(&f->wanted_ports, __ATOMIC_RELAXED) <= __atomic_load_n(&f->ports, __ATOMIC_RELAXED);
}

int sm_kick(struct sm_fabric *f, uint32_t slot)
{
	uint32_t number = __atomic_load_n(&f->launched, __ATOMIC_ACQUIRE);
	bool served = sm_serves(f, slot), ended;
	int rc = 0;

	ended = __atomic_load_n(&f->board->ended, __ATOMIC_ACQUIRE) == number;
	if (!ended && served)
		return 0;
	if (!ended) {
		__atomic_store_n(&f->board->quit, number, __ATOMIC_RELAXED);
		return 0;
	}
	if (pthread_mutex_trylock(&f->lock))
		return 0; /* another context launches it, or a rank connects: the next progress looks again */
	if (f->launched == number)
		rc = launch(f);
	pthread_mutex_unlock(&f->lock);
	return rc;
}

/* ---- the end of a registration or a context ---- */

static int slot_drain(struct sm_fabric *f, uint32_t i)
{
	uint64_t end = ep_deadline_ms(WAIT_MS);
	struct sm_slot *s = &f->slot[i];
	uint32_t posted;
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	posted = s->posted;
	pthread_mutex_unlock(&s->lock);
	while (!rc && (int32_t)(posted - __atomic_load_n(&s->queue->delivered, __ATOMIC_ACQUIRE)) > 0) {
		rc = sm_kick(f, i);
		sched_yield();
		if (!rc && ep_now_ns() > end)
			rc = EP_FAIL(EP_NET, EP_ETIMEOUT,
				     "sm: the kernel does not deliver: too few free SMs on the GPU?");
	}
	return rc;
}

void sm_slot_put(struct sm_fabric *f, uint32_t slot)
{
	slot_drain(f, slot);
	pthread_mutex_lock(&f->lock);
	f->slot[slot].used = false;
	pthread_mutex_unlock(&f->lock);
}

int sm_region_get(struct sm_fabric *f, uint32_t *region, uint64_t *serial)
{
	uint32_t i = 0;

	pthread_mutex_lock(&f->lock);
	while (i < SM_REGIONS && __atomic_load_n(&f->region[i], __ATOMIC_RELAXED))
		i++;
	if (i < SM_REGIONS) {
		*serial = ++f->serial;
		__atomic_store_n(&f->region[i], *serial, __ATOMIC_RELAXED);
		*region = i;
	}
	pthread_mutex_unlock(&f->lock);
	return i < SM_REGIONS ? 0 : EP_FAIL(EP_NET, EP_EUSAGE, "sm: region limit reached: %u", SM_REGIONS);
}

int sm_region_put(struct sm_fabric *f, uint32_t region)
{
	int rc = 0;

	/* A put checks this with its slot's lock held, which slot_drain takes after: it sees 0, or is waited for. */
	__atomic_store_n(&f->region[region], 0, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < SM_CONTEXTS && !rc; i++)
		rc = slot_drain(f, i);
	return rc;
}

/* ---- immediates ---- */

int sm_inbox_add(struct sm_inbox *in, uint32_t value)
{
	int rc = 0;

	pthread_mutex_lock(&in->lock);
	if (in->count == in->room) {
		size_t room = in->room ? 2 * in->room : 64;
		uint32_t *imm = realloc(in->imm, room * sizeof(*imm));

		if (imm) {
			in->imm = imm;
			in->room = room;
		} else {
			rc = -ENOMEM;
		}
	}
	if (!rc)
		in->imm[in->count] = value;
	__atomic_store_n(&in->count, in->count + !rc, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&in->lock);
	return rc;
}

int sm_told_take(struct sm_fabric *f, uint32_t slot, uint32_t port, uint32_t *imms, int max)
{
	struct ep_nic_queue *queue = f->slot[slot].queue;
	uint32_t heard = queue->heard[port];
	int n = 0;

	while (n < max) {
		uint64_t imm = __atomic_load_n(&queue->imm[port][heard % EP_NIC_IMMS], __ATOMIC_ACQUIRE); /* R4 */

		if (imm >> 32 != (uint32_t)(heard + 1))
			break;
		imms[n++] = (uint32_t)imm;
		heard++;
	}
	if (n)
		__atomic_store_n(&queue->heard[port], heard, __ATOMIC_RELEASE);
	return n;
}

void sm_told_forget(struct sm_fabric *f, uint32_t port)
{
	uint32_t imms[EP_NIC_IMMS];

	for (uint32_t i = 0; i < SM_CONTEXTS; i++)
		sm_told_take(f, i, port, imms, EP_NIC_IMMS);
}

int sm_inbox_take(struct sm_inbox *in, uint32_t *imms, int max)
{
	size_t n;

	if (!max || !__atomic_load_n(&in->count, __ATOMIC_ACQUIRE))
		return 0;
	pthread_mutex_lock(&in->lock);
	n = in->count < (size_t)max ? in->count : (size_t)max;
	memcpy(imms, in->imm, n * sizeof(*imms));
	memmove(in->imm, in->imm + n, (in->count - n) * sizeof(*imms));
	__atomic_store_n(&in->count, in->count - n, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&in->lock);
	return (int)n;
}
