/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/link/nic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "util/param.h"

/* ---- devices ---- */

static uint64_t mark_of(const char *name)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 0x100000001b3ull;
	return h;
}

const char *ep_nic_layer(uint32_t layer)
{
	static const char *const names[] = { "unknown", "InfiniBand", "Ethernet" };

	return names[layer < sizeof(names) / sizeof(names[0]) ? layer : 0];
}

int ep_nic_devs(const struct ep_net *net, struct ep_nic_dev **out, int *count)
{
	ncclEpNetProperties_v1_t props;
	struct ep_nic_dev *devs;
	int rc;

	*count = 0;
	rc = net->ops.devices(net->net, count);
	if (rc)
		return rc;
	devs = EP_CALLOC(EP_GROUP, (size_t)*count + 1, sizeof(*devs), "devices");
	for (int i = 0; devs && !rc && i < *count; i++) {
		rc = net->ops.getProperties(net->net, i, &props);
		if (rc)
			break;
		ep_spot_read(props.name, props.pciPath ? props.pciPath : "", props.numaNode, &devs[i].place);
		devs[i].speed = props.speed;
		devs[i].layer = props.linkLayer;
	}
	if (rc) {
		free(devs);
		return rc;
	}
	*out = devs;
	return devs ? 0 : -ENOMEM;
}

/* ---- verdicts ---- */

/* The layer with the most bandwidth; of equal ones InfiniBand, which nobody has for anything but a fabric. */
static uint32_t fabric_layer(const struct ep_nic_dev *devs, int count)
{
	uint64_t sum[NCCL_EP_NET_LAYER_ETHERNET + 1] = { 0 };
	uint32_t best = NCCL_EP_NET_LAYER_INFINIBAND;

	for (int i = 0; i < count; i++)
		if (devs[i].layer < sizeof(sum) / sizeof(sum[0]))
			sum[devs[i].layer] += devs[i].speed ? devs[i].speed : 1;
	for (uint32_t l = 0; l < sizeof(sum) / sizeof(sum[0]); l++)
		best = sum[l] > sum[best] ? l : best;
	return best;
}

/* Leaves out front ends. */
static void fabric_judge(struct ep_nic_dev *devs, int count)
{
	uint32_t layer = fabric_layer(devs, count), fastest = 0;

	for (int i = 0; i < count; i++)
		if (devs[i].layer == layer && devs[i].speed > fastest)
			fastest = devs[i].speed;
	for (int i = 0; i < count; i++) {
		struct ep_nic_dev *dev = &devs[i];

		dev->taken = dev->layer == layer && (!dev->speed || dev->speed * 2ull >= fastest);
		if (dev->layer != layer)
			snprintf(dev->why, sizeof(dev->why), "%s, while the fabric of this host is %s",
				 ep_nic_layer(dev->layer), ep_nic_layer(layer));
		else if (!dev->taken)
			snprintf(dev->why, sizeof(dev->why), "%u Gb/s, a front end beside ports of %u Gb/s",
				 dev->speed / 1000, fastest / 1000);
	}
}

/* > 0: a is better for a rank at this place. Sets *by to what decided. */
static int dev_compare(const struct ep_spot *place, const struct ep_nic_dev *a, const struct ep_nic_dev *b,
		       const char **by)
{
	struct ep_near x = ep_spot_near(place, &a->place), y = ep_spot_near(place, &b->place);
	int near = ep_near_compare(x, y);

	*by = !near ? "slower" : x.by_pci != y.by_pci ? "farther by PCIe" : "farther by NUMA node";
	return near ? near : (a->speed > b->speed) - (a->speed < b->speed);
}

int ep_nics_judge(const struct ep_spot *place, struct ep_nic_dev *devs, int count)
{
	const struct ep_nic_dev *best = NULL;
	const char *by;
	int taken = 0;

	fabric_judge(devs, count);
	for (int i = 0; i < count; i++)
		if (devs[i].taken && (!best || dev_compare(place, &devs[i], best, &by) > 0))
			best = &devs[i];
	for (int i = 0; i < count; i++) {
		struct ep_nic_dev *dev = &devs[i];

		if (!dev->taken)
			continue;
		if (dev_compare(place, dev, best, &by) < 0) {
			dev->taken = false;
			snprintf(dev->why, sizeof(dev->why), "%s than %s", by, best->place.name);
		} else if (dev != best && !best->place.path[0]) {
			dev->taken = false;
			snprintf(dev->why, sizeof(dev->why), "its location is unknown, and %s comes first",
				 best->place.name);
		} else {
			taken++;
			snprintf(dev->why, sizeof(dev->why), "nearest to %s", place->name);
		}
	}
	return taken;
}

/* ---- candidates ---- */

static void nic_add(struct ep_nics *nics, const struct ep_spot *place, const struct ep_nic_dev *devs, int i)
{
	struct ep_nic_card *card = &nics->card;

	if (card->count == EP_NICS)
		return;
	card->layer = (int32_t)devs[i].layer;
	nics->dev[card->count] = i;
	nics->across[card->count] = ep_spot_across(place, &devs[i].place);
	card->mark[card->count++] = mark_of(devs[i].place.name);
}

/* The name, with or without its port: "mlx5_0" matches "mlx5_0:1". */
static bool is_named(const char *name, const char *wish, size_t n)
{
	return n && strlen(name) >= n && !memcmp(name, wish, n) && (!name[n] || name[n] == ':');
}

/* INFO: another net may have it. */
static int none_named(const struct ep_net *net, const struct ep_nic_dev *devs, int count, struct ep_nics *out)
{
	char there[256] = "";
	size_t used = 0;

	for (int i = 0; i < count && used < sizeof(there); i++)
		used += (size_t)snprintf(there + used, sizeof(there) - used, " %s", devs[i].place.name);
	snprintf(out->why, sizeof(out->why), "NCCL_EP_NET_DEVICE=%.60s: net %.40s has no such device, only%.80s",
		 ep_param_str(EP_P_NET_DEVICE), net->name, there);
	EP_INFO(EP_GROUP, "%s", out->why);
	ep_last_error_set(out->why);
	return -ENODEV;
}

/* Rails never mix link layers: the first one named decides. */
static void nics_named(const struct ep_spot *place, const struct ep_nic_dev *devs, int count, const char *wishes,
		       struct ep_nics *out)
{
	for (size_t n; *wishes; wishes += n + (wishes[n] == ',')) {
		n = strcspn(wishes, ",");
		for (int i = 0; i < count; i++) {
			if (!is_named(devs[i].place.name, wishes, n))
				continue;
			if (!out->card.count || (int32_t)devs[i].layer == out->card.layer)
				nic_add(out, place, devs, i);
			else
				EP_WARN(EP_GROUP, "NCCL_EP_NET_DEVICE: %s is left out: %s, the others are %s",
					devs[i].place.name, ep_nic_layer(devs[i].layer),
					ep_nic_layer((uint32_t)out->card.layer));
		}
	}
	out->card.placed = 1;
	snprintf(out->why, sizeof(out->why), "named by NCCL_EP_NET_DEVICE");
}

void ep_nics_nearest(const struct ep_spot *place, struct ep_nic_dev *devs, int count, struct ep_nics *out)
{
	int taken = ep_nics_judge(place, devs, count);

	for (int i = 0; i < count; i++)
		if (devs[i].taken)
			nic_add(out, place, devs, i);
	out->card.placed = taken && devs[out->dev[0]].place.path[0];
	if (count == 1)
		snprintf(out->why, sizeof(out->why), "the only one");
	else if (!out->card.placed)
		snprintf(out->why, sizeof(out->why), "the first of %d: their location is unknown", count);
	else
		snprintf(out->why, sizeof(out->why), "%d of %d are nearest to %s", taken, count, place->name);
}

int ep_nics_find(const struct ep_net *net, const struct ep_spot *place, struct ep_nics *out)
{
	const char *wishes = ep_param_str(EP_P_NET_DEVICE);
	struct ep_nic_dev *devs;
	int count, rc = ep_nic_devs(net, &devs, &count);

	*out = (struct ep_nics){ .card.rails = (int32_t)ep_param_int(EP_P_RAILS) };
	if (rc)
		return rc;
	if (*wishes)
		nics_named(place, devs, count, wishes, out);
	else
		ep_nics_nearest(place, devs, count, out);
	if (*wishes && !out->card.count)
		rc = none_named(net, devs, count, out);
	if (!strcmp(net->name, "rails")) /* it combines several devices already */
		out->card.rails = 1;
	free(devs);
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

int ep_nic_odd(const struct ep_nic_card *all, int nranks)
{
	for (int r = 1; r < nranks; r++)
		if (all[r].layer != all[0].layer)
			return r;
	return 0;
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
