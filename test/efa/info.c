/* SPDX-License-Identifier: Apache-2.0 */
/* fi_getinfo and its kin: what the provider offers, and to whom. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/efa/model.h"

#define PUBLIC __attribute__((visibility("default")))
#define NEEDED_MR (OFI_MR_VIRT_ADDR | OFI_MR_ALLOCATED | OFI_MR_PROV_KEY)
#define ENODATA_FI 61 /* FI_ENODATA */

PUBLIC uint32_t fi_version(void);
PUBLIC int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		      const struct ofi_info *hints, struct ofi_info **out);
PUBLIC void fi_freeinfo(struct ofi_info *info);
PUBLIC struct ofi_info *fi_dupinfo(const struct ofi_info *info);
PUBLIC int fi_fabric(struct ofi_fabric_attr *attr, struct ofi_fabric **out, void *context);
PUBLIC const char *fi_strerror(int error);
PUBLIC extern struct model_seen ep_model_seen;

struct model_seen ep_model_seen;

static const struct m_profile profiles[] = {
	{ "efa-direct", true, false },
	{ "efa", false, false },
	{ "efa-emulated", false, true },
};

const struct m_profile *m_profile(void)
{
	const char *want = getenv("EP_MODEL_FABRIC");
	size_t n = want ? strcspn(want, ",") : 0;

	for (size_t i = 0; i < sizeof(profiles) / sizeof(profiles[0]); i++)
		if (n == strlen(profiles[i].name) && !strncmp(want, profiles[i].name, n))
			return &profiles[i];
	return &profiles[0];
}

bool m_calm(void)
{
	const char *want = getenv("EP_MODEL_FABRIC");

	return want && strstr(want, ",calm");
}

uint32_t fi_version(void)
{
	return m_profile()->direct ? OFI_VERSION(2, 4) : OFI_VERSION(1, 22);
}

const char *fi_strerror(int error)
{
	return error == OFI_EAVAIL ? "Error available" : strerror(error);
}

int fi_fabric(struct ofi_fabric_attr *attr, struct ofi_fabric **out, void *context)
{
	return m_fabric_open(attr, out, context);
}

static char *text_copy(const char *text)
{
	return text ? strdup(text) : NULL;
}

#define PART(type, from) \
	memcpy(calloc(1, sizeof(struct type)), (from) ? (const void *)(from) : &(struct type){ 0 }, sizeof(struct type))

struct ofi_info *fi_dupinfo(const struct ofi_info *info)
{
	static const struct ofi_info none;
	struct ofi_info *copy = calloc(1, sizeof(*copy));

	info = info ? info : &none;
	*copy = *info;
	copy->next = NULL;
	copy->src_addr = NULL;
	copy->tx_attr = PART(ofi_tx_attr, info->tx_attr);
	copy->rx_attr = PART(ofi_rx_attr, info->rx_attr);
	copy->ep_attr = PART(ofi_ep_attr, info->ep_attr);
	copy->domain_attr = PART(ofi_domain_attr, info->domain_attr);
	copy->fabric_attr = PART(ofi_fabric_attr, info->fabric_attr);
	copy->domain_attr->name = text_copy(copy->domain_attr->name);
	copy->fabric_attr->name = text_copy(copy->fabric_attr->name);
	copy->fabric_attr->prov_name = text_copy(copy->fabric_attr->prov_name);
	return copy;
}

void fi_freeinfo(struct ofi_info *info)
{
	struct ofi_info *next;

	for (; info; info = next) {
		next = info->next;
		free(info->domain_attr->name);
		free(info->fabric_attr->name);
		free(info->fabric_attr->prov_name);
		free(info->tx_attr);
		free(info->rx_attr);
		free(info->ep_attr);
		free(info->domain_attr);
		free(info->fabric_attr);
		free(info);
	}
}

static bool hints_fit(const struct ofi_info *h, const char *fabric, bool direct)
{
	uint64_t caps =
		OFI_MSG | OFI_RMA | OFI_READ | OFI_WRITE | OFI_RECV | OFI_REMOTE_READ | OFI_REMOTE_WRITE | OFI_HMEM;
	int mr = NEEDED_MR | (direct ? OFI_MR_LOCAL : 0) | (h->caps & OFI_HMEM ? OFI_MR_HMEM : 0);

	if (h->fabric_attr->prov_name && strcmp(h->fabric_attr->prov_name, "efa") != 0)
		return false;
	if (h->fabric_attr->name && strcmp(h->fabric_attr->name, fabric) != 0)
		return false;
	if (h->ep_attr->type != OFI_EP_RDM || h->caps & ~caps || (h->domain_attr->mr_mode & mr) != mr)
		return false;
	if (h->domain_attr->cq_data_size > 4) /* R2 */
		return false;
	/* R6; R1: this device requires FI_RX_CQ_DATA; R12 */
	return !direct ||
	       (h->mode & OFI_CONTEXT2 && h->mode & OFI_RX_CQ_DATA && !(h->tx_attr->op_flags & OFI_DELIVERY_COMPLETE));
}

static struct ofi_info *info_make(const struct ofi_info *hints, const char *fabric, bool direct)
{
	struct ofi_info *i = fi_dupinfo(NULL);

	i->caps = hints->caps;
	i->mode = direct ? OFI_CONTEXT2 | OFI_RX_CQ_DATA : 0;
	i->tx_attr->size = M_TX;
	i->rx_attr->size = M_RX;
	i->ep_attr->type = OFI_EP_RDM;
	i->ep_attr->max_msg_size = direct ? 1u << 30 : UINT64_MAX;
	i->domain_attr->name = strdup("model0-rdm");
	i->domain_attr->mr_mode = NEEDED_MR | (direct ? OFI_MR_LOCAL : hints->domain_attr->mr_mode & OFI_MR_LOCAL) |
				  (hints->caps & OFI_HMEM ? OFI_MR_HMEM : 0);
	i->domain_attr->mr_key_size = 4;
	i->domain_attr->cq_data_size = 4;
	i->domain_attr->av_type = OFI_AV_TABLE;
	i->domain_attr->threading = OFI_THREAD_SAFE;
	i->fabric_attr->name = strdup(fabric);
	i->fabric_attr->prov_name = strdup("efa");
	return i;
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct ofi_info *hints,
	       struct ofi_info **out)
{
	struct ofi_info *list = NULL, **tail = &list;

	(void)version, (void)node, (void)service, (void)flags;
	if (hints_fit(hints, "efa", false)) {
		*tail = info_make(hints, "efa", false);
		tail = &(*tail)->next;
	}
	if (m_profile()->direct && hints_fit(hints, "efa-direct", true))
		*tail = info_make(hints, "efa-direct", true);
	*out = list;
	return list ? 0 : -ENODATA_FI;
}
