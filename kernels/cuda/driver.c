/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "util/error.h"

struct ep_cu_api ep_cu;

/* One per process, as the driver is. */
static struct {
	pthread_once_t once;
	bool loaded;
	char why[384];
} driver = { .once = PTHREAD_ONCE_INIT };

static const struct {
	const char *name;
	size_t slot;
	bool needed;
} symbols[] = {
#define EP_CU_SYM(needed, symbol, parameters) { #symbol, offsetof(struct ep_cu_api, symbol), needed },
#include "kernels/cuda/symbols.h"
#undef EP_CU_SYM
};

static void driver_load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		const char *why = dlerror();

		snprintf(driver.why, sizeof(driver.why),
			 "no CUDA driver: %s; install NVIDIA's driver, expose its libraries to the container, or use "
			 "the "
			 "host device",
			 why ? why : "libcuda.so.1 cannot be opened");
		return;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlsym(lib, symbols[i].name);

		if (!symbol && symbols[i].needed) {
			snprintf(driver.why, sizeof(driver.why),
				 "the CUDA driver is too old: libcuda.so.1 has no %s; install a driver of CUDA 11.0 or "
				 "newer",
				 symbols[i].name);
			return;
		}
		memcpy((char *)&ep_cu + symbols[i].slot, &symbol, sizeof(symbol));
	}
	/* Never closed: other libraries of the process use the driver too, and its threads outlive us. */
	driver.loaded = true;
}

static int absent(const char *why)
{
	ep_last_error_set(why);
	EP_INFO(EP_DEV, "%s", why);
	return -ENODEV;
}

int ep_cu_load(void)
{
	pthread_once(&driver.once, driver_load);
	return driver.loaded ? 0 : absent(driver.why);
}

int ep_cu_init(void)
{
	int rc = ep_cu_load();
	unsigned result;

	if (rc)
		return rc;
	result = ep_cu.cuInit(0); /* idempotent, and cheap after the first call */
	if (result == EP_CU_NO_DEVICE)
		return absent("the CUDA driver sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES");
	return ep_cu_check_(result, "cuInit", __FILE__, __LINE__, "at start");
}

#define KERNEL_LOST "an earlier kernel failed and the context is lost: run under compute-sanitizer to find it"

/* What the user can do; the first entry that covers the result applies. */
static const struct {
	unsigned first, last;
	const char *remedy;
} remedies[] = {
	{ EP_CU_OUT_OF_MEMORY, EP_CU_OUT_OF_MEMORY,
	  "GPU memory is full: leave more of it free, or use fewer tokens per rank" },
	{ EP_CU_NOT_INITIALIZED, EP_CU_NOT_INITIALIZED,
	  "CUDA does not work in a child forked after it was initialised: start ranks by exec or spawn" },
	{ EP_CU_NO_DEVICE, EP_CU_NO_DEVICE, "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES" },
	{ EP_CU_INVALID_DEVICE, EP_CU_INVALID_DEVICE,
	  "that GPU is not visible to this process: check CUDA_VISIBLE_DEVICES of all ranks" },
	{ EP_CU_INVALID_CONTEXT, EP_CU_INVALID_CONTEXT,
	  "the CUDA context was destroyed, or belongs to another device, while the group was alive" },
	{ EP_CU_NO_BINARY, EP_CU_NO_BINARY,
	  "this build has no code for this GPU: add its compute capability to the build option archs_cuda" },
	{ EP_CU_PTX_VERSION, EP_CU_PTX_VERSION,
	  "the driver is older than the CUDA of this build: update it, or build with an older CUDA" },
	{ EP_CU_PEER_UNSUPPORTED, EP_CU_PEER_UNSUPPORTED, "no NVLink or PCIe peer path between these GPUs" },
	{ EP_CU_INVALID_HANDLE, EP_CU_INVALID_HANDLE,
	  "the stream or function belongs to another context or was destroyed" },
	{ EP_CU_ILLEGAL_ADDRESS, EP_CU_ILLEGAL_ADDRESS, KERNEL_LOST },
	{ EP_CU_KERNEL_FAULT_FIRST, EP_CU_KERNEL_FAULT_LAST, KERNEL_LOST },
	{ EP_CU_TOO_MANY_PEERS, EP_CU_TOO_MANY_PEERS, "use fewer GPUs per process, or one process per GPU" },
	{ EP_CU_SYSTEM_NOT_READY, EP_CU_SYSTEM_NOT_READY, "start the NVIDIA fabric manager on this machine" },
	{ EP_CU_DRIVER_MISMATCH, EP_CU_DRIVER_MISMATCH,
	  "kernel module and libcuda versions differ: reboot, or use the host's libcuda in the container" },
	{ EP_CU_MPS_CONNECTIONS, EP_CU_MPS_CONNECTIONS,
	  "the processes under MPS have too many queues together: set CUDA_DEVICE_MAX_CONNECTIONS=2 for each, or run "
	  "fewer" },
	{ EP_CU_MPS_FIRST, EP_CU_MPS_LAST, "restart the MPS daemon, or unset CUDA_MPS_PIPE_DIRECTORY" },
	{ EP_CU_CAPTURE_FIRST, EP_CU_CAPTURE_LAST, "not allowed while the stream is being captured" },
};

static const char *remedy_of(unsigned result)
{
	for (size_t i = 0; i < sizeof(remedies) / sizeof(remedies[0]); i++)
		if (result >= remedies[i].first && result <= remedies[i].last)
			return remedies[i].remedy;
	return "";
}

const char *ep_cu_name(unsigned result)
{
	const char *name = NULL;

	if (ep_cu.cuGetErrorName(result, &name) || !name)
		return "unknown error";
	return name;
}

int ep_cu_check_(unsigned result, const char *call, const char *file, int line, const char *fmt, ...)
{
	const char *text = NULL, *remedy;
	char what[256];
	va_list ap;

	if (!result)
		return 0;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (ep_cu.cuGetErrorString(result, &text) || !text)
		text = "no text";
	remedy = remedy_of(result);
	return ep_fail_(EP_DEV, file, line, EP_EDEVICE, "%s: %s (%u, %s) %s%s%s", call, ep_cu_name(result), result,
			text, what, *remedy ? "; " : "", remedy);
}

void ep_cu_note_(unsigned result, const char *call)
{
	/* The driver has already shut down at process exit: nothing is left to clean up. */
	if (result && result != EP_CU_DEINITIALIZED)
		EP_WARN(EP_DEV, "%s: %s (%u) while cleaning up", call, ep_cu_name(result), result);
}
