/* SPDX-License-Identifier: Apache-2.0 */
/* What the receiver of an unordered net rejects, without side effects; the narrowest possible sequence. */
#include <stdlib.h>

#include "proxy/order.h"
#include "test/kernels/kernel_check.h"
#include "util/error.h"

static int arrive(struct ep_order *o, uint32_t channel, uint32_t seq, bool signal)
{
	return ep_order_arrive(o, (struct ep_order_put){ channel, seq, signal });
}

static void widths(void)
{
	struct ep_order o = { .channels = 99 };

	CHECK(ep_order_init(&o, 0, 64, 0) == -EP_EARG, "no channels");
	CHECK(ep_order_init(&o, 1, 32, 0) == -EP_EARG, "32 puts");
	CHECK(ep_order_init(&o, 1, 96, 0) == -EP_EARG, "96 puts");
	/* 2^24 channels leave 7 bits: 128 numbers, twice 64. One more channel leaves 6. */
	CHECK(ep_order_init(&o, (1u << 24) + 1, 64, 0) == -EP_EUSAGE, "6 bits for 64 puts");
	CHECK(ep_order_init(&o, 1u << 20, 2048, 0) == -EP_EUSAGE, "11 bits for 2048 puts");
	CHECK(ep_order_init(&o, ~0u, 64, 0) == -EP_EUSAGE, "2^32 - 1 channels");
	CHECK(o.channels == 99, "an output was written by a failure");
	CHECK(ep_order_init(&o, 1, 64, 0) == 0 && o.seq_bits == 31, "one channel needs no bits");
	ep_order_free(&o);
	CHECK(ep_order_init(&o, 2, 64, 0) == 0 && o.seq_bits == 30, "two need one");
	ep_order_free(&o);
	CHECK(ep_order_init(&o, 257, 64, 0) == 0 && o.seq_bits == 22, "257 need nine");
	ep_order_free(&o);
}

/* 2^seq = 2 * window exactly: every number is either in the window or in the past. */
static void narrow(void)
{
	struct ep_order o;
	uint32_t seq;

	CHECK(ep_order_init(&o, 1u << 18, 4096, 0) == 0 && o.seq_bits == 13, "%s", ep_last_error());
	for (uint32_t i = 0; i < 30000; i++) {
		uint32_t n = i & 8191;

		CHECK(arrive(&o, 5, n, i % 5 == 0) == 1, "put %u", i);
		CHECK(arrive(&o, 5, n, true) == -EALREADY, "put %u twice", i);
		if (i % 7 == 0)
			CHECK(arrive(&o, 5, (n + 8192 - 4095) & 8191, true) == -EALREADY, "put %u of the past", i);
		CHECK(ep_order_due(&o, 5, o.channel[5].prefix, &seq) == (i % 5 == 0) && (i % 5 || seq == n),
		      "signal %u", i);
		CHECK(!ep_order_due(&o, 5, o.channel[5].prefix, &seq), "a second signal at %u", i);
	}
	ep_order_free(&o);
}

static void refused(void)
{
	struct ep_order o;
	uint32_t seq = 12345;

	CHECK(ep_order_init(&o, 2, 64, 10) == 0, "%s", ep_last_error());
	CHECK(arrive(&o, 2, 10, false) == -EP_EARG, "an invalid channel");
	CHECK(arrive(&o, 0, 9, true) == -EALREADY, "the past");
	CHECK(arrive(&o, 0, 10 + 64, true) == -ERANGE, "just outside");
	CHECK(arrive(&o, 0, 1u << 29, true) == -ERANGE, "far outside");
	CHECK(arrive(&o, 0, 10 + 63, true) == 0, "just inside");
	CHECK(arrive(&o, 0, 10 + 63, false) == -EALREADY, "twice");
	CHECK(!ep_order_due(&o, 0, o.channel[0].prefix, &seq) && seq == 12345, "nothing is due");
	/* The window advances only when signals are taken. */
	for (uint32_t i = 10; i < 10 + 63; i++)
		CHECK(arrive(&o, 0, i, false) == 1, "put %u", i);
	CHECK(arrive(&o, 0, 10 + 64, false) == -ERANGE, "the window moved by itself");
	CHECK(ep_order_due(&o, 0, o.channel[0].prefix, &seq) && seq == 73, "the signal at the end");
	CHECK(!ep_order_due(&o, 0, o.channel[0].prefix, &seq), "no other");
	CHECK(arrive(&o, 0, 10 + 64, false) == 1, "now it is inside");
	CHECK(arrive(&o, 0, 10 + 63, false) == -EALREADY, "and that is the past");
	CHECK(arrive(&o, 1, 10, false) == 1, "channels are independent");
	ep_order_free(&o);
}

int main(void)
{
	setenv("NCCL_EP_DEBUG", "NONE", 1);
	widths();
	narrow();
	refused();
	return check_result("order_refuse");
}
