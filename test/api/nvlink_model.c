/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of NVML for ep_info_links.py, built as libnvidia-ml.so.1. GPU i is at 0000:1i:00.0. NVML_MODEL names the
 * layout: "switch", 18 links of each GPU to NVSwitches; "mesh", 4 links to each of the next three, one of them down;
 * "none", no NVLink; "fail", nvmlInit fails.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define NOT_SUPPORTED 3
#define INVALID_ARGUMENT 2
#define NOT_FOUND 6
#define MESH 4u

struct pci {
	char legacy[16];
	unsigned domain, bus, device, ids[2];
	char id[32];
};

EXPORT unsigned nvmlInit_v2(void);
EXPORT unsigned nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out);
EXPORT unsigned nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active);
EXPORT unsigned nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *out);
EXPORT unsigned nvmlDeviceGetNvLinkVersion(void *device, unsigned link, unsigned *out);
EXPORT unsigned nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *out);

static int layout_is(const char *name)
{
	const char *layout = getenv("NVML_MODEL");

	return layout && !strcmp(layout, name);
}

unsigned nvmlInit_v2(void)
{
	return layout_is("fail") ? 9 : 0; /* NVML_ERROR_DRIVER_NOT_LOADED */
}

/* A handle is the GPU's number, and one, as NULL is none. */
unsigned nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out)
{
	unsigned domain, number, device;

	if (sscanf(bus, "%x:%x:%x", &domain, &number, &device) != 3 || domain || device || number < 0x10 ||
	    number >= 0x18)
		return NOT_FOUND;
	*out = (void *)(uintptr_t)(number - 0x10 + 1);
	return 0;
}

static unsigned gpu_of(void *device)
{
	return (unsigned)(uintptr_t)device - 1;
}

/* The GPU at the other end of a link of the mesh. */
static unsigned mesh_peer(unsigned gpu, unsigned link)
{
	return (gpu + 1 + link / 4) % MESH;
}

/* Between GPU 0 and 1 one link of four is down. */
static unsigned mesh_down(unsigned gpu, unsigned link)
{
	return link % 4 == 3 && gpu + mesh_peer(gpu, link) == 1;
}

unsigned nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active)
{
	if (layout_is("none"))
		return NOT_SUPPORTED;
	if (link >= (layout_is("mesh") ? 12 : 18))
		return INVALID_ARGUMENT;
	*active = !layout_is("mesh") || !mesh_down(gpu_of(device), link);
	return 0;
}

unsigned nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *out)
{
	memset(out, 0xff, sizeof(*out));
	out->domain = out->device = 0;
	out->bus = layout_is("mesh") ? 0x10 + mesh_peer(gpu_of(device), link) : 0xc0 + link % 4;
	return 0;
}

unsigned nvmlDeviceGetNvLinkVersion(void *device, unsigned link, unsigned *out)
{
	(void)device;
	(void)link;
	*out = layout_is("mesh") ? 4 : 6; /* 3.0, 4.0 */
	return 0;
}

unsigned nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *out)
{
	(void)device;
	(void)link;
	*out = layout_is("mesh") ? 0 : 2;
	return 0;
}
