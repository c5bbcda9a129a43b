/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/link/spot.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proxy/cpus.h"

#define NUMA_NODES 64
_Static_assert(EP_SPOT_PATH >= PATH_MAX, "realpath needs it");

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

static int number_read(const char *path)
{
	char text[16];

	return file_read(path, text, sizeof(text)) ? atoi(text) : -1;
}

static bool node_cpus(int node, struct ep_cpus *out)
{
	char file[64], list[1024];

	snprintf(file, sizeof(file), "/sys/devices/system/node/node%d/cpulist", node);
	return file_read(file, list, sizeof(list)) && list[0] != '\n' && !ep_cpus_parse(list, out);
}

/* A node of memory only, such as a GPU's behind C2C, has no socket of its own. */
static int socket_of(int node)
{
	char file[96];
	struct ep_cpus cpus;
	int cpu = 0;

	if (node < 0 || !node_cpus(node, &cpus))
		return -1;
	while (!CPU_ISSET_S((size_t)cpu, sizeof(cpus), cpus.set))
		cpu++;
	snprintf(file, sizeof(file), "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
	return number_read(file);
}

/* The NUMA node of all CPUs of this process; -1: they span several, or the machine has one node only. */
static int numa_of_cpus(void)
{
	struct ep_cpus may, node, both;
	int count;

	memset(&may, 0, sizeof(may));
	if (access("/sys/devices/system/node/node1", F_OK) || sched_getaffinity(0, sizeof(may), may.set))
		return -1;
	count = CPU_COUNT_S(sizeof(may), may.set);
	for (int i = 0; i < NUMA_NODES; i++) {
		if (!node_cpus(i, &node))
			continue;
		CPU_AND_S(sizeof(both), both.set, may.set, node.set);
		if (CPU_COUNT_S(sizeof(both), both.set) == count)
			return i;
	}
	return -1;
}

void ep_spot_cpus(const char *name, struct ep_spot *out)
{
	*out = (struct ep_spot){ .numa = numa_of_cpus() };
	out->socket = socket_of(out->numa);
	snprintf(out->name, sizeof(out->name), "%s", name);
}

void ep_spot_read(const char *name, const char *pci, int numa, struct ep_spot *out)
{
	char file[EP_SPOT_PATH + 16];

	*out = (struct ep_spot){ .numa = numa };
	snprintf(out->name, sizeof(out->name), "%s", name);
	if (pci[0] && !realpath(pci, out->path))
		snprintf(out->path, sizeof(out->path), "%s", pci);
	if (pci[0] && numa < 0) {
		snprintf(file, sizeof(file), "%s/numa_node", out->path);
		out->numa = number_read(file);
	}
	out->socket = socket_of(out->numa);
}

void ep_spot_cpulist(const char *pci, char *out, size_t size)
{
	char file[EP_SPOT_PATH + 16];

	snprintf(file, sizeof(file), "%.*s/local_cpulist", EP_SPOT_PATH - 1, pci);
	if (!pci[0] || !file_read(file, out, size) || out[0] == '\n')
		out[0] = 0;
	out[strcspn(out, "\n")] = 0;
}

/*
 * From the root complex ("pci0000:00") on. What is above it tells nothing: in Azure's virtual machines all devices hang
 * below one VMBus, each behind a root complex of its own.
 */
static const char *pci_part(const char *path)
{
	const char *at = strstr(path, "/pci");

	while (at && !isxdigit((unsigned char)at[4])) /* "/sys/bus/pci/devices/..." is no path of bridges */
		at = strstr(at + 4, "/pci");
	return at ? at : "";
}

/* Leading path components in common. */
static int shared_steps(const char *a, const char *b)
{
	int steps = 0;

	if (!*a || !*b)
		return 0;
	for (; *a && *a == *b; a++, b++)
		steps += *a == '/';
	/* The last one counts only where both names end. */
	return (*a == 0 || *a == '/') && (*b == 0 || *b == '/') ? steps : steps - 1;
}

int ep_spot_depth(const struct ep_spot *spot)
{
	int depth = 0;

	for (const char *at = pci_part(spot->path); *at; at++)
		depth += *at == '/';
	return depth;
}

struct ep_near ep_spot_near(const struct ep_spot *a, const struct ep_spot *b)
{
	struct ep_near near = { .by_pci = -1, .by_numa = a->numa >= 0 && a->numa == b->numa };

	if (b->path[0])
		near.by_pci = shared_steps(pci_part(a->path), pci_part(b->path));
	return near;
}

int ep_near_compare(struct ep_near a, struct ep_near b)
{
	return a.by_pci != b.by_pci ? a.by_pci - b.by_pci : a.by_numa - b.by_numa;
}

bool ep_spot_across(const struct ep_spot *a, const struct ep_spot *b)
{
	return a->socket >= 0 && b->socket >= 0 && a->socket != b->socket && ep_spot_near(a, b).by_pci <= 0;
}
