/* SPDX-License-Identifier: Apache-2.0 */
/* XGMI links as the kernel's driver for AMD's GPUs has them: nodes of a topology, each with its links to others. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "perf/ep_info_links.h"

#define NODES 128 /* that are looked at: CPUs, GPUs and their partitions */
#define TYPE_XGMI 11
#define PATH_BYTES 1024

/* "name value" on lines of their own; -1: not there. */
static long long property_read(const char *path, const char *name)
{
	FILE *f = fopen(path, "re");
	long long value = -1, found = -1;
	char key[64];

	while (f && found < 0 && fscanf(f, "%63s %lld", key, &value) == 2)
		if (!strcmp(key, name))
			found = value;
	if (f)
		fclose(f);
	return found;
}

/* The GPU of a node; -1: a CPU, or none of these. */
static int gpu_of(const char *nodes, long long node, const char (*bus)[EP_LINKS_BUS], int n)
{
	char path[PATH_BYTES], want[64];
	long long at, domain;

	snprintf(path, sizeof(path), "%.800s/%lld/properties", nodes, node);
	at = property_read(path, "location_id");
	domain = property_read(path, "domain");
	if (at <= 0)
		return -1;
	snprintf(want, sizeof(want), "%04llx:%02llx:%02llx.%lld", domain < 0 ? 0 : domain, at >> 8 & 0xff,
		 at >> 3 & 0x1f, at & 7);
	for (int i = 0; i < n; i++)
		if (!strcmp(bus[i], want))
			return i;
	return -1;
}

static void node_read(const char *nodes, int node, const char (*bus)[EP_LINKS_BUS], int n, struct ep_link *link)
{
	char folder[PATH_BYTES], path[2 * PATH_BYTES];
	int from = gpu_of(nodes, node, bus, n);
	struct dirent *entry;
	DIR *dir;

	snprintf(folder, sizeof(folder), "%.800s/%d/io_links", nodes, node);
	dir = from < 0 ? NULL : opendir(folder);
	while (dir && (entry = readdir(dir))) {
		int to;

		snprintf(path, sizeof(path), "%s/%.64s/properties", folder, entry->d_name);
		if (!isdigit((unsigned char)entry->d_name[0]) || property_read(path, "type") != TYPE_XGMI)
			continue;
		to = gpu_of(nodes, property_read(path, "node_to"), bus, n);
		if (to >= 0 && to != from)
			link[from * n + to] = (struct ep_link){ .kind = EP_LINK_XGMI, .version = "" };
	}
	if (dir)
		closedir(dir);
}

void ep_links_kfd(const char *sys, const char (*bus)[EP_LINKS_BUS], int n, struct ep_link *link)
{
	char nodes[PATH_BYTES];

	snprintf(nodes, sizeof(nodes), "%.700s/class/kfd/kfd/topology/nodes", sys);
	for (int i = 0; i < NODES; i++)
		node_read(nodes, i, bus, n, link);
}
