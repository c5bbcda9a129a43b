/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: every port of every NIC that is active, allowed and usable. The caller chooses the nearest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/base/lib.h"
#include "net/verbs/verbs.h"
#include "util/error.h"
#include "util/param.h"

#define DEVICES 64

/* One entry of a filter: NAME or NAME:port. */
static bool entry_matches(const char *entry, size_t n, bool exact, const char *name, int port)
{
	const char *colon = memchr(entry, ':', n);
	size_t len = colon ? (size_t)(colon - entry) : n;

	if (colon && strtol(colon + 1, NULL, 10) != port)
		return false;
	return len && !strncmp(entry, name, len) && (!exact || strlen(name) == len);
}

bool vb_name_allowed(const char *filter, const char *name, int port)
{
	bool except = *filter == '^', exact, found = false;

	filter += except;
	exact = *filter == '=';
	filter += exact;
	if (!*filter)
		return true;
	while (*filter && !found) {
		size_t n = strcspn(filter, ",");

		found = entry_matches(filter, n, exact, name, port);
		filter += n + (filter[n] == ',');
	}
	return found != except;
}

/* The kernel driver. soft-RoCE is recognised by the file that names its interface, which may be any NIC. */
static void driver_read(const char *name, char *out, size_t size)
{
	char path[IB_PATH], link[IB_PATH];
	const char *base;
	ssize_t n;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/parent", name);
	if (!access(path, F_OK)) {
		snprintf(out, size, "rdma_rxe");
		return;
	}
	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/driver", name);
	n = readlink(path, link, sizeof(link) - 1);
	link[n > 0 ? n : 0] = 0;
	base = strrchr(link, '/');
	snprintf(out, size, "%s", base ? base + 1 : "");
}

/* The nearest PCI function above the device, or "". */
static void pci_read(const char *name, char *out)
{
	char path[IB_PATH], real[4096];
	unsigned a, b, c, d;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device", name);
	out[0] = 0;
	if (!realpath(path, real))
		return;
	for (char *slash = strrchr(real, '/'); slash && slash != real; slash = strrchr(real, '/')) {
		if (sscanf(slash, "/%x:%x:%x.%x", &a, &b, &c, &d) == 4 && strlen(real) < IB_PATH) {
			memcpy(out, real, strlen(real) + 1);
			return;
		}
		*slash = 0;
	}
}

/* A field of ib_port_attr has one bit set: what it stands for, or 0. */
static uint32_t bit_value(uint8_t bit, const uint32_t values[8])
{
	for (int i = 0; i < 8; i++)
		if (bit == 1u << i)
			return values[i];
	return 0;
}

/* Mb/s. The kernel comes first: it knows speeds that do not fit the byte of ib_port_attr, such as XDR's. */
static uint32_t speed_read(const struct vb_dev *dev)
{
	static const uint32_t lanes[8] = { 1, 4, 8, 12, 2 };
	static const uint32_t lane[8] = { 2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000 };
	char path[IB_PATH];
	double gbps = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%d/rate", dev->ib_name, dev->port);
	f = fopen(path, "re");
	if (f && fscanf(f, "%lf", &gbps) != 1)
		gbps = 0;
	if (f)
		fclose(f);
	return gbps > 0 ? (uint32_t)(gbps * 1000)
			: bit_value(dev->link.width, lanes) * bit_value(dev->link.speed, lane);
}

static struct ib_device *list_find(struct ib_device **list, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(list[i]->name, name))
			return list[i];
	return NULL;
}

struct ib_context *vb_device_open(const struct vb_dev *dev)
{
	struct ib_context *context = NULL;
	struct ib_device *device;
	int n = 0, error = ENODEV;
	struct ib_device **list = vb_api()->get_device_list(&n);

	device = list ? list_find(list, n, dev->ib_name) : NULL;
	if (device) {
		errno = EIO;
		context = vb_api()->open_device(device);
		error = errno;
	}
	if (list)
		vb_api()->free_device_list(list);
	errno = error;
	return context;
}

const char *vb_port_state(unsigned state)
{
	static const char *const states[] = { "unknown",
					      "DOWN",
					      "INIT (not yet configured by the subnet manager)",
					      "ARMED (not yet activated by the subnet manager)",
					      "ACTIVE",
					      "ACTIVE_DEFER" };

	return states[state < sizeof(states) / sizeof(states[0]) ? state : 0];
}

bool vb_port_is_up(unsigned state)
{
	return state == IB_PORT_ACTIVE || state == IB_PORT_ACTIVE_DEFER;
}

/* Why a port cannot be used, or NULL. */
static const char *port_refused(const struct vb_dev *dev, const struct ib_device *device)
{
	static _Thread_local char text[96];

	if (dev->profile->refused)
		return dev->profile->refused;
	if (device->transport != IB_TRANSPORT_IB)
		return device->transport == IB_TRANSPORT_IWARP ? "iWARP carries no immediate data"
							       : "it has no RC queue pairs";
	if (vb_port_is_up(dev->link.state))
		return NULL;
	snprintf(text, sizeof(text), "the port is %s; check the cable or ip link", vb_port_state(dev->link.state));
	return text;
}

/* Which memory can be registered; probed once. */
static void memory_probe(struct ib_context *context, struct vb_dev *dev)
{
	struct ib_pd *pd = vb_api()->alloc_pd(context);

	dev->dmabuf = pd && vb_dmabuf_probe(pd);
	dev->kinds = vb_kinds_probe(dev->dmabuf);
	if (pd)
		vb_api()->dealloc_pd(pd);
}

static int port_take(struct vb_net *net, struct ib_context *context, const struct ib_device *device, struct vb_dev *dev)
{
	const char *why;
	int rc;

	rc = vb_api()->query_port(context, dev->port, &dev->link);
	if (rc) {
		ep_base_note("verbs", "%s is left out: ibv_query_port: %s", dev->name, strerror(rc));
		return 0;
	}
	why = port_refused(dev, device);
	if (why) {
		ep_base_note("verbs", "%s is left out: %s", dev->name, why);
		return 0;
	}
	if (!dev->link.max_msg_sz) /* not every driver reports it; the specification allows 2 GiB */
		dev->link.max_msg_sz = 1u << 30;
	dev->roce = dev->link.link_layer == IB_LINK_ETHERNET;
	dev->speed = speed_read(dev);
	rc = vb_gid_find(context, dev, net->gid ? (int)net->gid - 1 : (int)ep_param_int(EP_P_IB_GID_INDEX));
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	memory_probe(context, dev);
	EP_INFO(EP_NET, "verbs: device %d: %s: %s, %s, MTU %u, %d queue pairs, device memory by %s", net->base.count,
		dev->name, dev->profile->family, dev->roce ? "RoCE" : "InfiniBand", 128u << dev->link.active_mtu,
		dev->attr.max_qp,
		dev->dmabuf			     ? "dma-buf"
		: dev->kinds == NCCL_EP_NET_MEM_HOST ? "staging"
						     : "peermem");
	net->devs[net->base.count++] = *dev;
	return 0;
}

static int device_take(struct vb_net *net, struct ib_device *device, const char *filter)
{
	char driver[64];
	struct vb_dev dev = { .port = 0 };
	struct ib_context *context;
	int rc;

	snprintf(dev.name, sizeof(dev.name), "%s", device->name);
	snprintf(dev.ib_name, sizeof(dev.ib_name), "%s", device->name);
	driver_read(device->name, driver, sizeof(driver));
	pci_read(device->name, dev.pci);
	dev.profile = ep_verbs_profile_of(net->profile[0] ? net->profile : driver);
	context = vb_device_open(&dev);
	if (!context) {
		ep_base_note("verbs", "%s is left out: ibv_open_device: %s; is /dev/infiniband in this container?",
			     dev.name, strerror(errno));
		return 0;
	}
	rc = vb_api()->query_device(context, &dev.attr);
	if (rc)
		ep_base_note("verbs", "%s is left out: ibv_query_device: %s", device->name, strerror(rc));
	for (int port = 1; !rc && port <= dev.attr.ports && net->base.count < DEVICES; port++) {
		dev.port = (uint8_t)port;
		snprintf(dev.name, sizeof(dev.name), "%s:%d", device->name, port);
		if (!vb_name_allowed(filter, device->name, port)) {
			ep_base_note("verbs", "%s is left out: NCCL_EP_IB_HCA=%s", dev.name, filter);
			continue;
		}
		rc = port_take(net, context, device, &dev);
	}
	vb_api()->close_device(context);
	return rc == -EP_EARG ? rc : 0;
}

static int device_compare(const void *a, const void *b)
{
	return strverscmp((*(struct ib_device *const *)a)->name, (*(struct ib_device *const *)b)->name);
}

int vb_devices_find(struct vb_net *net)
{
	const char *filter = net->hca[0] ? net->hca : ep_param_str(EP_P_IB_HCA);
	struct ib_device **list;
	int n = 0, rc = 0;

	if (!vb_api())
		return 0;
	net->devs = EP_CALLOC(EP_NET, DEVICES, sizeof(*net->devs), "devices");
	if (!net->devs)
		return -ENOMEM;
	list = vb_api()->get_device_list(&n);
	if (!list || !n)
		ep_base_note("verbs", "no RDMA device; check /sys/class/infiniband, the NIC driver and ib_uverbs");
	/* By name, the same on every host; the library's order is that of discovery. */
	if (list && n > 0)
		qsort(list, (size_t)n, sizeof(list[0]), device_compare);
	for (int i = 0; list && i < n && !rc; i++)
		rc = device_take(net, list[i], filter);
	if (list)
		vb_api()->free_device_list(list);
	if (net->base.count) /* why others were left out is no error */
		ep_last_error_set("");
	return rc;
}
