/* SPDX-License-Identifier: Apache-2.0 */
/* Fabrics, domains, address vectors and registrations. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "test/efa/model.h"

static int plain_close(struct ofi_fid *fid)
{
	free(fid);
	return 0;
}

/* ---- address vectors ---- */

static int av_close(struct ofi_fid *fid)
{
	struct m_av *av = (struct m_av *)fid;

	for (size_t i = 0; i < av->count; i++)
		m_seat_drop(av->peers[i]);
	free(av->peers);
	free(av);
	return 0;
}

static int av_insert(struct ofi_av *pub, const void *addr, size_t count, uint64_t *out, uint64_t flags, void *context)
{
	struct m_av *av = (struct m_av *)pub;
	struct m_area *mine = av->domain->seat->area;

	(void)flags, (void)context;
	for (size_t i = 0; i < count; i++) {
		struct m_name name;

		memcpy(&name, (const uint8_t *)addr + i * sizeof(name), sizeof(name));
		av->peers = realloc(av->peers, (av->count + 1) * sizeof(*av->peers));
		av->peers[av->count] = m_seat_find(&name);
		m_lock(mine);
		m_know(mine, name.nonce);
		m_unlock(mine);
		out[i] = av->count++;
		__atomic_fetch_add(&ep_model_seen.addresses, 1, __ATOMIC_RELAXED);
	}
	return (int)count;
}

static int av_open(struct ofi_domain *domain, struct ofi_av_attr *attr, struct ofi_av **out, void *context)
{
	static struct ofi_ops fid_ops = { .size = sizeof(fid_ops), .close = av_close };
	static struct ofi_ops_av ops = { .size = sizeof(ops), .insert = av_insert };
	struct m_av *av = calloc(1, sizeof(*av));

	(void)attr;
	av->pub.fid = (struct ofi_fid){ .context = context, .ops = &fid_ops };
	av->pub.ops = &ops;
	av->domain = (struct m_domain *)domain;
	*out = &av->pub;
	return 0;
}

/* ---- registrations ---- */

static int mr_close(struct ofi_fid *fid)
{
	struct m_mr *mr = (struct m_mr *)fid;

	m_lock(mr->domain->seat->area);
	mr->region->key = 0;
	m_unlock(mr->domain->seat->area);
	free(mr);
	return 0;
}

static int mr_reg(struct ofi_fid *fid, const struct ofi_mr_attr *attr, uint64_t flags, struct ofi_mr **out)
{
	static struct ofi_ops fid_ops = { .size = sizeof(fid_ops), .close = mr_close };
	struct m_domain *domain = (struct m_domain *)fid;
	struct m_area *area = domain->seat->area;
	const struct iovec *iov = attr->mr_iov;
	struct m_region *region = NULL;
	static uint32_t serial;
	struct m_mr *mr;

	/* The kernel of this host does not import dma-bufs. */
	if (flags & OFI_MR_DMABUF) {
		__atomic_fetch_add(&ep_model_seen.by_dmabuf, 1, __ATOMIC_RELAXED);
		return -EOPNOTSUPP;
	}
	if (attr->iface != OFI_HMEM_SYSTEM)
		__atomic_fetch_add(&ep_model_seen.by_address, 1, __ATOMIC_RELAXED);
	mr = calloc(1, sizeof(*mr));
	m_lock(area);
	for (uint32_t i = 0; i < M_MRS && !region; i++)
		if (!area->regions[i].key)
			region = &area->regions[i];
	if (region)
		*region = (struct m_region){ .key = (__atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED) & 0xfffff) << 10 |
						    (uint32_t)(region - area->regions),
					     .base = (uintptr_t)iov->iov_base,
					     .size = iov->iov_len };
	m_unlock(area);
	if (!region) {
		free(mr);
		return -ENOMEM;
	}
	__atomic_fetch_add(&ep_model_seen.mrs, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&ep_model_seen.mr_bytes, iov->iov_len, __ATOMIC_RELAXED);
	mr->pub.fid = (struct ofi_fid){ .context = attr->context, .ops = &fid_ops };
	mr->pub.mem_desc = mr;
	mr->pub.key = region->key;
	mr->domain = domain;
	mr->region = region;
	*out = &mr->pub;
	return 0;
}

/* ---- domains ---- */

static int domain_close(struct ofi_fid *fid)
{
	m_seat_drop(((struct m_domain *)fid)->seat);
	free(fid);
	return 0;
}

static int domain_open(struct ofi_fabric *fabric, struct ofi_info *info, struct ofi_domain **out, void *context)
{
	static struct ofi_ops fid_ops = { .size = sizeof(fid_ops), .close = domain_close };
	static struct ofi_ops_domain ops = {
		.size = sizeof(ops), .av_open = av_open, .cq_open = m_cq_open, .endpoint = m_ep_open
	};
	static struct ofi_ops_mr mr = { .size = sizeof(mr), .regattr = mr_reg };
	struct m_domain *domain = calloc(1, sizeof(*domain));

	(void)fabric;
	domain->seat = m_seat_make();
	if (!domain->seat) {
		free(domain);
		return -ENOMEM;
	}
	domain->seat->area->direct = !strcmp(info->fabric_attr->name, "efa-direct");
	domain->pub.fid = (struct ofi_fid){ .context = context, .ops = &fid_ops };
	domain->pub.ops = &ops;
	domain->pub.mr = &mr;
	*out = &domain->pub;
	return 0;
}

int m_fabric_open(struct ofi_fabric_attr *attr, struct ofi_fabric **out, void *context)
{
	static struct ofi_ops fid_ops = { .size = sizeof(fid_ops), .close = plain_close };
	static struct ofi_ops_fabric ops = { .size = sizeof(ops), .domain = domain_open };
	struct ofi_fabric *fabric = calloc(1, sizeof(*fabric));

	(void)attr;
	fabric->fid = (struct ofi_fid){ .context = context, .ops = &fid_ops };
	fabric->ops = &ops;
	*out = fabric;
	return 0;
}
