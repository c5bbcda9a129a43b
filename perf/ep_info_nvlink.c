/* SPDX-License-Identifier: Apache-2.0 */
/* NVLinks as NVML has them, opened at run time; without a CUDA context, so nothing is left on the GPUs. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/ep_info_links.h"

#define LINKS 36 /* of a GPU, at most: 18 today */
#define TO_GPU 0 /* nvmlIntNvLinkDeviceType_t */
#define TO_SWITCH 2
#define TO_UNKNOWN 255

/* nvmlPciInfo_t */
struct pci {
	char legacy[16];
	unsigned domain, bus, device, ids[2];
	char id[32];
};
_Static_assert(sizeof(struct pci) == 68, "as NVML has it");

/* All return 0 for success. */
static struct {
	unsigned (*init)(void);
	unsigned (*by_bus)(const char *bus, void **out);
	unsigned (*state)(void *device, unsigned link, unsigned *active);
	unsigned (*remote)(void *device, unsigned link, struct pci *out);
	unsigned (*version)(void *device, unsigned link, unsigned *out);
	unsigned (*type)(void *device, unsigned link, unsigned *out);
} nvml;

static const struct {
	const char *name;
	void *slot;
	bool optional;
} symbols[] = {
	{ "nvmlInit_v2", &nvml.init, false },
	{ "nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_bus, false },
	{ "nvmlDeviceGetNvLinkState", &nvml.state, false },
	{ "nvmlDeviceGetNvLinkRemotePciInfo_v2", &nvml.remote, false },
	{ "nvmlDeviceGetNvLinkVersion", &nvml.version, true },
	{ "nvmlDeviceGetNvLinkRemoteDeviceType", &nvml.type, true },
};

static const char *nvml_open(void)
{
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		return "libnvidia-ml.so.1 cannot be opened";
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlsym(lib, symbols[i].name);

		if (!symbol && !symbols[i].optional)
			return "libnvidia-ml.so.1 is too old";
		memcpy(symbols[i].slot, &symbol, sizeof(symbol));
	}
	return nvml.init() ? "nvmlInit failed" : NULL;
}

/* nvmlNvlinkVersion_t */
static const char *version_name(unsigned version)
{
	static const char *const names[] = { "", "1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0" };

	return version < sizeof(names) / sizeof(names[0]) ? names[version] : "";
}

/* -1: none of the GPUs. */
static int gpu_at(const struct pci *pci, const char (*bus)[EP_LINKS_BUS], int n)
{
	for (int i = 0; i < n; i++) {
		unsigned domain, number, device;

		if (sscanf(bus[i], "%x:%x:%x", &domain, &number, &device) == 3 && domain == pci->domain &&
		    number == pci->bus && device == pci->device)
			return i;
	}
	return -1;
}

/* What a GPU's links lead to: direct[n] and switches, numbers of links. */
struct ends {
	unsigned *direct, switches;
	const char *version;
};

static void ends_read(void *device, const char (*bus)[EP_LINKS_BUS], int n, struct ends *out)
{
	for (unsigned link = 0; link < LINKS; link++) {
		unsigned active = 0, type = TO_UNKNOWN, version = 0;
		struct pci pci = { .domain = 0 };
		int peer;

		if (nvml.state(device, link, &active) || !active)
			continue;
		if (nvml.type && nvml.type(device, link, &type))
			type = TO_UNKNOWN;
		peer = nvml.remote(device, link, &pci) ? -1 : gpu_at(&pci, bus, n);
		if (peer >= 0 && (type == TO_GPU || type == TO_UNKNOWN))
			out->direct[peer]++;
		else if (type == TO_SWITCH)
			out->switches++;
		else
			continue; /* to a CPU, or to a GPU that is not shown here */
		if (nvml.version && !nvml.version(device, link, &version))
			out->version = version_name(version);
	}
}

/* All switches of a host are taken as one fabric: those of two boards are joined by trunks. */
static void links_join(const struct ends *ends, int n, struct ep_link *link)
{
	for (int a = 0; a < n; a++)
		for (int b = 0; b < n; b++) {
			const struct ends *less = ends[a].switches < ends[b].switches ? &ends[a] : &ends[b];
			unsigned direct = ends[a].direct[b];

			if (a == b || direct + less->switches == 0)
				continue;
			link[a * n + b] = (struct ep_link){ .kind = EP_LINK_NVLINK,
							    .links = direct + less->switches,
							    .version = ends[a].version,
							    .by_switch = less->switches != 0 };
		}
}

const char *ep_links_nvml(const char (*bus)[EP_LINKS_BUS], int n, struct ep_link *link)
{
	const char *why = nvml_open();
	struct ends *ends = calloc((size_t)n, sizeof(*ends));
	unsigned *direct = calloc((size_t)n * (size_t)n, sizeof(*direct));
	int known = 0;

	if (!why && (!ends || !direct))
		why = "out of memory";
	for (int i = 0; !why && i < n; i++) {
		void *device = NULL;

		ends[i].direct = direct + (size_t)i * (size_t)n;
		ends[i].version = "";
		if (nvml.by_bus(bus[i], &device))
			continue;
		known++;
		ends_read(device, bus, n, &ends[i]);
	}
	if (!why && !known)
		why = "NVML knows none of these GPUs";
	if (!why)
		links_join(ends, n, link);
	free(direct);
	free(ends);
	return why;
}
