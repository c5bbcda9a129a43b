/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_dev.h"
#include "kernels/cuda/nic.h"
#include "kernels/cuda/nvml.h"
#include "util/error.h"
#include "util/param.h"

static int cuda_count(int *out)
{
	int rc = ep_cu_init();

	return rc ? rc : EP_CU(cuDeviceGetCount, (out), "when counting GPUs");
}

static int ordinal_of(int device, int *out)
{
	int count, one, rc = EP_CU(cuDeviceGetCount, (&count), "when counting GPUs");

	for (int i = 0; !rc && i < count; i++) {
		if ((rc = EP_CU(cuDeviceGet, (&one, i), "for GPU %d", i)))
			break;
		if (one == device) {
			*out = i;
			return 0;
		}
	}
	return rc ? rc : EP_FAIL(EP_DEV, EP_EINTERNAL, "CUDA device %d has no ordinal", device);
}

/* cudaSetDevice does not always create a context: then only the runtime knows the thread's device. It may be loaded
 * outside the scope of RTLD_DEFAULT (Python opens its modules with RTLD_LOCAL). */
static int runtime_device(int *out)
{
	static const char *const names[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0" };
	void *lib = NULL, *symbol = dlsym(RTLD_DEFAULT, "cudaGetDevice");
	int (*get)(int *);
	int device, rc = -ENODEV;

	for (size_t i = 0; !symbol && i < sizeof(names) / sizeof(names[0]); i++)
		if ((lib = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD)) && !(symbol = dlsym(lib, "cudaGetDevice"))) {
			dlclose(lib);
			lib = NULL;
		}
	get = (int (*)(int *))symbol;
	if (get && get(&device) == 0) {
		*out = device;
		rc = 0;
	}
	if (lib)
		dlclose(lib);
	return rc;
}

/* Does not initialise the driver: if it is not initialised yet, no thread has a device. */
static int cuda_current(int *ordinal)
{
	struct CUctx_st *ctx = NULL;
	int device, rc = ep_cu_load();

	if (rc)
		return rc;
	if (ep_cu.cuCtxGetCurrent(&ctx) == EP_CU_OK && ctx) {
		rc = EP_CU(cuCtxGetDevice, (&device), "of the current context");
		return rc ? rc : ordinal_of(device, ordinal);
	}
	if (!runtime_device(ordinal))
		return 0;
	ep_last_error_set("this thread has no current CUDA device: call cudaSetDevice first");
	return -ENODEV;
}

/* 0 for attributes this driver does not know. */
static int attribute(const struct ep_cuda_dev *dev, unsigned id)
{
	int value = 0;

	return ep_cu.cuDeviceGetAttribute(&value, id, dev->device) ? 0 : value;
}

/* The driver writes hexadecimal digits in upper case, sysfs in lower case. */
static void pci_find(struct ep_cuda_dev *dev)
{
	char id[32] = "";

	if (!ep_cu.cuDeviceGetPCIBusId || ep_cu.cuDeviceGetPCIBusId(id, sizeof(id), dev->device))
		return;
	for (char *c = id; *c; c++)
		*c = (char)tolower(*c);
	snprintf(dev->dev.pci, sizeof(dev->dev.pci), "/sys/bus/pci/devices/%s", id);
}

void ep_cuda_uuid(int device, uint8_t uuid[16])
{
	memset(uuid, 0, 16);
	if (ep_cu.cuDeviceGetUuid_v2 && ep_cu.cuDeviceGetUuid_v2((struct CUuuid_st *)uuid, device))
		memset(uuid, 0, 16);
}

/* With the context current. The attribute is already what an MPS percentage or a MIG slice leaves this process; what a
 * green context leaves only the context knows. */
static void sms_find(struct ep_cuda_dev *dev)
{
	const char *bus = strrchr(dev->dev.pci, '/'), *why;
	struct ep_nvml_query query = { .uuid = dev->dev.uuid,
				       .bus = bus ? bus + 1 : "",
				       .major = attribute(dev, EP_CU_DEV_CC_MAJOR),
				       .minor = attribute(dev, EP_CU_DEV_CC_MINOR) };
	struct ep_cu_resource part = { .sms = 0 };
	unsigned all = ep_nvml_sms(&query, &why);

	if (ep_cu.cuCtxGetDevResource && !ep_cu.cuCtxGetDevResource(dev->ctx, &part, EP_CU_RESOURCE_SM) && part.sms &&
	    part.sms < dev->dev.sms)
		dev->dev.sms = part.sms;
	if (all >= dev->dev.sms)
		dev->dev.sms_all = all;
	else
		EP_INFO(EP_DEV, "GPU %d: the number of its multiprocessors is not known (%s): taking the %u seen here",
			dev->dev.ordinal, all ? "NVML counts fewer than CUDA" : why, dev->dev.sms);
}

static void nic_writes_find(struct ep_cuda_dev *dev)
{
	struct ep_cuda_nic nic = { .major = attribute(dev, EP_CU_DEV_CC_MAJOR) };

	nic.orders = attribute(dev, EP_CU_DEV_RDMA_ORDERING) >= EP_CU_RDMA_ORDER_OWNER;
	nic.host_page_tables = attribute(dev, EP_CU_DEV_HOST_PAGE_TABLES);
	dev->dev.nic_flush = ep_cuda_nic_flush(nic);
	dev->dev.nic_ordered = ep_cuda_nic_ordered(nic);
}

static int device_find(struct ep_cuda_dev *dev)
{
	int count, ordinal = dev->dev.ordinal, rc = cuda_count(&count);

	if (rc == -ENODEV)
		return EP_FAIL(EP_DEV, ENODEV, "%s", ep_last_error());
	if (rc)
		return rc;
	if (ordinal < 0 || ordinal >= count)
		return EP_FAIL(EP_DEV, EP_EDEVICE, "no GPU %d: this process sees %d; check CUDA_VISIBLE_DEVICES",
			       ordinal, count);
	if ((rc = EP_CU(cuDeviceGet, (&dev->device, ordinal), "for GPU %d", ordinal)))
		return rc;
	dev->dev.warp = (unsigned)attribute(dev, EP_CU_DEV_WARP);
	dev->dev.sms = (unsigned)attribute(dev, EP_CU_DEV_SMS);
	if (dev->dev.warp != 32 || !dev->dev.sms)
		return EP_FAIL(EP_DEV, EP_EDEVICE,
			       "GPU %d: the driver reports warps of %u and %u multiprocessors; kernels need warps of "
			       "32",
			       ordinal, dev->dev.warp, dev->dev.sms);
	dev->vmm = attribute(dev, EP_CU_DEV_VMM) && attribute(dev, EP_CU_DEV_POSIX_FD) && ep_param_bool(EP_P_CUDA_VMM);
	dev->vmm_rdma = attribute(dev, EP_CU_DEV_RDMA_WITH_VMM);
	dev->dmabuf = ep_cu.cuMemGetHandleForAddressRange && attribute(dev, EP_CU_DEV_DMABUF);
	nic_writes_find(dev);
	pci_find(dev);
	ep_cuda_uuid(dev->device, dev->dev.uuid);
	return 0;
}

/* The caller's context if it is on this device: its streams belong to it. Else the primary one, as the runtime does. */
static int context_take(struct ep_cuda_dev *dev)
{
	struct CUctx_st *current = NULL;
	int device, rc = EP_CU(cuCtxGetCurrent, (&current), "for GPU %d", dev->dev.ordinal);

	if (rc)
		return rc;
	if (current) {
		if ((rc = EP_CU(cuCtxGetDevice, (&device), "of the current context")))
			return rc;
		if (device == dev->device) {
			dev->ctx = current;
			return 0;
		}
	}
	rc = EP_CU(cuDevicePrimaryCtxRetain, (&dev->ctx, dev->device), "for GPU %d", dev->dev.ordinal);
	dev->primary = !rc;
	return rc;
}

static void context_drop(struct ep_cuda_dev *dev)
{
	if (dev->primary)
		EP_CU_NOTE(cuDevicePrimaryCtxRelease_v2, (dev->device));
}

static void device_log(const struct ep_cuda_dev *dev)
{
	char name[96] = "?";
	int version = 0;

	if (!ep_log_on(EP_LOG_INFO, EP_DEV))
		return;
	ep_cu.cuDeviceGetName(name, sizeof(name), dev->device);
	ep_cu.cuDriverGetVersion(&version);
	EP_INFO(EP_DEV,
		"GPU %d: %s, compute capability %d.%d, driver for CUDA %d.%d, %u of %u multiprocessors, %zu bytes of "
		"shared memory",
		dev->dev.ordinal, name, attribute(dev, EP_CU_DEV_CC_MAJOR), attribute(dev, EP_CU_DEV_CC_MINOR),
		version / 1000, version % 1000 / 10, dev->dev.sms, dev->dev.sms_all, dev->dev.shared_max);
	EP_INFO(EP_DEV, "GPU %d: %s context, windows by %s, NIC writes %s", dev->dev.ordinal,
		dev->primary ? "primary" : "the caller's", dev->vmm ? "virtual memory handles" : "CUDA IPC",
		dev->dev.nic_flush     ? "must be flushed by the NIC"
		: dev->dev.nic_ordered ? "in order"
				       : "not in order");
}

static int cuda_open(int ordinal, struct ep_dev **out)
{
	struct ep_cuda_dev *dev = EP_CALLOC(EP_DEV, 1, sizeof(*dev), "a CUDA device");
	struct ep_cuda_scope scope;
	int rc;

	if (!dev)
		return -ENOMEM;
	dev->dev.ops = ep_dev_row(EP_DEV_CUDA);
	dev->dev.ordinal = ordinal;
	if ((rc = device_find(dev)) || (rc = context_take(dev)))
		goto free_dev;
	if ((rc = ep_cuda_enter(dev, &scope)))
		goto drop_context;
	if ((rc = EP_CU(cuStreamCreate, (&dev->work, EP_CU_STREAM_NON_BLOCKING), "on GPU %d", ordinal)))
		goto leave;
	if ((rc = ep_cuda_stage_open(dev)))
		goto destroy_stream;
	if ((rc = ep_cuda_code_get(dev, &dev->code)))
		goto close_stage;
	dev->dev.shared_max = (size_t)dev->code->shared_max;
	sms_find(dev);
	ep_cuda_leave(&scope);
	device_log(dev);
	*out = &dev->dev;
	return 0;
close_stage:
	ep_cuda_stage_close(dev, true);
destroy_stream:
	EP_CU_NOTE(cuStreamDestroy_v2, (dev->work));
leave:
	ep_cuda_leave(&scope);
drop_context:
	context_drop(dev);
free_dev:
	free(dev);
	return rc;
}

static void cuda_close(struct ep_dev *base)
{
	struct ep_cuda_dev *dev = base ? ep_cuda(base) : NULL;
	struct ep_cuda_scope scope;

	if (!dev)
		return;
	if (ep_cuda_enter(dev, &scope)) {
		/* The context no longer exists, nor anything in it. */
		ep_cuda_code_forget(dev->code);
		ep_cuda_stage_close(dev, false);
	} else {
		ep_cuda_code_put(dev->code);
		ep_cuda_stage_close(dev, true);
		EP_CU_NOTE(cuStreamDestroy_v2, (dev->work));
		ep_cuda_leave(&scope);
	}
	context_drop(dev);
	free(dev);
}

const struct ep_dev_ops ep_cuda_ops = {
	.name = "cuda",
	.kind = EP_DEV_CUDA,
	.count = cuda_count,
	.current = cuda_current,
	.open = cuda_open,
	.close = cuda_close,
	.mem_alloc = ep_cuda_mem_alloc,
	.mem_free = ep_cuda_mem_free,
	.mem_export = ep_cuda_mem_export,
	.mem_import = ep_cuda_mem_import,
	.mem_dmabuf = ep_cuda_mem_dmabuf,
	.peer_open = ep_cuda_peer_open,
	.pinned_alloc = ep_cuda_pinned_alloc,
	.pinned_free = ep_cuda_pinned_free,
	.pin = ep_cuda_pin,
	.unpin = ep_cuda_unpin,
	.launch = ep_cuda_launch,
	.copy = ep_cuda_copy,
	.fill = ep_cuda_fill,
	.sync = ep_cuda_sync,
	.peek = ep_cuda_peek,
	.stream_create = ep_cuda_stream_create,
	.stream_destroy = ep_cuda_stream_destroy,
	.capturing = ep_cuda_capturing,
	.address = ep_cuda_address,
	.knows_buffers = true,
	.buffer_id = ep_cuda_buffer_id,
	.user_export = ep_cuda_user_export,
	.user_import = ep_cuda_user_import,
};
