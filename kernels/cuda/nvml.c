/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* nvmlDeviceAttributes_t; filled for MIG slices only. */
struct attributes {
	unsigned sms;
	unsigned engines[7];
	unsigned long long memory_mb;
};
_Static_assert(sizeof(struct attributes) == 40, "as NVML has it");

/* All return 0 for success. */
static struct {
	pthread_once_t once;
	const char *why; /* NULL: usable */
	unsigned (*init)(void);
	unsigned (*by_uuid)(const char *uuid, void **out);
	unsigned (*by_bus)(const char *bus, void **out);
	unsigned (*cores)(void *device, unsigned *out);
	unsigned (*slice)(void *device, struct attributes *out);
} nvml = { .once = PTHREAD_ONCE_INIT };

static const struct {
	const char *name;
	void *slot;
} symbols[] = {
	{ "nvmlInit_v2", &nvml.init },
	{ "nvmlDeviceGetHandleByUUID", &nvml.by_uuid },
	{ "nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_bus },
	{ "nvmlDeviceGetNumGpuCores", &nvml.cores },
	{ "nvmlDeviceGetAttributes_v2", &nvml.slice },
};

/* Never closed or shut down, as the driver: other libraries of the process use it too. */
static void nvml_load(void)
{
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	nvml.why = "libnvidia-ml.so.1 cannot be opened";
	for (size_t i = 0; lib && i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlsym(lib, symbols[i].name);

		if (!symbol) {
			nvml.why = "libnvidia-ml.so.1 is older than driver R510";
			return;
		}
		memcpy(symbols[i].slot, &symbol, sizeof(symbol));
	}
	if (lib)
		nvml.why = nvml.init() ? "nvmlInit failed" : NULL;
}

/* CUDA cores of a multiprocessor, by compute capability: NVML counts cores only. 0: a GPU we do not know. */
static unsigned cores_per_sm(int major, int minor)
{
	static const struct {
		int major, minor; /* minor -1: all others */
		unsigned cores;
	} known[] = { { 7, -1, 64 }, { 8, 0, 64 }, { 8, -1, 128 }, { 9, -1, 128 }, { 10, -1, 128 }, { 12, -1, 128 } };

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].major == major && (known[i].minor == minor || known[i].minor < 0))
			return known[i].cores;
	return 0;
}

static int find_by_uuid(const char *prefix, const uint8_t u[16], void **out)
{
	char text[48];

	snprintf(text, sizeof(text), "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix,
		 u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
	return nvml.by_uuid(text, out) == 0;
}

unsigned ep_nvml_sms(const struct ep_nvml_query *query, const char **why)
{
	static const uint8_t unknown[16];
	unsigned per = cores_per_sm(query->major, query->minor), cores = 0;
	struct attributes slice = { .sms = 0 };
	void *device = NULL;
	int named = memcmp(query->uuid, unknown, sizeof(unknown)) != 0;

	pthread_once(&nvml.once, nvml_load);
	if ((*why = nvml.why))
		return 0;
	if (named && find_by_uuid("MIG", query->uuid, &device)) {
		*why = "NVML does not say how many multiprocessors the MIG slice has";
		return nvml.slice(device, &slice) ? 0 : slice.sms;
	}
	*why = "NVML does not know the GPU";
	if (!(named && find_by_uuid("GPU", query->uuid, &device)) && (!*query->bus || nvml.by_bus(query->bus, &device)))
		return 0;
	*why = "NVML does not say how many cores the GPU has, or their number per multiprocessor is not known";
	return per && !nvml.cores(device, &cores) && cores % per == 0 ? cores / per : 0;
}
