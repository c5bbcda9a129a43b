/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random arrival orders against a plain model: the prefix advances when and as far as it must, signals are due once, in
 * order, not before everything preceding them; duplicates are rejected. From any start, also across the wrap-around.
 */
#include <stdlib.h>
#include <string.h>

#include "proxy/order.h"
#include "test/kernels/kernel_check.h"
#include "util/error.h"

#define PUTS 3000

static uint64_t state;

static uint32_t rnd(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((state >> 33) % n);
}

/* One channel: its sender, and the expected state of its receiver. */
struct model {
	bool signal[PUTS], arrived[PUTS];
	uint32_t sent, prefix, due;
	uint32_t open[4096], nopen; /* in flight */
};

static struct ep_order order;
static uint64_t first;

static uint32_t number_of(uint32_t i)
{
	return (uint32_t)(first + i) & ((1u << order.seq_bits) - 1);
}

static int arrive(uint32_t channel, uint32_t i, bool signal)
{
	/* Through the 32-bit immediate. */
	uint32_t imm = ep_order_pack(&order, (struct ep_order_put){ channel, number_of(i), signal });
	struct ep_order_put put = ep_order_unpack(&order, imm);

	CHECK(put.channel == channel && put.seq == number_of(i) && put.signal == signal, "32 bits: %08x", imm);
	return ep_order_arrive(&order, put);
}

/* Those below `upto`. */
static void take_below(struct model *m, uint32_t channel, uint32_t upto)
{
	uint32_t next = m->due, seq;
	uint64_t number = 0;
	bool waits = ep_order_waits(&order, channel, &number);

	while (next < m->prefix && !m->signal[next])
		next++;
	CHECK(waits == (next < m->prefix) && (!waits || number == first + next),
	      "channel %u: the next signal is %llu, not %llu", channel, number + 0ull, first + next + 0ull);
	while (ep_order_due(&order, channel, first + upto, &seq)) {
		while (m->due < upto && !m->signal[m->due])
			m->due++;
		CHECK(m->due < upto && seq == number_of(m->due), "channel %u: signal %u, not %u", channel, seq,
		      number_of(m->due));
		m->due++;
	}
	while (m->due < upto && !m->signal[m->due])
		m->due++;
	CHECK(m->due == upto, "channel %u: signal %u is due and was not reported", channel, m->due);
}

/* In two parts, as where a flush covers the first. */
static void take_due(struct model *m, uint32_t channel)
{
	take_below(m, channel, m->due + rnd(m->prefix - m->due + 1));
	take_below(m, channel, m->prefix);
}

/* A random put in flight arrives. */
static void land(struct model *m, uint32_t channel, uint32_t window)
{
	uint32_t pick, i, before = m->prefix;
	int rc;

	/* The sender keeps a window of puts in flight, from the first that has not arrived. */
	while (m->sent < PUTS && m->sent < m->prefix + window && m->nopen < window && rnd(8))
		m->open[m->nopen++] = m->sent++;
	if (m->nopen == 0)
		return;
	pick = rnd(m->nopen);
	i = m->open[pick];
	m->open[pick] = m->open[--m->nopen];
	m->arrived[i] = true;
	while (m->prefix < PUTS && m->arrived[m->prefix])
		m->prefix++;
	rc = arrive(channel, i, m->signal[i]);
	CHECK(rc == (m->prefix != before), "channel %u: put %u answered %d", channel, i, rc);
	if (rnd(4) == 0) {
		/* A duplicate, before and after the due signals are taken. */
		CHECK(arrive(channel, i, false) == -EALREADY, "put %u twice", i);
		take_due(m, channel);
		CHECK(arrive(channel, i, true) == -EALREADY, "put %u twice", i);
	}
	take_due(m, channel);
	CHECK(order.channel[channel].prefix == first + m->prefix, "prefix");
}

static void run(uint32_t channels, uint32_t window, uint64_t start)
{
	struct model *m = calloc(channels, sizeof(*m));
	uint32_t left = channels;

	first = start;
	CHECK(ep_order_init(&order, channels, window, start) == 0, "%s", ep_last_error());
	for (uint32_t c = 0; c < channels; c++)
		for (uint32_t i = 0; i < PUTS; i++)
			m[c].signal[i] = c % 2 ? rnd(3) == 0 : rnd(100) == 0;
	while (left > 0) {
		uint32_t c = rnd(channels);

		if (m[c].prefix == PUTS)
			continue;
		land(&m[c], c, window);
		left -= m[c].prefix == PUTS;
	}
	for (uint32_t c = 0; c < channels; c++)
		CHECK(m[c].due == PUTS && m[c].nopen == 0, "channel %u ends at %u", c, m[c].due);
	ep_order_free(&order);
	free(m);
}

int main(int argc, char **argv)
{
	static const struct {
		uint32_t channels, window;
	} shape[] = { { 1, 64 }, { 3, 64 }, { 16, 128 }, { 7, 4096 }, { 5, 1024 } };

	state = argc > 1 ? strtoull(argv[1], NULL, 0) : 20;
	setenv("NCCL_EP_DEBUG", "NONE", 1);
	for (int i = 0; i < 5; i++) {
		uint32_t bits;

		CHECK(ep_order_init(&order, shape[i].channels, shape[i].window, 0) == 0, "%s", ep_last_error());
		bits = order.seq_bits;
		ep_order_free(&order);
		run(shape[i].channels, shape[i].window, 0);
		run(shape[i].channels, shape[i].window, (1ull << bits) - PUTS / 2);
		run(shape[i].channels, shape[i].window, (1ull << 33) - PUTS / 2);
		run(shape[i].channels, shape[i].window, 0ull - PUTS / 2);
	}
	return check_result("order_random");
}
