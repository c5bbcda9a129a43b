/* SPDX-License-Identifier: Apache-2.0 */
/* Machines as sysfs shows them, in machines/: every GPU gets the NIC that an expert would give it. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/link/nic.h"

#define GPUS 16
#define NICS 64
#define NAMES 256

TestSuite(machines, .timeout = 30);

struct machine {
	int gpus, nics;
	struct ep_spot gpu[GPUS];
	char wants[GPUS][NAMES];
	struct ep_nic_dev nic[NICS];
};

static uint32_t layer_of(const char *word)
{
	return !strcmp(word, "ib")    ? NCCL_EP_NET_LAYER_INFINIBAND
	       : !strcmp(word, "eth") ? NCCL_EP_NET_LAYER_ETHERNET
				      : NCCL_EP_NET_LAYER_UNKNOWN;
}

static void line_take(struct machine *m, const char *line)
{
	char name[64], path[512], layer[8];
	int numa, socket, n;
	unsigned gbps;

	if (sscanf(line, "gpu %511s %d %d %255s", path, &numa, &socket, m->wants[m->gpus]) == 4) {
		cr_assert(lt(int, m->gpus, GPUS - 1));
		n = m->gpus++;
		m->gpu[n] = (struct ep_spot){ .numa = numa, .socket = socket };
		snprintf(m->gpu[n].name, sizeof(m->gpu[n].name), "GPU %d", n);
		snprintf(m->gpu[n].path, sizeof(m->gpu[n].path), "/sys/devices/%s", path);
	} else if (sscanf(line, "nic %63s %511s %d %d %u %7s", name, path, &numa, &socket, &gbps, layer) == 6) {
		cr_assert(lt(int, m->nics, NICS));
		n = m->nics++;
		m->nic[n] = (struct ep_nic_dev){ .place = { .numa = numa, .socket = socket },
						 .speed = gbps * 1000,
						 .layer = layer_of(layer) };
		snprintf(m->nic[n].place.name, sizeof(m->nic[n].place.name), "%s", name);
		snprintf(m->nic[n].place.path, sizeof(m->nic[n].place.path), "/sys/devices/%s", path);
	} else {
		cr_assert(eq(chr, line[0], '#'), "not understood: %s", line);
	}
}

static void machine_read(const char *file, struct machine *m)
{
	char path[1024], line[1024];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", getenv("EP_MACHINES"), file);
	f = fopen(path, "r");
	cr_assert(f != NULL, "%s", path);
	m->gpus = m->nics = 0;
	while (fgets(line, sizeof(line), f))
		line_take(m, line);
	fclose(f);
	cr_assert(gt(int, m->gpus, 0));
}

/* One rank per GPU. */
static void machine_judge(const char *file, struct machine *m)
{
	static struct ep_nics nics[GPUS];
	struct ep_nic_card all[GPUS];
	struct ep_nic_pick pick;
	char got[NAMES];
	size_t used;
	int rails;

	for (int g = 0; g < m->gpus; g++) {
		nics[g] = (struct ep_nics){ .card.home = 0 };
		ep_nics_nearest(&m->gpu[g], m->nic, m->nics, &nics[g]);
		all[g] = nics[g].card;
	}
	rails = ep_nic_rails(all, m->gpus);
	for (int g = 0; g < m->gpus; g++) {
		ep_nic_choose(all, m->gpus, g, &pick);
		used = 0;
		for (int k = 0; k < rails; k++) {
			const struct ep_nic_dev *dev = &m->nic[nics[g].dev[pick.at[k]]];

			used += (size_t)snprintf(got + used, sizeof(got) - used, "%s%s", k ? "+" : "", dev->place.name);
			cr_expect(not(nics[g].across[pick.at[k]]), "%s: GPU %d reaches %s across sockets", file, g,
				  dev->place.name);
		}
		cr_expect(eq(str, got, m->wants[g]), "%s: GPU %d", file, g);
	}
}

Test(machines, as_an_expert_would)
{
	static struct machine m;
	struct dirent *entry;
	DIR *dir = opendir(getenv("EP_MACHINES"));
	int count = 0;

	cr_assert(dir != NULL);
	while ((entry = readdir(dir))) {
		if (!strstr(entry->d_name, ".tree"))
			continue;
		machine_read(entry->d_name, &m);
		machine_judge(entry->d_name, &m);
		count++;
	}
	closedir(dir);
	cr_expect(ge(int, count, 8));
}

static const struct ep_nic_dev *nic_of(const struct machine *m, const char *name)
{
	for (int i = 0; i < m->nics; i++)
		if (!strcmp(m->nic[i].place.name, name))
			return &m->nic[i];
	return NULL;
}

/* What ep_info -n prints. */
Test(machines, says_why)
{
	static struct machine m;

	machine_read("gb200.tree", &m);
	cr_expect(eq(int, ep_nics_judge(&m.gpu[0], m.nic, m.nics), 2));
	cr_expect(eq(str, (char *)nic_of(&m, "mlx5_1")->why, (char *)"nearest to GPU 0"));
	cr_expect(eq(str, (char *)nic_of(&m, "mlx5_2")->why,
		     (char *)"Ethernet, while the fabric of this host is InfiniBand"));
	cr_expect(eq(str, (char *)nic_of(&m, "mlx5_5")->why, (char *)"farther by NUMA node than mlx5_0"));
	machine_read("mi300x_thor2.tree", &m);
	cr_expect(eq(int, ep_nics_judge(&m.gpu[4], m.nic, m.nics), 1));
	cr_expect(
		eq(str, (char *)nic_of(&m, "bnxt_re8")->why, (char *)"100 Gb/s, a front end beside ports of 400 Gb/s"));
	cr_expect(eq(str, (char *)nic_of(&m, "bnxt_re5")->why, (char *)"farther by PCIe than bnxt_re4"));
}

/* GPUDirect is left out between sockets only, and where that is known. */
Test(machines, across_sockets)
{
	static struct machine m;

	machine_read("dgx_h100.tree", &m);
	cr_expect(not(ep_spot_across(&m.gpu[0], &nic_of(&m, "mlx5_5")->place)), "the same socket");
	cr_expect(ep_spot_across(&m.gpu[0], &nic_of(&m, "mlx5_6")->place));
	m.gpu[0].socket = -1; /* a virtual machine that hides it, or a node of memory only */
	cr_expect(not(ep_spot_across(&m.gpu[0], &nic_of(&m, "mlx5_6")->place)));
}
