/* SPDX-License-Identifier: Apache-2.0 */
#include "perf/ep_perf_wire.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "net/net.h"
#include "util/error.h"
#include "util/rest.h"

#define QUEUE 4096u /* a power of two */
#define COVER 32u   /* one put in this many requests a completion */
#define BATCH 64
#define WAIT_SECONDS 60.0

struct wire_put {
	size_t to, from, bytes;
	int peer;
};

struct wire {
	struct seat *seat;
	struct ep_net *net;
	void *comm, *ctx, *mr;
	uint8_t *mem;
	size_t size, window, staged;
	uint64_t waited;
	pthread_t thread;
	bool running;
	/* R1 pushed, R2 arrived: pair with A1 and A2 of the other thread. */
	_Alignas(64) atomic_ulong pushed;
	_Alignas(64) atomic_ulong popped;
	_Alignas(64) atomic_ulong arrived;
	atomic_bool end, failed;
	struct wire_put queue[QUEUE];
};

/* ---- the thread ---- */

/* State of the thread. */
struct wire_turn {
	unsigned long given;
	uint32_t quiet;
	void *request[BATCH]; /* ring buffer, in the order of the puts */
	uint32_t first, last;
};

static int puts_give(struct wire *w, struct wire_turn *t)
{
	unsigned long pushed = atomic_load_explicit(&w->pushed, memory_order_acquire); /* A1 */
	int n = 0;

	for (; t->given != pushed && n < BATCH && t->last - t->first < BATCH; n++) {
		const struct wire_put *p = &w->queue[t->given % QUEUE];
		bool last = t->given + 1 == pushed || n + 1 == BATCH || t->quiet + 1 == COVER;
		ncclEpNetPut_v1_t put = {
			.peer = p->peer,
			.flags = NCCL_EP_NET_IMM | (last ? 0 : NCCL_EP_NET_QUIET | NCCL_EP_NET_MORE),
			.srcMr = w->mr,
			.dstMr = w->mr,
			.srcOffset = p->from,
			.dstOffset = p->to,
			.size = p->bytes,
		};
		void *request = NULL;

		if (w->net->hot.iput(w->ctx, &put, &request))
			atomic_store(&w->failed, true);
		if (!request)
			break;
		t->quiet = last ? 0 : t->quiet + 1;
		if (last)
			t->request[t->last++ % BATCH] = request;
		t->given++;
	}
	atomic_store_explicit(&w->popped, t->given, memory_order_release);
	return n;
}

static int requests_test(struct wire *w, struct wire_turn *t)
{
	int n = 0, done = 1;

	while (t->first != t->last && done) {
		if (w->net->hot.test(w->ctx, t->request[t->first % BATCH], &done))
			atomic_store(&w->failed, true);
		t->first += done != 0;
		n += done;
	}
	return n;
}

static int imms_take(struct wire *w)
{
	uint32_t imms[BATCH];
	int n = 0;

	if (w->net->hot.progress(w->ctx, imms, BATCH, &n))
		atomic_store(&w->failed, true);
	if (n)
		atomic_fetch_add_explicit(&w->arrived, (unsigned long)n, memory_order_release); /* R2 */
	return n;
}

static void *wire_main(void *arg)
{
	struct wire *w = arg;
	struct wire_turn t = { .given = 0 };

	while (!atomic_load_explicit(&w->end, memory_order_relaxed))
		if (!(imms_take(w) + puts_give(w, &t) + requests_test(w, &t)))
			ep_rest();
	return NULL;
}

/* ---- the rank ---- */

uint8_t *wire_window(const struct wire *w)
{
	return w->mem;
}

void wire_begin(struct wire *w)
{
	w->staged = w->window;
}

uint8_t *wire_stage(struct wire *w, size_t bytes)
{
	uint8_t *at = w->mem + w->staged;

	w->staged += (bytes + 15) & ~(size_t)15;
	return at;
}

void wire_put(struct wire *w, int peer, size_t to, const uint8_t *from, size_t bytes)
{
	unsigned long at = atomic_load_explicit(&w->pushed, memory_order_relaxed);

	while (at - atomic_load_explicit(&w->popped, memory_order_acquire) >= QUEUE && !atomic_load(&w->failed))
		ep_rest();
	w->queue[at % QUEUE] =
		(struct wire_put){ .to = to, .from = (size_t)(from - w->mem), .bytes = bytes, .peer = peer };
	atomic_store_explicit(&w->pushed, at + 1, memory_order_release); /* R1 */
}

int wire_wait(struct wire *w, uint64_t puts)
{
	double end = world_now() + WAIT_SECONDS;

	w->waited += puts;
	for (unsigned spins = 0; atomic_load_explicit(&w->arrived, memory_order_acquire) < w->waited;
	     spins++) { /* A2 */
		if (atomic_load_explicit(&w->failed, memory_order_relaxed))
			return seat_fail(w->seat, "the net failed: %s", ep_last_error());
		if (spins < 64)
			continue;
		ep_rest();
		if (spins % 4096 == 0 && world_now() > end)
			return seat_fail(w->seat, "puts did not arrive within %.0f s", WAIT_SECONDS);
	}
	return 0;
}

/* ---- opening and closing ---- */

static int memory_open(struct wire *w, uint8_t *key)
{
	ncclEpNetMem_v1_t mem = { .size = w->size, .kind = NCCL_EP_NET_MEM_HOST };
	int rc = -1;

	mem.fd = memfd_create("ep_perf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (mem.fd < 0)
		return -1;
	if (!ftruncate(mem.fd, (off_t)w->size) && !fcntl(mem.fd, F_ADD_SEALS, F_SEAL_SHRINK)) {
		mem.ptr = mmap(NULL, w->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, mem.fd, 0);
		w->mem = mem.ptr == MAP_FAILED ? NULL : mem.ptr;
	}
	if (w->mem)
		rc = w->net->ops.regMr(w->comm, &mem, key, &w->mr);
	close(mem.fd);
	return rc;
}

static int net_connect(struct wire *w, uint8_t *all)
{
	uint8_t handle[NCCL_EP_NET_HANDLE_SIZE] = { 0 }, key[NCCL_EP_NET_KEY_SIZE] = { 0 };
	double end = world_now() + WAIT_SECONDS;
	void *listener = NULL;
	int rc = w->net->ops.listen(w->net->net, 0, seat_ranks(w->seat), handle, &listener);

	if (rc || seat_gather(w->seat, handle, sizeof(handle), all))
		return -1;
	while (!rc && !w->comm && world_now() < end)
		rc = w->net->ops.connect(listener, all, seat_ranks(w->seat), seat_rank(w->seat), &w->comm);
	if (rc || !w->comm)
		return -1;
	w->net->ops.closeListen(listener);
	if (w->net->ops.createContext(w->comm, 0, &w->ctx) || memory_open(w, key) ||
	    seat_gather(w->seat, key, sizeof(key), all))
		return -1;
	return w->net->ops.shareMr(w->comm, w->mr, all);
}

int wire_open(struct seat *seat, size_t window, size_t send, struct wire **out)
{
	struct wire *w = aligned_alloc(64, sizeof(*w));
	uint8_t *all = calloc((size_t)seat_ranks(seat), NCCL_EP_NET_HANDLE_SIZE);
	int rc = -1;

	if (!w || !all) {
		free(w);
		free(all);
		return seat_fail(seat, "out of memory");
	}
	memset(w, 0, sizeof(*w));
	w->seat = seat;
	w->window = window;
	w->size = (window + send + 4095) & ~(size_t)4095;
	*out = w;
	if (!ep_net_open(NULL, &w->net))
		rc = net_connect(w, all);
	free(all);
	if (rc)
		return seat_fail(seat, "no net: %s", ep_last_error());
	w->running = !pthread_create(&w->thread, NULL, wire_main, w);
	return w->running ? seat_barrier(seat) : seat_fail(seat, "pthread_create failed");
}

/* After the barrier nobody puts any more; the thread runs until then, since others may need its progress. */
void wire_close(struct wire *w)
{
	if (!w)
		return;
	if (!seat_failed(w->seat))
		seat_barrier(w->seat);
	atomic_store(&w->end, true);
	if (w->running)
		pthread_join(w->thread, NULL);
	if (w->mr)
		w->net->ops.deregMr(w->comm, w->mr);
	if (w->ctx)
		w->net->ops.destroyContext(w->ctx);
	if (w->comm)
		w->net->ops.closeComm(w->comm);
	ep_net_close(w->net);
	if (w->mem)
		munmap(w->mem, w->size);
	free(w);
}
