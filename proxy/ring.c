/* SPDX-License-Identifier: Apache-2.0 */
/* A1, R2, R3, A4: the orderings are explained in kernels/gx/ring.h. */
#include "proxy/ring.h"

#include <stdbool.h>

#include "util/error.h"

/* Entries per cache line. The line after next is prefetched while this one is read: the device has just written it, so
 * it is in no CPU cache. */
#define PER_LINE 4
#define AHEAD (2 * PER_LINE)

int ep_ring_init(struct ep_ring *ring, void *pinned, uint32_t entries, uint64_t start)
{
	struct ep_ring r = { .tail = pinned, .entries = entries, .at = start, .credited = start, .done = start };

	if (!pinned || (uintptr_t)pinned % sizeof(*r.tail))
		return EP_FAIL(EP_PROXY, EP_EARG, "ring memory %p is NULL or not aligned to %zu bytes", pinned,
			       sizeof(*r.tail));
	if (entries < EP_CMD_ENTRIES_MIN || entries > EP_CMD_ENTRIES_MAX || entries & (entries - 1))
		return EP_FAIL(EP_PROXY, EP_EARG, "a ring of %u entries: must be a power of two between %u and %u",
			       entries, EP_CMD_ENTRIES_MIN, EP_CMD_ENTRIES_MAX);
	r.entry = (struct ep_cmd *)(r.tail + 1);
	r.shift = (uint32_t)__builtin_ctz(entries);
	r.step = EP_CMD_STEP(entries);
	/* As the previous lap would have left them. */
	for (uint64_t i = 0; i < entries; i++) {
		uint64_t before = ep_cmd_phase(start + i, r.shift) ^ 1;

		r.entry[(start + i) & (entries - 1)] = (struct ep_cmd){ { before, before } };
	}
	*r.tail = (struct ep_cmd_tail){ .credit = start, .done = start };
	*ring = r;
	return 0;
}

struct ep_cmd_ring ep_ring_for_device(const struct ep_ring *ring, void *pinned_dev, struct ep_cmd_head *head)
{
	struct ep_cmd_tail *tail = pinned_dev;

	return (struct ep_cmd_ring){ .entry = (struct ep_cmd *)(tail + 1),
				     .tail = tail,
				     .head = head,
				     .entries = ring->entries,
				     .shift = ring->shift };
}

/* The next command, if both halves have arrived. */
static inline bool ring_look(const struct ep_ring *ring, struct ep_cmd *out)
{
	const struct ep_cmd *e = &ring->entry[ring->at & (ring->entries - 1)];
	uint64_t phase = ep_cmd_phase(ring->at, ring->shift);
	uint64_t a = __atomic_load_n(&e->half[0], __ATOMIC_ACQUIRE); /* A1 */
	uint64_t b = __atomic_load_n(&e->half[1], __ATOMIC_ACQUIRE); /* A1 */

	if ((a & 1) != phase || (b & 1) != phase)
		return false;
	*out = (struct ep_cmd){ { a & ~1ull, b & ~1ull } };
	return true;
}

/* Nothing to pop: not yet pushed (0), or abandoned by its producer. */
static int ring_empty(const struct ep_ring *ring)
{
	/* The numbers of gx_wait_result, which device code owns. */
	static const struct {
		int err;
		const char *text;
	} why[] = {
		[0] = { EP_EINTERNAL, "without a reason" },
		[1] = { EP_ETIMEOUT,
			"at its deadline: the engine did not keep up, or NCCL_EP_TIMEOUT_MS is too short" },
		[2] = { EP_EREMOTE, "because the host aborted it" },
		[3] = { EP_EREMOTE, "because a rank or another producer of this ring failed" },
	};
	uint64_t dead = __atomic_load_n(&ring->tail->dead, __ATOMIC_ACQUIRE); /* A4 */
	struct ep_cmd late;

	if (dead == 0 || ring_look(ring, &late))
		return 0;
	return EP_FAIL(EP_PROXY, why[EP_CMD_DEAD_WHY(dead)].err,
		       "a kernel gave up pushing command %llu %s; %llu commands were popped before",
		       EP_CMD_DEAD_AT(dead) + 0ull, why[EP_CMD_DEAD_WHY(dead)].text, ring->at + 0ull);
}

/* One store per step of entries: producers poll it over PCIe, and every store takes the line away from them. */
static void ring_credit(struct ep_ring *ring)
{
	if (ring->at - ring->credited < ring->step)
		return;
	ring->credited = ring->at;
	__atomic_store_n(&ring->tail->credit, ring->at, __ATOMIC_RELEASE); /* R2 */
}

int ep_ring_pop(struct ep_ring *ring, struct ep_cmd *out, int max)
{
	bool strange = false; /* recorded now: a second read may see a later write */
	int n = 0;

	for (; n < max && ring_look(ring, &out[n]); n++) {
		uint32_t op = ep_cmd_op(&out[n]);

		strange = op == EP_CMD_NONE || op >= EP_CMD_OPS;
		if (strange)
			break;
		if (ring->at % PER_LINE == 0)
			__builtin_prefetch(&ring->entry[(ring->at + AHEAD) & (ring->entries - 1)]);
		ring->at++;
	}
	if (n > 0) {
		ring_credit(ring);
		return n;
	}
	if (strange)
		return EP_FAIL(EP_PROXY, EP_EINTERNAL, "command %llu of a ring: invalid opcode %u", ring->at + 0ull,
			       ep_cmd_op(out));
	return max > 0 ? ring_empty(ring) : 0;
}

int ep_ring_complete(struct ep_ring *ring, uint32_t n)
{
	if (n > ep_ring_pending(ring))
		return EP_FAIL(EP_PROXY, EP_EINTERNAL, "%u completions for %llu commands in flight", n,
			       ep_ring_pending(ring) + 0ull);
	ring->done += n;
	__atomic_store_n(&ring->tail->done, ring->done, __ATOMIC_RELEASE); /* R3 */
	return 0;
}
