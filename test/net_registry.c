/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL_EP_NET: names, options and nets in nets; what is none is refused with a sentence. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "net/net.h"
#include "util/error.h"

TestSuite(net_registry, .timeout = 30);

static int open_rc(const char *spec)
{
	struct ep_net *net = NULL;
	int rc = ep_net_open(spec, &net);

	cr_expect(eq(int, !net, rc != 0));
	ep_net_close(net);
	return rc;
}

static ncclEpNetProperties_v1_t props_of(const char *spec)
{
	ncclEpNetProperties_v1_t props = { .ordered = -1 };
	struct ep_net *net;

	cr_assert(eq(int, ep_net_open(spec, &net), 0));
	cr_expect(eq(int, net->ops.getProperties(net->net, 0, &props), 0));
	ep_net_close(net);
	return props;
}

Test(net_registry, names)
{
	int n = 0;

	for (; ep_net_name(n); n++)
		cr_expect(gt(sz, strlen(ep_net_name(n)), 0));
	cr_expect(eq(int, n, 3));
	cr_expect(eq(ptr, (void *)ep_net_name(-1), NULL));
}

Test(net_registry, chosen_by_the_variable)
{
	struct ep_net *net;

	unsetenv("NCCL_EP_NET");
	cr_assert(eq(int, ep_net_open(NULL, &net), 0));
	cr_expect(eq(str, net->name, (char *)"loop"));
	ep_net_close(net);
	setenv("NCCL_EP_NET", "faulty(loop):reorder=2", 1);
	cr_assert(eq(int, ep_net_open(NULL, &net), 0));
	cr_expect(eq(str, net->name, (char *)"faulty"));
	cr_expect(eq(str, net->inner->name, (char *)"loop"));
	ep_net_close(net);
}

Test(net_registry, options)
{
	cr_expect(eq(int, props_of("loop").ordered, 1));
	cr_expect(eq(int, props_of("loop:unordered=1").ordered, 0));
	cr_expect(eq(int, props_of("loop:unordered=0x1,").ordered, 0));
	cr_expect(eq(int, props_of("faulty(loop):delay=4").ordered, 1));
	cr_expect(eq(int, props_of("faulty(loop):reorder=1").ordered, 0));
	cr_expect(eq(int, props_of("faulty(loop:unordered=1)").ordered, 0));
	cr_expect(eq(int, props_of("faulty(faulty(loop):reorder=4):dup=3").ordered, 0));
	cr_expect(eq(u32, props_of("faulty(loop)").maxInline, 64));
	cr_expect(eq(u32, props_of("faulty(loop)").immBits, 32));
}

Test(net_registry, refused)
{
	static const struct {
		const char *spec;
		int rc;
		const char *says;
	} rows[] = {
		{ "nothing", -ENODEV, "no net \"nothing\"" },
		{ "faulty", -EINVAL, "needs the net it wraps" },
		{ "loop(loop)", -EINVAL, "wraps no other" },
		{ "faulty(nothing)", -ENODEV, "nothing" },
		{ "faulty(loop", -EINVAL, "not NAME" },
		{ "faulty()", -EINVAL, "not NAME" },
		{ "faulty(loop)x", -EINVAL, "not NAME" },
		{ ":unordered=1", -EINVAL, "not NAME" },
		{ "loop:order=1", -EINVAL, "no option order" },
		{ "loop:unordered", -EINVAL, "needs a number from 0 to 1" },
		{ "loop:unordered=", -EINVAL, "needs a number" },
		{ "loop:unordered=-1", -EINVAL, "needs a number" },
		{ "loop:unordered=2", -EINVAL, "needs a number" },
		{ "loop:unordered=1x", -EINVAL, "needs a number" },
		{ "faulty(loop):seed=99999999999999999999", -EINVAL, "needs a number" },
		{ "faulty(faulty(faulty(faulty(faulty(loop)))))", -EINVAL, "more than 4" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		cr_expect(eq(int, open_rc(rows[i].spec), rows[i].rc), "%s", rows[i].spec);
		cr_expect(strstr(ep_last_error(), rows[i].says) != NULL, "%s: %s", rows[i].spec, ep_last_error());
	}
}

Test(net_registry, long_names_are_no_trouble)
{
	char spec[4096];

	memset(spec, 'x', sizeof(spec) - 1);
	spec[sizeof(spec) - 1] = 0;
	cr_expect(eq(int, open_rc(spec), -EINVAL));
	memcpy(spec, "loop:", 5);
	cr_expect(eq(int, open_rc(spec), -EINVAL));
	memcpy(spec, "faulty(", 7);
	cr_expect(eq(int, open_rc(spec), -EINVAL));
}
