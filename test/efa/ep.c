/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints: binding, options, name. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/efa/model.h"

#define ENOPROTOOPT_FI 92

uint64_t m_random(struct m_ep *ep)
{
	ep->random ^= ep->random << 13;
	ep->random ^= ep->random >> 7;
	ep->random ^= ep->random << 17;
	return ep->random;
}

bool m_chance(struct m_ep *ep, unsigned of)
{
	return !ep->calm && m_random(ep) % of == 0;
}

static int ep_close(struct ofi_fid *fid)
{
	struct m_ep *ep = (struct m_ep *)fid;
	struct m_area *area = ep->domain->seat->area;

	m_lock(area);
	area->open = false;
	m_unlock(area);
	if (ep->cq)
		ep->cq->ep = NULL;
	free(ep);
	return 0;
}

/* This provider's objects are told apart by their operations. */
static int ep_bind(struct ofi_fid *fid, struct ofi_fid *to, uint64_t flags)
{
	struct m_ep *ep = (struct m_ep *)fid;

	if (!flags) {
		ep->av = (struct m_av *)to;
		return 0;
	}
	ep->cq = (struct m_cq *)to;
	ep->cq->ep = ep;
	return 0;
}

static int ep_control(struct ofi_fid *fid, int command, void *arg)
{
	struct m_ep *ep = (struct m_ep *)fid;
	struct m_area *area = ep->domain->seat->area;

	(void)arg;
	if (command != OFI_ENABLE || !ep->av || !ep->cq)
		return -EINVAL;
	m_lock(area);
	area->open = true;
	m_unlock(area);
	ep->enabled = true;
	__atomic_fetch_add(&ep_model_seen.endpoints, 1, __ATOMIC_RELAXED);
	if (ep->shared)
		__atomic_fetch_add(&ep_model_seen.shared, 1, __ATOMIC_RELAXED);
	return 0;
}

static int ep_setopt(struct ofi_fid *fid, int level, int name, const void *value, size_t size)
{
	struct m_ep *ep = (struct m_ep *)fid;

	if (level != OFI_OPT_ENDPOINT || size != sizeof(bool) || ep->enabled) /* R11 */
		return -EINVAL;
	if (name == OFI_OPT_CUDA_API_PERMITTED)
		return 0;
	if (name != OFI_OPT_SHARED_MEMORY_PERMITTED)
		return -ENOPROTOOPT_FI;
	memcpy(&ep->shared, value, sizeof(bool));
	return 0;
}

static int ep_getopt(struct ofi_fid *fid, int level, int name, void *value, size_t *size)
{
	struct m_ep *ep = (struct m_ep *)fid;

	if (level != OFI_OPT_ENDPOINT || name != (int)OFI_OPT_EFA_EMULATED_WRITE || *size < sizeof(bool))
		return -ENOPROTOOPT_FI;
	memcpy(value, &ep->emulated, sizeof(bool)); /* R10 */
	*size = sizeof(bool);
	return 0;
}

static int ep_getname(struct ofi_fid *fid, void *addr, size_t *size)
{
	struct m_ep *ep = (struct m_ep *)fid;
	struct m_seat *seat = ep->domain->seat;
	struct m_name name = { .magic = 0xefa, .nonce = seat->nonce, .pid = getpid(), .fd = seat->fd };

	if (*size < sizeof(name))
		return -ENOSPC;
	memcpy(addr, &name, sizeof(name));
	*size = sizeof(name);
	return 0;
}

int m_ep_open(struct ofi_domain *domain, struct ofi_info *info, struct ofi_ep **out, void *context)
{
	static struct ofi_ops fid_ops = {
		.size = sizeof(fid_ops), .close = ep_close, .bind = ep_bind, .control = ep_control
	};
	static struct ofi_ops_ep ops = { .size = sizeof(ops), .getopt = ep_getopt, .setopt = ep_setopt };
	static struct ofi_ops_cm cm = { .size = sizeof(cm), .getname = ep_getname };
	static struct ofi_ops_msg msg = { .size = sizeof(msg), .recvmsg = m_receive };
	static struct ofi_ops_rma rma = { .size = sizeof(rma), .readmsg = m_read, .writemsg = m_write };
	struct m_ep *ep = calloc(1, sizeof(*ep));

	ep->pub.fid = (struct ofi_fid){ .context = context, .ops = &fid_ops };
	ep->pub.ops = &ops;
	ep->pub.cm = &cm;
	ep->pub.msg = &msg;
	ep->pub.rma = &rma;
	ep->domain = (struct m_domain *)domain;
	ep->direct = ep->domain->seat->area->direct;
	ep->emulated = m_profile()->emulated;
	ep->shared = !ep->direct;
	ep->calm = m_calm();
	ep->random = ep->domain->seat->nonce | 1;
	if (info->tx_attr->tclass == OFI_TC_LOW_LATENCY)
		__atomic_fetch_add(&ep_model_seen.low_latency, 1, __ATOMIC_RELAXED);
	*out = &ep->pub;
	return 0;
}
