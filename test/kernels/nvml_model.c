/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of NVML for nvml.c, built as libnvidia-ml.so.1: an H200 and an A100 found by UUID and by address, a slice of
 * a third GPU found by UUID only, and a GPU that does not tell its cores.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct device {
	const char *uuid, *bus;
	unsigned cores, slice;
};

static const struct device devices[] = {
	{ "GPU-10101010-1010-1010-1010-101010101010", "0000:18:00.0", 16896, 0 },
	{ "GPU-20202020-2020-2020-2020-202020202020", "0000:2a:00.0", 6912, 0 },
	{ "MIG-30303030-3030-3030-3030-303030303030", "", 0, 16 },
	{ "GPU-40404040-4040-4040-4040-404040404040", "0000:5d:00.0", 0, 0 },
};
static int ready;

struct attributes {
	unsigned word[10]; /* the count first */
};

EXPORT unsigned nvmlInit_v2(void);
EXPORT unsigned nvmlDeviceGetHandleByUUID(const char *uuid, void **out);
EXPORT unsigned nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out);
EXPORT unsigned nvmlDeviceGetNumGpuCores(void *handle, unsigned *out);
EXPORT unsigned nvmlDeviceGetAttributes_v2(void *handle, struct attributes *out);

unsigned nvmlInit_v2(void)
{
	ready = 1;
	return 0;
}

static unsigned find(const char *key, size_t member, void **out)
{
	for (size_t i = 0; ready && *key && i < sizeof(devices) / sizeof(devices[0]); i++)
		if (!strcmp(key, *(const char *const *)((const char *)&devices[i] + member))) {
			*out = (void *)(uintptr_t)&devices[i];
			return 0;
		}
	return 6; /* NVML_ERROR_NOT_FOUND */
}

unsigned nvmlDeviceGetHandleByUUID(const char *uuid, void **out)
{
	return find(uuid, offsetof(struct device, uuid), out);
}

unsigned nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out)
{
	return find(bus, offsetof(struct device, bus), out);
}

unsigned nvmlDeviceGetNumGpuCores(void *handle, unsigned *out)
{
	const struct device *device = handle;

	if (!device->cores)
		return 3; /* NVML_ERROR_NOT_SUPPORTED */
	*out = device->cores;
	return 0;
}

/* Of slices only, as NVML. */
unsigned nvmlDeviceGetAttributes_v2(void *handle, struct attributes *out)
{
	const struct device *device = handle;

	if (!device->slice)
		return 3;
	memset(out, 0xff, sizeof(*out));
	out->word[0] = device->slice;
	return 0;
}
