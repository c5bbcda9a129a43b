/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks choose devices of a transport: by distance, round robin, and how many per rank. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/link/link.h"
#include "plugin/link/nic.h"

TestSuite(nic_choose, .timeout = 30);

/* A root with two switches, a GPU and a NIC below each. */
#define ROOT "/sys/devices/pci0000:00"
#define SWITCH0 ROOT "/0000:00:01.0/0000:01:00.0"
#define SWITCH1 ROOT "/0000:00:03.0/0000:05:00.0"

static struct ep_spot place_of(const char *path, int numa)
{
	struct ep_spot place = { .numa = numa };

	snprintf(place.path, sizeof(place.path), "%s", path);
	return place;
}

static int by_pci(const struct ep_spot *a, const char *path)
{
	struct ep_spot b = place_of(path, -1);

	return ep_spot_near(a, &b).by_pci;
}

Test(nic_choose, nearer_by_pcie)
{
	struct ep_spot gpu = place_of(SWITCH0 "/0000:02:00.0/0000:03:00.0", -1);
	static const char *const farther[] = {
		SWITCH0 "/0000:02:00.0/0000:03:00.1", /* below the same port */
		SWITCH0 "/0000:02:01.0/0000:04:00.0", /* the same switch */
		SWITCH0 "0/0000:02:00.0",	      /* only a common prefix of the name: the same root port */
		SWITCH1 "/0000:06:00.0",	      /* the same root */
		"/sys/devices/pci0000:80/0000:80:01.0",
		"",
	};
	int before = by_pci(&gpu, gpu.path), one;

	for (size_t i = 0; i < sizeof(farther) / sizeof(farther[0]); i++) {
		one = by_pci(&gpu, farther[i]);
		cr_expect(lt(int, one, before), "%s", farther[i]);
		before = one;
	}
	/* Above the root complex, and beside the bridges, nothing counts. */
	gpu = place_of("/sys/devices/VMBUS:00/pci0001:00/0001:00:00.0", -1);
	cr_expect(eq(int, by_pci(&gpu, "/sys/devices/VMBUS:00/pci0101:00/0101:00:00.0"), 0));
	gpu = place_of("/sys/bus/pci/devices/0000:03:00.0", -1);
	cr_expect(eq(int, by_pci(&gpu, "/sys/bus/pci/devices/0000:03:00.1"), 0));
}

Test(nic_choose, nearer_by_numa_node)
{
	char dir[] = "/tmp/nic_choose_XXXXXX", file[64];
	struct ep_spot here = place_of("", 1), there = place_of("", 0), anywhere = place_of("", -1), nic;
	FILE *f;

	cr_assert(mkdtemp(dir) != NULL);
	snprintf(file, sizeof(file), "%s/numa_node", dir);
	f = fopen(file, "w");
	cr_assert(f && fputs("1\n", f) >= 0 && fclose(f) == 0);
	ep_spot_read("nic", dir, -1, &nic);
	cr_expect(eq(int, nic.numa, 1));
	cr_expect(eq(int, ep_spot_near(&here, &nic).by_numa, 1));
	cr_expect(eq(int, ep_spot_near(&there, &nic).by_numa, 0));
	cr_expect(eq(int, ep_spot_near(&anywhere, &nic).by_numa, 0));
	ep_spot_read("nic", dir, 3, &nic); /* the net knows better */
	cr_expect(eq(int, nic.numa, 3));
	unlink(file);
	rmdir(dir);
}

Test(nic_choose, a_device_without_a_place)
{
	struct ep_spot place;

	ep_spot_read("cuda 0", "", -1, &place);
	cr_expect(eq(str, place.path, (char *)""));
	cr_expect(eq(int, place.numa, -1));
	cr_expect(eq(int, place.socket, -1));
	cr_expect(eq(int, by_pci(&place, SWITCH0), 0));
	ep_spot_read("cuda 0", "/sys/devices/system/cpu/../cpu", -1, &place);
	cr_expect(eq(str, place.path, (char *)"/sys/devices/system/cpu"));
}

/* Per rank: the devices it may take ("012"), its host, and the expected choice. */
#define MOST 8

struct scene {
	int ranks, rails;
	bool nowhere;
	const char *may[MOST];
	int home[MOST];
	const char *gets[MOST];
	int common; /* expected rails of all ranks */
};

static const struct scene scenes[] = {
	/* As many devices as ranks, each nearest to one. */
	{ 4, 0, false, { "0", "1", "2", "3" }, { 0 }, { "0", "1", "2", "3" }, 1 },
	/* Two switches, each with two ranks and two devices. */
	{ 4, 0, false, { "01", "01", "23", "23" }, { 0 }, { "0", "1", "2", "3" }, 1 },
	/* Fewer devices than ranks. */
	{ 4, 0, false, { "01", "01", "01", "01" }, { 0 }, { "0", "1", "0", "1" }, 1 },
	{ 3, 0, false, { "0", "0", "0" }, { 0 }, { "0", "0", "0" }, 1 },
	/* More devices than ranks: several each. */
	{ 2, 0, false, { "0123", "0123" }, { 0 }, { "02", "13" }, 2 },
	{ 2, 0, false, { "01", "23" }, { 0 }, { "01", "23" }, 2 },
	{ 1, 0, false, { "01234567" }, { 0 }, { "0123" }, 4 },
	{ 2, 0, false, { "012", "012" }, { 0 }, { "02", "1" }, 1 },
	/* Ranks of other hosts do not count; all use as many as the rank with the fewest. */
	{ 4, 0, false, { "01", "01", "01", "01" }, { 0, 0, 2, 2 }, { "0", "1", "0", "1" }, 1 },
	{ 2, 0, false, { "01", "01" }, { 0, 1 }, { "01", "01" }, 2 },
	{ 3, 0, false, { "0123", "01", "01" }, { 0, 1, 1 }, { "0123", "0", "1" }, 1 },
	{ 3, 0, false, { "0", "123", "45" }, { 0 }, { "0", "123", "45" }, 1 },
	/* A device nearest to another rank is left to it. */
	{ 2, 0, false, { "0123", "1" }, { 0 }, { "023", "1" }, 1 },
	/* Devices of unknown location may be the same NIC. */
	{ 1, 0, true, { "01" }, { 0 }, { "0" }, 1 },
	/* As many as the user sets. */
	{ 2, 2, false, { "0123", "0123" }, { 0 }, { "01", "12" }, 2 },
	{ 1, 1, false, { "0123" }, { 0 }, { "0" }, 1 },
	{ 1, 8, true, { "012" }, { 0 }, { "012" }, 3 },
	{ 4, 2, false, { "01", "01", "01", "0" }, { 0 }, { "01", "10", "01", "0" }, 1 },
};

static void pick_text(const char *may, const struct ep_nic_pick *pick, char *out)
{
	for (int i = 0; i < pick->count; i++)
		*out++ = may[pick->at[i]];
	*out = 0;
}

Test(nic_choose, whose)
{
	for (size_t s = 0; s < sizeof(scenes) / sizeof(scenes[0]); s++) {
		const struct scene *scene = &scenes[s];
		struct ep_nic_card card[MOST] = { { 0 } };
		char got[EP_NICS + 1];

		for (int r = 0; r < scene->ranks; r++) {
			card[r].rails = scene->rails;
			card[r].placed = !scene->nowhere;
			card[r].home = scene->home[r];
			for (const char *c = scene->may[r]; *c; c++)
				card[r].mark[card[r].count++] = (uint64_t)*c;
		}
		for (int r = 0; r < scene->ranks; r++) {
			struct ep_nic_pick pick;

			ep_nic_choose(card, scene->ranks, r, &pick);
			pick_text(scene->may[r], &pick, got);
			cr_expect(eq(str, got, (char *)scene->gets[r]), "scene %zu, rank %d", s, r);
		}
		cr_expect(eq(int, ep_nic_rails(card, scene->ranks), scene->common), "scene %zu", s);
	}
}

Test(nic_choose, sharers)
{
	struct ep_nic_card card[5] = { { 0 } };
	static const int others[5] = { 2, 1, 2, 1, 2 };
	struct ep_nic_pick pick;

	for (int r = 0; r < 5; r++)
		card[r] = (struct ep_nic_card){ .placed = 1, .count = 2, .mark = { 7, 8 } };
	for (int r = 0; r < 5; r++) {
		ep_nic_choose(card, 5, r, &pick);
		cr_expect(eq(int, pick.sharers, others[r]));
	}
}

Test(nic_choose, layers_must_agree)
{
	struct ep_nic_card card[3] = { { .layer = NCCL_EP_NET_LAYER_ETHERNET },
				       { .layer = NCCL_EP_NET_LAYER_ETHERNET } };

	cr_expect(eq(int, ep_nic_odd(card, 1), 0));
	cr_expect(eq(int, ep_nic_odd(card, 2), 0));
	cr_expect(eq(int, ep_nic_odd(card, 3), 2));
	cr_expect(eq(str, (char *)ep_nic_layer((uint32_t)card[1].layer), (char *)"Ethernet"));
	cr_expect(eq(str, (char *)ep_nic_layer(1u << 30), (char *)"unknown")); /* from a peer */
}

/* An invalid card from a peer: no division by zero, no read out of bounds. */
Test(nic_choose, nonsense)
{
	struct ep_nic_card card[2] = { { .count = 0 }, { .count = 1 << 30, .rails = -1 } };
	struct ep_nic_pick pick;

	for (int r = 0; r < 2; r++) {
		ep_nic_choose(card, 2, r, &pick);
		cr_expect(eq(int, pick.count, 1));
		cr_expect(eq(int, pick.at[0], 0));
	}
}

/* Both ends of a pair probe each other, every rank probes some, and a thousand ranks not all of a thousand. */
Test(nic_choose, whom_to_probe)
{
	static const int sizes[] = { 2, 3, 256, 257, 1000, 1024, 4096 };

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		int n = sizes[s], count = 0;

		for (int peer = 1; peer < n; peer++) {
			count += ep_link_probes(n, 0, peer);
			cr_expect(eq(int, ep_link_probes(n, 0, peer), ep_link_probes(n, peer, 0)), "%d of %d", peer, n);
			cr_expect(eq(int, ep_link_probes(n, 7 % n, (peer + 7) % n), ep_link_probes(n, 0, peer)));
		}
		if (n <= 256)
			cr_expect(eq(int, count, n - 1));
		else
			cr_expect(all(ge(int, count, 64), le(int, count, 512)), "%d of %d", count, n);
	}
}
