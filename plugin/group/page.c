/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/page.h"

#include <stdbool.h>
#include <stdio.h>

#include "util/error.h"

int ep_page_open(struct ep_dev *dev, int nranks, struct ep_page *out)
{
	out->nranks = (uint32_t)nranks;
	return dev->ops->pinned_alloc(dev, sizeof(struct ep_page_words) + (size_t)nranks * sizeof(uint64_t), &out->mem);
}

static const char *phase_name(uint32_t phase)
{
	static const char *const names[] = {
		[EP_KPHASE_START] = "at its start",
		[EP_KPHASE_SEND] = "while sending",
		[EP_KPHASE_RECV] = "while receiving",
	};

	return phase < sizeof(names) / sizeof(names[0]) ? names[phase] : "in an unknown phase";
}

static const char *kind_name(uint32_t kind)
{
	static const char *const names[] = {
		[EP_KIND_NONE] = "operation", [EP_KIND_DISPATCH] = "dispatch", [EP_KIND_COMBINE] = "combine",
		[EP_KIND_MASK] = "mask call", [EP_KIND_UPDATE] = "update",     [EP_KIND_BARRIER] = "barrier",
	};

	return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "operation";
}

/* Errors of a caller, on this rank or another. */
static int usage_report(const struct ep_kernel_report *r, int rank, char *out, size_t size)
{
	unsigned long long epoch = r->epoch;
	const char *kind = kind_name(r->kind);

	switch (r->code) {
	case EP_KERR_OVERFLOW:
		snprintf(out, size,
			 "rank %d: update %llu routes more rows to it than max_recv_tokens_per_rank: raise it, or drop "
			 "rows with NCCL_EP_OVERFLOW_DROP",
			 rank, epoch);
		break;
	case EP_KERR_SHORT:
		snprintf(out, size,
			 "rank %d: the tensor of %s %llu has fewer rows than the last update routed to this rank "
			 "(recv_total_counter)",
			 rank, kind, epoch);
		break;
	case EP_KERR_SHAPE:
		snprintf(out, size,
			 "rank %d: the call of rank %u does not match %s %llu of this rank: layout, direction, data "
			 "type, "
			 "hidden size, scales, num_topk and alignment must be the same on all ranks",
			 rank, r->rank, kind, epoch);
		break;
	case EP_KERR_UNROUTED:
		snprintf(out, size,
			 "rank %d: %s %llu: handle_mem holds no routing of this group, layout, alignment, num_topk and "
			 "number of tokens: call ncclEpUpdateHandle first",
			 rank, kind, epoch);
		break;
	case EP_KERR_UNSENT:
		snprintf(out, size,
			 "rank %d: %s %llu: no dispatch since the handle's last update: between nodes a combine goes "
			 "back the way of a dispatch",
			 rank, kind, epoch);
		break;
	default:
		snprintf(out, size, "rank %d: %s %llu failed with unknown code %u", rank, kind, epoch, r->code);
		return -EP_EINTERNAL;
	}
	return -EP_EUSAGE;
}

/* A wait that ended in a timeout or another rank's failure. */
static int wait_report(const struct ep_kernel_report *r, int rank, uint64_t timeout_ns, char *out, size_t size)
{
	const char *kind = kind_name(r->kind), *phase = phase_name(r->phase);
	bool timeout = r->code == EP_KERR_TIMEOUT;
	char cause[64] = "";

	if (r->cause != r->rank)
		snprintf(cause, sizeof(cause), timeout ? ", and for rank %u" : " because of rank %u", r->cause);
	if (timeout)
		snprintf(out, size,
			 "rank %d waited %llu ms for rank %u%s in %s %llu, %s: it is dead, stuck, or made another "
			 "sequence of calls (NCCL_EP_TIMEOUT_MS sets the limit)",
			 rank, (unsigned long long)(timeout_ns / 1000000), r->rank, cause, kind,
			 (unsigned long long)r->epoch, phase);
	else
		snprintf(out, size, "rank %u failed%s; rank %d stopped in %s %llu, %s. See the message of rank %u",
			 r->rank, cause, rank, kind, (unsigned long long)r->epoch, phase, r->rank);
	return timeout ? -EP_ETIMEOUT : -EP_EREMOTE;
}

/* Whom the kernel names, on the weakest evidence: it only saw that something did not come. */
static struct ep_blame blame_of(const struct ep_kernel_report *r, uint32_t code)
{
	bool forwarded = code == EP_KERR_REMOTE; /* a timeout's cause is a second silent rank */

	return (struct ep_blame){ (int)(forwarded ? r->cause : r->rank), EP_EV_MISSING };
}

int ep_page_report(const struct ep_page *page, int rank, uint64_t timeout_ns, struct ep_blame *blame, char *out,
		   size_t size)
{
	const struct ep_kernel_report *r = &ep_page_words(page)->report;
	/* Pairs with the release in gx_op_fail: the words beside the code are those it was written with. */
	uint32_t code = __atomic_load_n(&r->code, __ATOMIC_ACQUIRE);
	const char *kind, *phase;
	unsigned long long epoch;

	if (code == EP_KERR_NONE) /* the kernel may be writing the other words */
		return 0;
	epoch = r->epoch;
	kind = kind_name(r->kind);
	phase = phase_name(r->phase);
	if (code == EP_KERR_TIMEOUT || code == EP_KERR_REMOTE || code == EP_KERR_ABORTED || code == EP_KERR_RING)
		*blame = blame_of(r, code);
	switch (code) {
	case EP_KERR_REMOTE:
		/* Ranks by the failed word in the control page, to which every rank of the node can write. Not checked
		 * by the kernels: this code would be in them once for every wait. */
		if (r->rank >= page->nranks || r->cause >= page->nranks) {
			snprintf(out, size,
				 "rank %d: %s %llu, %s: the word by which ranks report a failure names none: a rank of "
				 "this node overwrites memory of rank %d",
				 rank, kind, epoch, phase, rank);
			return -EP_EREMOTE;
		}
		return wait_report(r, rank, timeout_ns, out, size);
	case EP_KERR_TIMEOUT:
		return wait_report(r, rank, timeout_ns, out, size);
	case EP_KERR_BEHIND:
		snprintf(out, size, "rank %d was masked at epoch %llu: restart with a dispatch", rank, epoch);
		return -EP_EREMOTE;
	case EP_KERR_STAGED:
		snprintf(out, size,
			 "rank %d: %s %llu: both buffers are held by staged operations: call ncclEpComplete first",
			 rank, kind, epoch);
		return -EP_EUSAGE;
	case EP_KERR_COUNT:
		snprintf(out, size,
			 "rank %d: malformed row from rank %u in %s %llu: the ranks run different code or "
			 "configurations",
			 rank, r->rank, kind, epoch);
		return -EP_EINTERNAL;
	case EP_KERR_RING:
		snprintf(out, size,
			 "rank %d: %s %llu, %s: ring full: the engine took no command for rank %u within %llu ms; it "
			 "is "
			 "stuck, or an earlier command failed",
			 rank, kind, epoch, phase, r->rank, (unsigned long long)(timeout_ns / 1000000));
		return -EP_ETIMEOUT;
	case EP_KERR_ABORTED:
		snprintf(out, size, "rank %d: %s %llu was aborted because of rank %u, %s", rank, kind, epoch, r->rank,
			 phase);
		return -EP_EREMOTE;
	default:
		return usage_report(r, rank, out, size);
	}
}
