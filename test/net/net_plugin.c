/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL_EP_NET_PLUGIN: how plugins are found, and which are skipped with a log line. The libraries are in
 * LD_LIBRARY_PATH: dgram of doc/net_plugin, and variants of net_odd.c.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/net.h"
#include "util/error.h"

TestSuite(net_plugin, .timeout = 30);

static char log_path[64];

static void setup(void)
{
	snprintf(log_path, sizeof(log_path), "/tmp/net_plugin.%d.log", (int)getpid());
	setenv("NCCL_EP_DEBUG_FILE", log_path, 1);
	setenv("NCCL_EP_DEBUG", "WARN", 1);
}

static void teardown(void)
{
	unlink(log_path);
}

static bool logged(const char *what)
{
	char text[4096] = "";
	int fd = open(log_path, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	return n > 0 && strstr(text, what);
}

static char *name_of(const char *plugins, const char *spec)
{
	static char name[64];
	struct ep_net *net = NULL;
	int rc;

	setenv("NCCL_EP_NET_PLUGIN", plugins, 1);
	rc = ep_net_open(spec, &net);
	snprintf(name, sizeof(name), "%s", rc ? strerror(-rc) : net->name);
	ep_net_close(net);
	return name;
}

Test(net_plugin, by_short_name, .init = setup, .fini = teardown)
{
	cr_assert(eq(str, name_of("dgram", "dgram"), (char *)"dgram"));
	cr_assert(not(logged("WARN")));
}

Test(net_plugin, by_path, .init = setup, .fini = teardown)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s/libnccl_ep_net-dgram.so", getenv("NET_PLUGINS"));
	cr_assert(eq(str, name_of(path, "dgram"), (char *)"dgram"));
}

Test(net_plugin, external_ones_are_first, .init = setup, .fini = teardown)
{
	cr_assert(eq(str, name_of("dgram", ""), (char *)"dgram"));
	cr_assert(eq(str, name_of("bare,dgram", ""), (char *)"bare"));
	cr_assert(eq(str, name_of("bare,dgram", "dgram"), (char *)"dgram"));
	cr_assert(eq(str, name_of("dgram", "loop"), (char *)"loop"));
}

/* Version 1 of the interface promises them the handles of all ranks, also where one of ours wraps them. */
Test(net_plugin, connects_to_all, .init = setup, .fini = teardown)
{
	static const struct {
		const char *spec;
		int sparse;
	} rows[] = { { "dgram", 0 }, { "faulty(dgram)", 0 }, { "loop", 1 }, { "faulty(rails(loop))", 1 } };

	setenv("NCCL_EP_NET_PLUGIN", "dgram", 1);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ep_net *net = NULL;

		cr_assert(eq(int, ep_net_open(rows[i].spec, &net), 0));
		cr_expect(eq(int, ep_net_sparse(net), rows[i].sparse), "%s", rows[i].spec);
		ep_net_close(net);
	}
}

Test(net_plugin, none, .init = setup, .fini = teardown)
{
	cr_assert(eq(str, name_of("none", ""), (char *)"loop"));
	cr_assert(eq(str, name_of("", ""), (char *)"loop"));
	cr_assert(eq(str, name_of("none", "dgram"), strerror(ENODEV)));
	cr_assert(not(logged("cannot load none")));
}

Test(net_plugin, absent, .init = setup, .fini = teardown)
{
	cr_assert(eq(str, name_of("nowhere", ""), (char *)"loop"));
	cr_assert(logged("cannot load nowhere"));
	cr_assert(logged("libnccl_ep_net-nowhere.so"));
}

Test(net_plugin, wrong_symbol, .init = setup, .fini = teardown)
{
	cr_assert(eq(str, name_of("mute,dgram", ""), (char *)"dgram"));
	cr_assert(logged("mute: no symbol " NCCL_EP_NET_SYMBOL));
}

Test(net_plugin, wrong_version, .init = setup, .fini = teardown)
{
	cr_assert(eq(str, name_of("newer", "newer"), strerror(ENODEV)));
	cr_assert(logged("newer: table version 2"));
}

Test(net_plugin, wrong_size, .init = setup, .fini = teardown)
{
	cr_assert(eq(str, name_of("larger", ""), (char *)"loop"));
	cr_assert(logged("larger: table version 1"));
}

Test(net_plugin, without_devices, .init = setup, .fini = teardown)
{
	cr_assert(eq(str, name_of("empty", ""), (char *)"loop"));
	cr_assert(eq(str, name_of("empty", "empty"), strerror(ENODEV)));
	cr_assert(logged("transport empty has no device"));
}

Test(net_plugin, that_refuses, .init = setup, .fini = teardown)
{
	cr_assert(eq(str, name_of("bare", "bare:!x"), strerror(5)));
	cr_assert(eq(str, (char *)ep_last_error(), (char *)"odd: does not like !x"));
}

/* Missing operations answer -ENOTSUP and write the outputs that are always written. */
Test(net_plugin, stubs, .init = setup, .fini = teardown)
{
	void *request = &log_path, *out = NULL;
	int done = 1, count = 1;
	struct ep_net *net;

	setenv("NCCL_EP_NET_PLUGIN", "bare", 1);
	setenv("NCCL_EP_NET", "bare", 1);
	cr_assert(eq(int, ep_net_open(NULL, &net), 0));
	cr_expect(eq(int, net->ops.getProperties(net->net, 0, NULL), -ENOTSUP));
	cr_expect(eq(int, net->ops.listen(net->net, 0, 1, NULL, &out), -ENOTSUP));
	cr_expect(eq(int, net->ops.connect(NULL, NULL, 1, 0, &out), -ENOTSUP));
	cr_expect(eq(int, net->ops.createContext(NULL, 0, &out), -ENOTSUP));
	cr_expect(eq(int, net->ops.regMr(NULL, NULL, NULL, &out), -ENOTSUP));
	cr_expect(eq(int, net->ops.regMrDmaBuf(NULL, NULL, NULL, &out), -ENOTSUP));
	cr_expect(eq(int, net->ops.shareMr(NULL, NULL, NULL), -ENOTSUP));
	cr_expect(eq(int, net->ops.queryLastError(NULL, 0, NULL), -ENOTSUP));
	cr_expect(eq(int, net->hot.iflush(NULL, NULL, &request), -ENOTSUP));
	cr_expect(eq(int, net->hot.iput(NULL, NULL, &request), -ENOTSUP));
	cr_expect(eq(int, net->hot.test(NULL, NULL, &done), -ENOTSUP));
	cr_expect(eq(int, net->hot.progress(NULL, NULL, 0, &count), -ENOTSUP));
	cr_expect(eq(ptr, request, NULL));
	cr_expect(eq(ptr, out, NULL));
	cr_expect(eq(int, done + count, 0));
	cr_expect(logged("this transport cannot flush"));
	ep_net_close(net);
}
