/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/link/nic.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proxy/cpus.h"
#include "util/error.h"
#include "util/param.h"

#define NUMA_NODES 64
_Static_assert(EP_NIC_PLACE >= PATH_MAX, "realpath needs it");

/* ---- locations ---- */

static bool file_read(const char *path, char *out, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return false;
	out[n] = 0;
	return true;
}

static int numa_of(const char *path)
{
	char file[EP_NIC_PLACE + 16], text[16];

	snprintf(file, sizeof(file), "%s/numa_node", path);
	return file_read(file, text, sizeof(text)) ? atoi(text) : -1;
}

/* The NUMA node of all CPUs of this process; -1: they span several, or the machine has one node only. */
static int numa_of_cpus(void)
{
	char file[64], list[1024];
	struct ep_cpus may, node, both;
	int count;

	memset(&may, 0, sizeof(may));
	if (access("/sys/devices/system/node/node1", F_OK) || sched_getaffinity(0, sizeof(may), may.set))
		return -1;
	count = CPU_COUNT_S(sizeof(may), may.set);
	for (int i = 0; i < NUMA_NODES; i++) {
		snprintf(file, sizeof(file), "/sys/devices/system/node/node%d/cpulist", i);
		if (!file_read(file, list, sizeof(list)) || list[0] == '\n' || ep_cpus_parse(list, &node))
			continue;
		CPU_AND_S(sizeof(both), both.set, may.set, node.set);
		if (CPU_COUNT_S(sizeof(both), both.set) == count)
			return i;
	}
	return -1;
}

void ep_nic_place(const char *name, const char *pci, struct ep_nic_place *out)
{
	*out = (struct ep_nic_place){ .numa = -1 };
	snprintf(out->name, sizeof(out->name), "%s", name);
	if (!pci[0])
		out->numa = numa_of_cpus();
	else if (realpath(pci, out->path))
		out->numa = numa_of(out->path);
	else
		out->path[0] = 0;
}

/* Leading path components in common. */
static int shared_steps(const char *a, const char *b)
{
	int steps = 0;

	for (; *a && *a == *b; a++, b++)
		steps += *a == '/';
	/* The last one counts only where both names end. */
	return (*a == 0 || *a == '/') && (*b == 0 || *b == '/') ? steps : steps - 1;
}

/* Below the same PCIe root the common switches count, else only the NUMA node. */
int ep_nic_nearness(const struct ep_nic_place *place, const char *path)
{
	static const int above = 2; /* "/sys/devices" is common to all */
	char real[EP_NIC_PLACE];
	int steps;

	if (!path)
		return -1;
	if (!realpath(path, real))
		snprintf(real, sizeof(real), "%s", path);
	steps = place->path[0] ? shared_steps(place->path, real) : 0;
	if (steps > above)
		return steps;
	return place->numa >= 0 && numa_of(real) == place->numa;
}

/* ---- candidates ---- */

static uint64_t mark_of(const char *name)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 0x100000001b3ull;
	return h;
}

static void nic_add(struct ep_nics *nics, int dev, const char *name)
{
	struct ep_nic_card *card = &nics->card;

	if (card->count == EP_NICS)
		return;
	nics->dev[card->count] = dev;
	card->mark[card->count++] = mark_of(name);
}

/* The name, with or without its port: "mlx5_0" matches "mlx5_0:1". */
static bool is_named(const char *name, const char *wish, size_t n)
{
	return strlen(name) >= n && !memcmp(name, wish, n) && (!name[n] || name[n] == ':');
}

static int nics_named(const struct ep_net *net, int count, const char *wishes, struct ep_nics *out)
{
	ncclEpNetProperties_v1_t props;
	char there[256] = "";
	size_t used = 0;
	int rc;

	for (size_t n; *wishes; wishes += n + (wishes[n] == ',')) {
		n = strcspn(wishes, ",");
		for (int i = 0; i < count; i++) {
			rc = net->ops.getProperties(net->net, i, &props);
			if (rc)
				return rc;
			if (n && is_named(props.name, wishes, n))
				nic_add(out, i, props.name);
		}
	}
	if (out->card.count) {
		snprintf(out->why, sizeof(out->why), "named by NCCL_EP_NET_DEVICE");
		return 0;
	}
	for (int i = 0; i < count && used < sizeof(there); i++)
		if (!net->ops.getProperties(net->net, i, &props))
			used += (size_t)snprintf(there + used, sizeof(there) - used, " %s", props.name);
	/* INFO: another net may have it. */
	snprintf(out->why, sizeof(out->why), "NCCL_EP_NET_DEVICE=%.60s: net %.40s has no such device, only%.80s",
		 ep_param_str(EP_P_NET_DEVICE), net->name, there);
	EP_INFO(EP_GROUP, "%s", out->why);
	ep_last_error_set(out->why);
	return -ENODEV;
}

static int nics_nearest(const struct ep_net *net, int count, const struct ep_nic_place *place, struct ep_nics *out)
{
	ncclEpNetProperties_v1_t props;
	int best = -2, one, rc;

	for (int i = 0; i < count; i++) {
		rc = net->ops.getProperties(net->net, i, &props);
		if (rc)
			return rc;
		one = ep_nic_nearness(place, props.pciPath);
		if (one < best || (one == best && best < 0)) /* devices of unknown location: the first */
			continue;
		if (one > best)
			out->card.count = 0;
		best = one;
		nic_add(out, i, props.name);
	}
	out->card.placed = best >= 0;
	if (count == 1)
		snprintf(out->why, sizeof(out->why), "the only one");
	else if (best < 0)
		snprintf(out->why, sizeof(out->why), "the first of %d: their location is unknown", count);
	else
		snprintf(out->why, sizeof(out->why), "%d of %d are nearest to %s", out->card.count, count, place->name);
	return 0;
}

int ep_nics_find(const struct ep_net *net, const struct ep_nic_place *place, struct ep_nics *out)
{
	const char *wishes = ep_param_str(EP_P_NET_DEVICE);
	int count = 0, rc = net->ops.devices(net->net, &count);

	*out = (struct ep_nics){ .card.rails = (int32_t)ep_param_int(EP_P_RAILS) };
	if (!rc && *wishes) {
		out->card.placed = 1;
		rc = nics_named(net, count, wishes, out);
	} else if (!rc) {
		rc = nics_nearest(net, count, place, out);
	}
	if (!strcmp(net->name, "rails")) /* it combines several devices already */
		out->card.rails = 1;
	return rc;
}

/* ---- choice ---- */

static bool has(const struct ep_nic_card *card, uint64_t mark)
{
	for (int i = 0; i < card->count && i < EP_NICS; i++)
		if (card->mark[i] == mark)
			return true;
	return false;
}

static bool alike(const struct ep_nic_card *a, const struct ep_nic_card *b)
{
	return a->home == b->home && a->count == b->count && !memcmp(a->mark, b->mark, sizeof(a->mark));
}

/* Whether a rank of this host with other candidates may use it. */
static bool is_wanted(const struct ep_nic_card *all, int nranks, const struct ep_nic_card *mine, uint64_t mark)
{
	for (int r = 0; r < nranks; r++)
		if (all[r].home == mine->home && !alike(&all[r], mine) && has(&all[r], mark))
			return true;
	return false;
}

/*
 * Ranks with the same candidates take them in turn, by their order on the host. Without NCCL_EP_RAILS a rank with
 * candidates to spare uses them all, except those that other ranks might use.
 */
void ep_nic_choose(const struct ep_nic_card *all, int nranks, int rank, struct ep_nic_pick *out)
{
	const struct ep_nic_card *mine = &all[rank];
	int count = mine->count > 0 && mine->count <= EP_NICS ? mine->count : 1;
	int index = 0, sharers = 0, most = mine->rails > 0 ? mine->rails : EP_NIC_RAILS;

	for (int r = 0; r < nranks; r++) {
		index += r < rank && alike(&all[r], mine);
		sharers += alike(&all[r], mine);
	}
	*out = (struct ep_nic_pick){ .count = 1, .at = { index % count } };
	out->sharers = (sharers - 1 - index % count) / count;
	if (mine->rails) {
		for (; out->count < most && out->count < count; out->count++)
			out->at[out->count] = (index + out->count) % count;
		return;
	}
	for (int i = index + sharers; mine->placed && i < count && out->count < most; i += sharers)
		if (!is_wanted(all, nranks, mine, mine->mark[i]))
			out->at[out->count++] = i;
}

int ep_nic_rails(const struct ep_nic_card *all, int nranks)
{
	struct ep_nic_pick pick;
	int least = EP_NICS;

	for (int r = 0; r < nranks; r++) {
		ep_nic_choose(all, nranks, r, &pick);
		least = pick.count < least ? pick.count : least;
	}
	return least;
}
