/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL_EP_NET: names, options and nested nets; invalid specs are refused with a message. */
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
	cr_expect(ge(int, n, 5));
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

static char *list_of(const char *spec)
{
	static char list[EP_NET_SPEC_MAX];

	cr_assert(eq(int, ep_net_list(spec, list), 0));
	return list;
}

Test(net_registry, candidates)
{
	unsetenv("NCCL_EP_NET_PLUGIN");
	unsetenv("NCCL_EP_FABRIC_PROVIDER");
	cr_expect(
		eq(str, list_of("^verbs"), (char *)"loop|fabric:provider=efa|fabric:provider=cxi|fabric:provider=tcp"));
	cr_expect(strstr(list_of(""), "loop|") == list_of(""));
	cr_expect(
		eq(str, list_of("^loop,verbs,fabric:provider=tcp"), (char *)"fabric:provider=efa|fabric:provider=cxi"));
	cr_expect(eq(str, list_of("^verbs,fabric"), (char *)"loop"));
	cr_expect(eq(str, list_of("loop:unordered=1|loop"), (char *)"loop:unordered=1|loop"));
	setenv("NCCL_EP_FABRIC_PROVIDER", "shm", 1);
	cr_expect(eq(str, list_of("^verbs"), (char *)"loop|fabric"));
	setenv("NCCL_EP_NET_PLUGIN", "none,dgram,bare", 1);
	cr_expect(eq(str, list_of("^verbs,bare"), (char *)"dgram|loop|fabric"));
	setenv("NCCL_EP_NET", "^fabric,dgram,verbs", 1);
	cr_expect(eq(str, list_of(NULL), (char *)"bare|loop"));
}

Test(net_registry, one_by_one)
{
	const char *rest = "|rails(a|b):n=2||c:d=e|";
	char one[EP_NET_SPEC_MAX];

	cr_expect(ep_net_next(&rest, one));
	cr_expect(eq(str, one, (char *)"rails(a|b):n=2"));
	cr_expect(ep_net_next(&rest, one));
	cr_expect(eq(str, one, (char *)"c:d=e"));
	cr_expect(not(ep_net_next(&rest, one)));
}

Test(net_registry, the_first_that_opens)
{
	struct ep_net *net;

	cr_assert(eq(int, ep_net_open("nothing|loop:devices=0|faulty(loop)|loop", &net), 0));
	cr_expect(eq(str, net->name, (char *)"faulty"));
	ep_net_close(net);
	cr_expect(eq(int, open_rc("nothing|loop:devices=0"), -ENODEV));
	cr_expect(strstr(ep_last_error(), "loop has no device") != NULL);
	cr_expect(eq(int, open_rc("||"), -EINVAL));
}

Test(net_registry, of_one_host)
{
	cr_expect(ep_net_is_local("loop"));
	cr_expect(ep_net_is_local("rails(faulty(loop:unordered=1):seed=1):n=2"));
	cr_expect(not(ep_net_is_local("fabric:provider=tcp")));
	cr_expect(not(ep_net_is_local("faulty(fabric)")));
	cr_expect(not(ep_net_is_local("nothing")));
	cr_expect(not(ep_net_is_local("faulty(")));
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
		{ "nothing", -ENODEV, "no transport \"nothing\"" },
		{ "faulty", -EINVAL, "must wrap another" },
		{ "loop(loop)", -EINVAL, "does not wrap" },
		{ "faulty(nothing)", -ENODEV, "nothing" },
		{ "faulty(loop", -EINVAL, "expected NAME" },
		{ "faulty()", -EINVAL, "expected NAME" },
		{ "rails", -EINVAL, "must wrap another" },
		{ "loop:devices=17", -EINVAL, "needs a number from 0 to 16" },
		{ "^loop,verbs,fabric", -ENODEV, "excludes every transport" },
		{ "faulty(loop)x", -EINVAL, "expected NAME" },
		{ ":unordered=1", -EINVAL, "expected NAME" },
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
