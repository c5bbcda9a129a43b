/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of an entry of a port's GID table. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "net/base/lib.h"
#include "net/verbs/verbs.h"
#include "util/error.h"
#include "util/param.h"

#define TABLE 256 /* entries read */

static bool gid_is_ipv4(const union ib_gid *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return !memcmp(gid->raw, mapped, sizeof(mapped));
}

static bool gid_is_local(const union ib_gid *gid)
{
	return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static const char *type_name(uint32_t type)
{
	return type == IB_GID_ROCE_V2 ? "RoCE v2" : type == IB_GID_ROCE_V1 ? "RoCE v1" : "InfiniBand";
}

const char *vb_gid_text(const union ib_gid *gid, char *text)
{
	bool v4 = gid_is_ipv4(gid);
	const char *s = inet_ntop(v4 ? AF_INET : AF_INET6, gid->raw + (v4 ? 12 : 0), text, INET6_ADDRSTRLEN);

	return s ? s : "?";
}

/* Higher is better; 0: not usable. */
static int entry_score(const struct ib_gid_entry *e, const struct vb_gid_wish *wish)
{
	bool v4 = gid_is_ipv4(&e->gid);

	if (!wish->roce)
		return e->index == 0 ? 2 : 1;
	if (e->type == IB_GID_IB || (e->type == IB_GID_ROCE_V1 && wish->v2_only))
		return 0;
	if (wish->index < 0 && wish->family && v4 != (wish->family == AF_INET))
		return 0;
	return (e->type == IB_GID_ROCE_V2 ? 4 : 1) + (v4 ? 2 : gid_is_local(&e->gid) ? 0 : 1);
}

static const char *const score_text[] = { "the only one",
					  "RoCE v1; no better entry",
					  "RoCE v1 with an IPv6 address; no RoCE v2 entry",
					  "RoCE v1 with an IPv4 address; no RoCE v2 entry",
					  "RoCE v2, link-local; no routable address",
					  "RoCE v2 with an IPv6 address",
					  "RoCE v2 with an IPv4 address" };

/* The table as text, truncated to the buffer. */
static void table_text(const struct ib_gid_entry *table, int n, char *text, size_t size)
{
	size_t at = 0;
	char gid[INET6_ADDRSTRLEN];

	text[0] = 0;
	for (int i = 0; i < n && at + 1 < size; i++) {
		int k = snprintf(text + at, size - at, "%s%u: %s %s", i ? ", " : "", table[i].index,
				 vb_gid_text(&table[i].gid, gid), type_name(table[i].type));

		at += k > 0 ? (size_t)k : 0;
	}
}

static int index_pick(const struct ib_gid_entry *table, int n, const struct vb_gid_wish *wish,
		      struct vb_gid_choice *out)
{
	char list[320];

	for (int i = 0; i < n; i++) {
		if (table[i].index != (uint32_t)wish->index)
			continue;
		if (!entry_score(&table[i], wish))
			break;
		*out = (struct vb_gid_choice){ .gid = table[i].gid, .index = wish->index, .type = table[i].type };
		snprintf(out->why, sizeof(out->why), "requested (%s)", type_name(table[i].type));
		return 0;
	}
	table_text(table, n, list, sizeof(list));
	return EP_FAIL(EP_NET, EP_EARG,
		       "verbs: GID %d (NCCL_EP_IB_GID_INDEX) is empty or of an unusable type; the table has %s",
		       wish->index, n ? list : "no entries");
}

int vb_gid_pick(const struct ib_gid_entry *table, int n, const struct vb_gid_wish *wish, struct vb_gid_choice *out)
{
	int best = -1, score = 0;

	if (wish->index >= 0)
		return index_pick(table, n, wish, out);
	for (int i = 0; i < n; i++) {
		int s = entry_score(&table[i], wish);

		if (s > score || (s == score && s && table[i].index < table[best].index)) {
			score = s;
			best = i;
		}
	}
	if (best < 0)
		return -ENOENT;
	*out = (struct vb_gid_choice){
		.gid = table[best].gid,
		.index = (int)table[best].index,
		.type = table[best].type,
	};
	snprintf(out->why, sizeof(out->why), "%s", wish->roce ? score_text[score] : "InfiniBand, first entry");
	return 0;
}

/* For libibverbs without ibv_query_gid_ex. */
static uint32_t type_read(const struct vb_dev *dev, int index)
{
	char path[IB_PATH + 64], text[32] = "";
	int fd;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%d/gid_attrs/types/%d", dev->ib_name, dev->port,
		 index);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return dev->roce ? IB_GID_ROCE_V1 : IB_GID_IB;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(fd);
	if (strstr(text, "RoCE v2"))
		return IB_GID_ROCE_V2;
	return dev->roce ? IB_GID_ROCE_V1 : IB_GID_IB;
}

static bool entry_read(struct ib_context *context, const struct vb_dev *dev, int index, struct ib_gid_entry *e)
{
	static const union ib_gid none;

	*e = (struct ib_gid_entry){ .index = (uint32_t)index };
	if (vb_api()->query_gid_ex) {
		if (vb_api()->query_gid_ex(context, dev->port, (uint32_t)index, e, 0, sizeof(*e)))
			return false;
	} else {
		if (vb_api()->query_gid(context, dev->port, index, &e->gid))
			return false;
		e->type = type_read(dev, index);
	}
	return memcmp(&e->gid, &none, sizeof(none)) != 0;
}

static int family_wanted(void)
{
	const char *family = ep_param_str(EP_P_IB_ADDR_FAMILY);

	if (!family[0])
		return 0;
	if (!strcmp(family, "AF_INET"))
		return AF_INET;
	if (!strcmp(family, "AF_INET6"))
		return AF_INET6;
	return -1;
}

int vb_gid_find(struct ib_context *context, struct vb_dev *dev, int index)
{
	struct ib_gid_entry table[TABLE];
	struct vb_gid_wish wish = { .roce = dev->roce, .v2_only = dev->profile->v2_only, .index = index };
	char gid[INET6_ADDRSTRLEN], list[200];
	int n = 0, rc;

	wish.family = family_wanted();
	if (wish.family < 0)
		return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_IB_ADDR_FAMILY must be AF_INET, AF_INET6 or empty");
	for (int i = 0; i < dev->link.gids && n < TABLE; i++)
		n += entry_read(context, dev, i, &table[n]);
	rc = vb_gid_pick(table, n, &wish, &dev->gid);
	if (!rc) {
		EP_INFO(EP_NET, "verbs: %s uses GID %d, %s: %s", dev->name, dev->gid.index,
			vb_gid_text(&dev->gid.gid, gid), dev->gid.why);
	} else if (rc == -ENOENT) {
		table_text(table, n, list, sizeof(list));
		ep_base_note("verbs",
			     "%s is left out: no RoCE v2 GID%s; give its interface an address (ip addr add); the table "
			     "has %s",
			     dev->name, wish.family ? " of that family" : "", n ? list : "no entries");
	}
	return rc;
}
