/* SPDX-License-Identifier: Apache-2.0 */
/* Which GIDs and NICs verbs chooses: with tables in this file, and with a real device where there is one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "net/net.h"
#include "net/verbs/verbs.h"
#include "test/kernels/kernel_check.h"
#include "util/error.h"

/* A port with one address per family: v1 and v2 entries of each. */
static const uint8_t local[] = { 0xfe, 0x80, [15] = 1 }, ipv6[16] = { 0xfd, 0x11, [15] = 1 },
		     ipv4[16] = { [10] = 0xff, 0xff, 10, 11, 0, 1 };

static struct ib_gid_entry entry(uint32_t index, const uint8_t *gid, uint32_t type)
{
	struct ib_gid_entry e = { .index = index, .type = type };

	memcpy(e.gid.raw, gid, sizeof(e.gid.raw));
	return e;
}

static void picks(void)
{
	uint8_t link[16] = { 0 };

	memcpy(link, local, sizeof(local));
	const struct ib_gid_entry all[] = {
		entry(0, link, IB_GID_ROCE_V1), entry(1, link, IB_GID_ROCE_V2), entry(2, ipv6, IB_GID_ROCE_V1),
		entry(3, ipv6, IB_GID_ROCE_V2), entry(4, ipv4, IB_GID_ROCE_V1), entry(5, ipv4, IB_GID_ROCE_V2),
		entry(6, ipv4, IB_GID_ROCE_V2),
	};
	static const struct {
		struct vb_gid_wish wish;
		int entries, rc, index;
	} cells[] = {
		{ { .roce = true, .index = -1 }, 7, 0, 5 },
		{ { .roce = true, .index = -1 }, 5, 0, 3 },
		{ { .roce = true, .index = -1 }, 3, 0, 1 },
		{ { .roce = true, .index = -1 }, 1, 0, 0 },
		{ { .roce = true, .v2_only = true, .index = -1 }, 1, -ENOENT, 0 },
		{ { .roce = true, .family = AF_INET6, .index = -1 }, 7, 0, 3 },
		{ { .roce = true, .family = AF_INET, .index = -1 }, 4, -ENOENT, 0 },
		{ { .roce = true, .index = 6 }, 7, 0, 6 },
		{ { .roce = true, .index = 4 }, 7, 0, 4 },
		{ { .roce = true, .v2_only = true, .index = 4 }, 7, -EP_EARG, 0 },
		{ { .roce = true, .family = AF_INET6, .index = 5 }, 7, 0, 5 },
		{ { .roce = true, .index = 9 }, 7, -EP_EARG, 0 },
		{ { .roce = true, .index = -1 }, 0, -ENOENT, 0 },
		{ { .index = -1 }, 3, 0, 0 },
	};

	for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
		struct vb_gid_choice got = { .index = -1 };
		int rc = vb_gid_pick(all, cells[i].entries, &cells[i].wish, &got);

		CHECK(rc == cells[i].rc, "cell %zu: %d", i, rc);
		CHECK(rc || got.index == cells[i].index, "cell %zu: GID %d (%s)", i, got.index, got.why);
		CHECK(rc || got.why[0], "cell %zu has no reason", i);
		CHECK(rc != -EP_EARG || strstr(ep_last_error(), "5: 10.11.0.1 RoCE v2"), "%s", ep_last_error());
	}
}

static void names(void)
{
	static const struct {
		const char *filter, *name;
		int port;
		bool allowed;
	} cells[] = {
		{ "", "mlx5_0", 1, true },	     { "mlx5", "mlx5_0", 1, true },
		{ "mlx5", "bnxt_re0", 1, false },    { "bnxt,mlx5_1", "mlx5_10", 1, true },
		{ "=mlx5_1", "mlx5_10", 1, false },  { "=mlx5_1", "mlx5_1", 2, true },
		{ "mlx5_1:1", "mlx5_1", 2, false },  { "mlx5_1:2", "mlx5_1", 2, true },
		{ "^mlx5_1", "mlx5_10", 1, false },  { "^=mlx5_1", "mlx5_10", 1, true },
		{ "^=mlx5_1:2", "mlx5_1", 1, true }, { "^mlx5_0,mlx5_1", "mlx5_1", 1, false },
		{ ",", "mlx5_0", 1, false },
	};

	for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
		CHECK(vb_name_allowed(cells[i].filter, cells[i].name, cells[i].port) == cells[i].allowed, "%s: %s:%d",
		      cells[i].filter, cells[i].name, cells[i].port);
}

/* Every name of a driver finds its row; a part of a name does not. */
static void profiles(void)
{
	const struct ep_verbs_profile *p;
	int n = 0;

	for (; (p = ep_verbs_profile(n)); n++)
		CHECK(p->family && !p->driver == !ep_verbs_profile(n + 1), "row %d", n);
	CHECK(n >= 7 && !ep_verbs_profile(-1), "%d rows", n);
	CHECK(ep_verbs_profile_of("bnxt_en") == ep_verbs_profile_of("bnxt_re"), "two rows");
	CHECK(ep_verbs_profile_of("bnxt_re")->lowLatency.maxBytes == 1536 << 10, "1.5 MiB");
	CHECK(ep_verbs_profile_of("ionic")->throughput.maxPuts == 32, "32 puts");
	CHECK(ep_verbs_profile_of("efa")->refused, "efa has no queue pairs of this kind");
	CHECK(!ep_verbs_profile_of("mlx5")->driver && !ep_verbs_profile_of("")->driver, "no driver's name");
}

static int open_with(const char *spec, const char *variable, const char *value)
{
	struct ep_net *net = NULL;
	int rc;

	if (variable)
		setenv(variable, value, 1);
	ep_last_error_set("");
	rc = ep_net_open(spec, &net);
	if (!rc)
		ep_net_close(net);
	if (variable)
		unsetenv(variable);
	return rc;
}

/* A real table: index 200 is empty everywhere; no NIC is named none. */
static void device(void)
{
	CHECK(open_with("verbs:gid=200", NULL, NULL) == -EP_EARG, "%s", ep_last_error());
	CHECK(strstr(ep_last_error(), "the table has") && strstr(ep_last_error(), "RoCE v2"), "%s", ep_last_error());
	CHECK(open_with("verbs", "NCCL_IB_GID_INDEX", "201") == -EP_EARG, "%s", ep_last_error());
	CHECK(open_with("verbs", "NCCL_EP_IB_HCA", "=none") == -ENODEV, "%s", ep_last_error());
	CHECK(strstr(ep_last_error(), "NCCL_EP_IB_HCA==none"), "%s", ep_last_error());
	CHECK(open_with("verbs", "NCCL_EP_IB_ADDR_FAMILY", "AF_INET6") == 0, "%s", ep_last_error());
	CHECK(open_with("verbs", "NCCL_EP_IB_ADDR_FAMILY", "inet") == -EP_EARG, "%s", ep_last_error());
	CHECK(open_with("verbs:profile=nobody", NULL, NULL) == -EP_EARG && strstr(ep_last_error(), "bnxt_re"), "%s",
	      ep_last_error());
	CHECK(open_with("verbs:profile=efa", NULL, NULL) == -ENODEV && strstr(ep_last_error(), "NCCL_EP_NET=fabric"),
	      "%s", ep_last_error());
}

int main(void)
{
	struct ep_net *net;

	picks();
	names();
	profiles();
	if (ep_net_open("verbs", &net)) {
		printf("no device: tables only (%s)\n", ep_last_error());
	} else {
		ep_net_close(net);
		device();
	}
	return check_result("verbs_gid");
}
