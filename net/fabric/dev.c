/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a libfabric provider, and its devices. */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/base/lib.h"
#include "net/fabric/fabric.h"
#include "util/error.h"
#include "util/sock.h"

#define PICKS 16
#define EFA_REMEDY "the security group must allow all traffic within itself"

/* In the order in which they are tried. The last row is for all other providers. */
static const struct fab_profile profiles[] = {
	/* Since libfabric 2.0, on devices with RDMA write: every operation is one of the device. */
	{ .name = "efa",
	  .fabric = "efa-direct",
	  .found = true,
	  .hmem = true,
	  .efa = true,
	  .contexts = 2,
	  .remedy = EFA_REMEDY },
	/* With protocols of its own, and shared memory between processes of a host, above the device. */
	{ .name = "efa", .found = true, .hmem = true, .efa = true, .contexts = 2, .remedy = EFA_REMEDY },
	{ .name = "cxi",
	  .found = true,
	  .hmem = true,
	  .remedy = "set FI_CXI_ENABLE_WRITEDATA=1, which cxi needs for immediate data" },
	{ .name = "verbs;ofi_rxm",
	  .refused = "InfiniBand and RoCE have a transport of their own; use NCCL_EP_NET=verbs" },
	{ .name = "tcp", .found = true, .remedy = "check firewalls and NCCL_EP_SOCKET_IFNAME" },
	{ .name = "shm",
	  .entangled = true,
	  .early = true,
	  .remedy = "shm needs ranks of one user on one host, and process_vm_writev between them" },
	{ .name = NULL },
};
#define PROFILES ((int)(sizeof(profiles) / sizeof(profiles[0])))

/* What fi_getinfo is asked for. delivery: completion at delivery, not at transmission. */
struct wish {
	const char *provider, *fabric;
	bool hmem, delivery, host_only;
};

static struct ofi_info *hints_make(const struct wish *wish)
{
	struct ofi_info *h = fab_api()->fi_dupinfo(NULL);

	if (!h)
		return NULL;
	h->caps = OFI_MSG | OFI_RMA | (wish->hmem ? OFI_HMEM : 0);
	h->mode = OFI_CONTEXT | OFI_CONTEXT2 | OFI_RX_CQ_DATA;
	h->tx_attr->op_flags = wish->delivery ? OFI_DELIVERY_COMPLETE : 0;
	h->ep_attr->type = OFI_EP_RDM;
	/*
	 * Without FI_MR_RAW (keys longer than 8 bytes) and FI_MR_MMU_NOTIFY: providers that require them are excluded.
	 */
	h->domain_attr->mr_mode = OFI_MR_LOCAL | OFI_MR_VIRT_ADDR | OFI_MR_ALLOCATED | OFI_MR_PROV_KEY |
				  OFI_MR_RMA_EVENT | OFI_MR_ENDPOINT | (wish->hmem ? OFI_MR_HMEM : 0);
	/* Memory is registered while contexts are in use. Contexts have separate domains, so they share no locks. */
	h->domain_attr->threading = OFI_THREAD_SAFE;
	h->domain_attr->control_progress = OFI_PROGRESS_MANUAL;
	h->domain_attr->data_progress = OFI_PROGRESS_MANUAL;
	h->domain_attr->resource_mgmt = OFI_RM_ENABLED;
	h->domain_attr->av_type = OFI_AV_UNSPEC;
	h->domain_attr->cq_data_size = 4;
	h->fabric_attr->prov_name = strdup(wish->provider); /* fi_freeinfo frees both */
	h->fabric_attr->name = wish->fabric ? strdup(wish->fabric) : NULL;
	return h;
}

static struct ofi_info *list_ask(const struct wish *wish)
{
	struct ofi_info *hints = hints_make(wish), *list = NULL;
	int rc = hints ? fab_api()->fi_getinfo(fab_version(), NULL, NULL, 0, hints, &list) : -ENOMEM;

	if (hints)
		fab_api()->fi_freeinfo(hints);
	EP_TRACE(EP_NET, "fabric: provider %s, fabric %s,%s%s: %s", wish->provider, wish->fabric ? wish->fabric : "any",
		 wish->hmem ? " hmem" : "", wish->delivery ? " delivery" : "",
		 rc ? fab_api()->fi_strerror(-rc) : "offered");
	return rc ? NULL : list;
}

/* The best offer: device memory first, then delivery completion. */
static struct ofi_info *list_find(const struct fab_net *net, struct wish *wish, const struct fab_profile *profile)
{
	struct ofi_info *list;

	for (int i = 0; i < 4; i++) {
		wish->hmem = i < 2;
		wish->delivery = i % 2 == 0;
		if (wish->hmem && (!profile->hmem || wish->host_only || fab_version() < OFI_VERSION(1, 18)))
			continue;
		if (wish->delivery && (profile->early || !net->delivery))
			continue;
		list = list_ask(wish);
		if (list)
			return list;
	}
	return NULL;
}

/* IP interfaces must be ones the bootstrap would use, so that NCCL_EP_SOCKET_IFNAME covers both. */
static bool addr_picked(const struct ofi_info *info, const union ep_sockaddr *picks, int n)
{
	const union ep_sockaddr *a = info->src_addr;

	if (info->addr_format != OFI_SOCKADDR_IN && info->addr_format != OFI_SOCKADDR_IN6)
		return true;
	for (int i = 0; i < n && a; i++) {
		if (a->any.sa_family != picks[i].any.sa_family)
			continue;
		if (a->any.sa_family == AF_INET && a->v4.sin_addr.s_addr == picks[i].v4.sin_addr.s_addr)
			return true;
		if (a->any.sa_family == AF_INET6 && !memcmp(&a->v6.sin6_addr, &picks[i].v6.sin6_addr, 16))
			return true;
	}
	return false;
}

static bool info_usable(const struct fab_net *net, const struct ofi_info *info)
{
	if (!info->domain_attr->name || !info->fabric_attr->prov_name)
		return false;
	for (int i = 0; i < net->base.count; i++)
		if (!strcmp(net->devs[i].info->domain_attr->name, info->domain_attr->name))
			return false;
	if (info->domain_attr->cq_data_size >= 4 && info->domain_attr->mr_key_size <= 8)
		return true;
	ep_base_note("fabric",
		     "%s of provider %s: %zu bytes of immediate data, keys of %zu; needed are 4 and at most 8",
		     info->domain_attr->name, info->fabric_attr->prov_name, info->domain_attr->cq_data_size,
		     info->domain_attr->mr_key_size);
	return false;
}

static void dev_add(struct fab_net *net, struct ofi_info *info, const struct fab_profile *profile,
		    const struct wish *wish)
{
	struct fab_dev *dev = &net->devs[net->base.count++];

	*dev = (struct fab_dev){
		.info = info,
		.profile = profile,
		.receives = info->mode & OFI_RX_CQ_DATA,
		.hmem = wish->hmem,
		.dmabuf = wish->hmem && fab_version() >= OFI_VERSION(1, 20),
		.delivery = wish->delivery ? OFI_DELIVERY_COMPLETE : 0,
	};
	if (profile->efa)
		info->tx_attr->tclass =
			OFI_TC_LOW_LATENCY; /* a service level of the device; the provider ignores all others */
	if (info->nic && info->nic->bus_attr && info->nic->bus_attr->bus_type == OFI_BUS_PCI)
		snprintf(dev->pci, sizeof(dev->pci), "/sys/bus/pci/devices/%04x:%02x:%02x.%x",
			 info->nic->bus_attr->pci.domain_id, info->nic->bus_attr->pci.bus_id,
			 info->nic->bus_attr->pci.device_id, info->nic->bus_attr->pci.function_id);
	if (info->nic && info->nic->link_attr)
		dev->speed = (uint32_t)(info->nic->link_attr->speed / 1000000);
	EP_INFO(EP_NET,
		"fabric: device %d: %s of provider %s, fabric %s: mr_mode %#x, %zu bytes of immediate data, %s%s%s",
		net->base.count - 1, info->domain_attr->name, info->fabric_attr->prov_name,
		info->fabric_attr->name ? info->fabric_attr->name : "?", (unsigned)info->domain_attr->mr_mode,
		info->domain_attr->cq_data_size, wish->delivery ? "delivery completion" : "transmit completion",
		dev->receives ? ", posts receives" : "", dev->hmem ? ", device memory" : "");
}

void fab_devices_drop(struct fab_net *net)
{
	if (net->list)
		fab_api()->fi_freeinfo(net->list);
	free(net->devs);
	net->list = NULL;
	net->devs = NULL;
	net->base.count = 0;
}

/* Takes the infos of a provider as devices, one per domain. False: none is usable. */
static bool list_take(struct fab_net *net, struct ofi_info *list, const struct fab_profile *profile,
		      const struct wish *wish)
{
	union ep_sockaddr picks[PICKS];
	char why[256];
	int n = 0, count = 0;

	for (struct ofi_info *i = list; i; i = i->next)
		count++;
	if (list->addr_format == OFI_SOCKADDR_IN || list->addr_format == OFI_SOCKADDR_IN6)
		n = ep_sock_pick(picks, PICKS, why, sizeof(why));
	net->devs = EP_CALLOC(EP_NET, (size_t)count, sizeof(*net->devs), "devices");
	for (struct ofi_info *i = list; i && net->devs; i = i->next)
		if (addr_picked(i, picks, n) && info_usable(net, i))
			dev_add(net, i, profile, wish);
	net->list = list;
	if (!net->base.count)
		fab_devices_drop(net);
	return net->base.count;
}

/* NULL after a note: nothing usable. */
static struct ofi_info *list_best(const struct fab_net *net, struct wish *wish, const struct fab_profile *profile)
{
	struct ofi_info *list = list_find(net, wish, profile);
	uint32_t version = fab_api()->fi_version();

	if (!list)
		ep_base_note("fabric", "libfabric %u.%u has no provider %s%s%s with a device", version >> 16,
			     version & 0xffff, wish->provider, wish->fabric ? ", fabric " : "",
			     wish->fabric ? wish->fabric : "");
	return list;
}

/* 0, -ENOTSUP: it emulates writes and was not asked to, or the error of opening an endpoint as comms need it. */
static int dev_probe(const struct fab_net *net, const struct fab_dev *dev)
{
	struct fab_comm comm = { .base.nranks = 1, .dev = dev };
	struct fab_ctx *ctx;
	int rc = fab_ctx_open(&comm, 0, &ctx);

	if (rc)
		return rc;
	if (fab_ctx_emulated(ctx) && !net->emulated)
		rc = -ENOTSUP;
	fab_ctx_close(ctx);
	return rc;
}

static void emulated_refuse(const struct fab_net *net)
{
	ep_base_note("fabric",
		     "%s of provider %s has no RDMA write: the provider would emulate it, and the CPU of the receiver "
		     "copy every byte; NCCL_EP_NET=fabric:emulated=1 accepts that",
		     net->devs[0].info->domain_attr->name, net->devs[0].info->fabric_attr->prov_name);
	EP_WARN(EP_NET, "fabric: %s", ep_last_error());
}

/* True: its devices are in the net. */
static bool wish_take(struct fab_net *net, struct wish *wish, const struct fab_profile *profile)
{
	struct ofi_info *list = list_best(net, wish, profile);
	int rc = 0;

	if (!list || !list_take(net, list, profile, wish))
		return false;
	if (wish->hmem || profile->efa)
		rc = dev_probe(net, &net->devs[0]);
	if (!rc)
		return true;
	if (rc == -ENOTSUP)
		emulated_refuse(net);
	else if (wish->hmem)
		EP_INFO(EP_NET, "fabric: %s cannot access device memory; staging through host memory",
			net->devs[0].info->domain_attr->name);
	wish->host_only = rc != -ENOTSUP && wish->hmem;
	fab_devices_drop(net);
	return false;
}

static void provider_take(struct fab_net *net, const char *name, const struct fab_profile *profile)
{
	struct wish wish = { .provider = name, .fabric = profile->fabric };

	if (profile->refused) {
		ep_base_note("fabric", "provider %s: %s", name, profile->refused);
		return;
	}
	if (wish_take(net, &wish, profile) || !wish.host_only)
		return;
	/* It would call CUDA itself: ask again, for host memory only. */
	wish = (struct wish){ .provider = name, .fabric = profile->fabric, .host_only = true };
	wish_take(net, &wish, profile);
}

static bool profile_fits(const struct fab_net *net, const struct fab_profile *p)
{
	if (p->fabric && !net->direct)
		return false;
	return net->provider[0] ? p->name && !strcmp(p->name, net->provider) : p->found;
}

/* A provider may have several rows, one per fabric; one without any uses the last. */
void fab_devices_find(struct fab_net *net)
{
	bool named = false;

	if (!fab_api())
		return;
	for (int i = 0; i < PROFILES && !net->base.count; i++) {
		if (!profile_fits(net, &profiles[i]))
			continue;
		provider_take(net, profiles[i].name, &profiles[i]);
		named = true;
	}
	if (!named)
		provider_take(net, net->provider, &profiles[PROFILES - 1]);
}
