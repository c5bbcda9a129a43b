/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the GPUs and RDMA devices of this host are joined: NVLink and XGMI between GPUs, else the way by PCI, as a matrix
 * with the words of `nvidia-smi topo -m`. From sysfs and NVML: no device is opened, and nothing here is an error.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/ep_info.h"
#include "perf/ep_info_links.h"
#include "plugin/link/spot.h"

#define GPUS 32
#define DEVICES (GPUS + 64)
#define PATH_BYTES 1024

struct device {
	char name[16]; /* GPU0, NIC0 */
	char bus[EP_LINKS_BUS];
	bool nvidia;
	struct ep_spot spot; /* its name: the vendor of a GPU, a NIC's device */
};

static struct {
	struct device device[DEVICES]; /* GPUs first */
	int gpus, all;
	struct ep_link link[GPUS * GPUS]; /* [gpus][gpus] */
	const char *nvml;		  /* NULL: it was asked */
} topo;

/* ---- what there is ---- */

static unsigned hex_read(const char *folder, const char *file)
{
	char path[PATH_BYTES + 32];
	unsigned value = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, file);
	f = fopen(path, "re");
	if (f && fscanf(f, "%x", &value) != 1)
		value = 0;
	if (f)
		fclose(f);
	return value;
}

/* The maker of a GPU; NULL: the device is none. */
static const char *gpu_maker(const char *folder)
{
	static const unsigned classes[] = { 0x0300, 0x0302, 0x0380, 0x1200 }; /* VGA, 3D, display, accelerator */
	unsigned class = hex_read(folder, "class") >> 8, vendor = hex_read(folder, "vendor");

	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
		if (class == classes[i])
			return vendor == 0x10de ? "NVIDIA" : vendor == 0x1002 ? "AMD" : NULL;
	return NULL;
}

static void gpu_take(const char *folder, const char *bus)
{
	const char *maker = gpu_maker(folder);
	struct device *d = &topo.device[topo.all];

	if (!maker || topo.all == GPUS)
		return;
	snprintf(d->name, sizeof(d->name), "GPU%d", topo.all);
	snprintf(d->bus, sizeof(d->bus), "%s", bus);
	d->nvidia = !strcmp(maker, "NVIDIA");
	ep_spot_read(maker, folder, -1, &d->spot);
	topo.gpus = ++topo.all;
}

static void nic_take(const char *folder, const char *name)
{
	struct device *d = &topo.device[topo.all];
	char device[PATH_BYTES + 16];

	snprintf(device, sizeof(device), "%s/device", folder);
	if (topo.all == DEVICES)
		return;
	ep_spot_read(name, device, -1, &d->spot);
	if (!ep_spot_depth(&d->spot)) /* one of software */
		return;
	snprintf(d->name, sizeof(d->name), "NIC%d", topo.all - topo.gpus);
	snprintf(d->bus, sizeof(d->bus), "%.20s", strrchr(d->spot.path, '/') + 1);
	topo.all++;
}

static int shown(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

/* In the order of their names: addresses have leading zeros, and mlx5_10 comes after mlx5_9. */
static void folder_each(const char *folder, void (*take)(const char *folder, const char *name))
{
	struct dirent **entry = NULL;
	int n = scandir(folder, &entry, shown, versionsort);

	for (int i = 0; i < n; i++) {
		char path[PATH_BYTES];

		snprintf(path, sizeof(path), "%.700s/%.255s", folder, entry[i]->d_name);
		take(path, entry[i]->d_name);
		free(entry[i]);
	}
	free(entry);
}

void ep_info_topo_read(const char *sys)
{
	char bus[GPUS][EP_LINKS_BUS], path[PATH_BYTES];
	bool nvidia = false;

	topo.gpus = topo.all = 0;
	snprintf(path, sizeof(path), "%.700s/bus/pci/devices", sys);
	folder_each(path, gpu_take);
	snprintf(path, sizeof(path), "%.700s/class/infiniband", sys);
	folder_each(path, nic_take);
	for (int i = 0; i < topo.gpus; i++) {
		memcpy(bus[i], topo.device[i].bus, sizeof(bus[i]));
		nvidia |= topo.device[i].nvidia;
	}
	for (int i = 0; i < topo.gpus * topo.gpus; i++)
		topo.link[i] = (struct ep_link){ .version = "" };
	topo.nvml = nvidia ? ep_links_nvml((const char(*)[EP_LINKS_BUS])bus, topo.gpus, topo.link) : NULL;
	ep_links_kfd(sys, (const char(*)[EP_LINKS_BUS])bus, topo.gpus, topo.link);
}

/* ---- how near ---- */

/* A switch is its upstream port with a bridge above each device: two devices of it part two steps above themselves. */
static const char *pci_way(const struct ep_spot *a, const struct ep_spot *b)
{
	struct ep_near near = ep_spot_near(a, b);
	int depth = ep_spot_depth(a) > ep_spot_depth(b) ? ep_spot_depth(a) : ep_spot_depth(b);

	if (near.by_pci > 1)
		return depth - near.by_pci <= 2 ? "PIX" : "PXB";
	if (near.by_pci == 1)
		return "PHB";
	if (a->numa < 0 || b->numa < 0)
		return "?";
	return near.by_numa ? "NODE" : "SYS";
}

/* NULL: not two GPUs, or no link. */
static const struct ep_link *link_of(int a, int b)
{
	const struct ep_link *link;

	if (a >= topo.gpus || b >= topo.gpus)
		return NULL;
	link = &topo.link[a * topo.gpus + b];
	return link->kind == EP_LINK_NONE ? NULL : link;
}

/* ---- as text ---- */

static void cell_print(int a, int b)
{
	const struct ep_link *link = link_of(a, b);
	char text[24] = "X";

	if (link && link->kind == EP_LINK_NVLINK)
		snprintf(text, sizeof(text), "NV%u", link->links);
	else if (a != b)
		snprintf(text, sizeof(text), "%s", link ? "XGMI" : pci_way(&topo.device[a].spot, &topo.device[b].spot));
	printf(" %-5s", text);
}

/* The first NVLink of all; those of a host are alike. */
static void nvlink_print(void)
{
	const struct ep_link *first = NULL;

	for (int i = 0; i < topo.gpus * topo.gpus && !first; i++)
		first = topo.link[i].kind == EP_LINK_NVLINK ? &topo.link[i] : NULL;
	if (topo.nvml)
		printf("# NVLink: not known, %s\n", topo.nvml);
	else if (first)
		printf("# NVLink%s%s%s\n", *first->version ? " " : "", first->version,
		       first->by_switch ? " through NVSwitches" : ", direct");
}

void ep_info_topo_print(void)
{
	if (!topo.all) {
		printf("#\n# links: no GPU and no RDMA device on PCI\n");
		return;
	}
	printf("#\n# links: NVn n NVLinks, XGMI; by PCI: PIX one switch, PXB several, PHB the root complex, NODE the "
	       "NUMA "
	       "node, SYS across nodes\n#      ");
	for (int i = 0; i < topo.all; i++)
		printf(" %-5s", topo.device[i].name);
	printf(" %-13s %4s  %s\n", "PCI address", "NUMA", "device");
	for (int i = 0; i < topo.all; i++) {
		const struct device *d = &topo.device[i];

		printf("  %-5s", d->name);
		for (int k = 0; k < topo.all; k++)
			cell_print(i, k);
		printf(" %-13s %4d  %s\n", d->bus, d->spot.numa, d->spot.name);
	}
	nvlink_print();
}

/* ---- as JSON ---- */

static void pair_json(int a, int b)
{
	static const char *const kinds[] = { "none", "NVLink", "XGMI" };
	const struct ep_link *link = link_of(a, b);

	printf("{");
	ep_info_pair("a", topo.device[a].name, ", ");
	ep_info_pair("b", topo.device[b].name, ", ");
	ep_info_pair("pci", pci_way(&topo.device[a].spot, &topo.device[b].spot), ", ");
	ep_info_pair("link", kinds[link ? link->kind : EP_LINK_NONE], ", ");
	printf("\"links\": %u, \"switch\": %s, ", link ? link->links : 0, link && link->by_switch ? "true" : "false");
	ep_info_pair("version", link ? link->version : "", "}");
}

/* Pairs of which one is a GPU. */
void ep_info_topo_json(void)
{
	const char *comma = "";

	printf("  \"topology\": {\n    ");
	ep_info_pair("nvml", topo.nvml ? topo.nvml : "", ",\n    \"devices\": [");
	for (int i = 0; i < topo.all; i++) {
		const struct device *d = &topo.device[i];

		printf("%s\n      {", i ? "," : "");
		ep_info_pair("name", d->name, ", ");
		ep_info_pair("kind", i < topo.gpus ? "GPU" : "NIC", ", ");
		ep_info_pair("device", d->spot.name, ", ");
		ep_info_pair("pci", d->bus, ", ");
		printf("\"numa\": %d}", d->spot.numa);
	}
	printf("\n    ],\n    \"pairs\": [");
	for (int a = 0; a < topo.gpus; a++)
		for (int b = a + 1; b < topo.all; b++) {
			printf("%s\n      ", comma);
			pair_json(a, b);
			comma = ",";
		}
	printf("\n    ]\n  },\n");
}
