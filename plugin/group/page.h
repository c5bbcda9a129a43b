/* SPDX-License-Identifier: Apache-2.0 */
/* A page of pinned memory: what kernels report to the host, and what the host tells running kernels. */
#ifndef EP_PLUGIN_PAGE_H
#define EP_PLUGIN_PAGE_H

#include <stdint.h>

#include "kernels/args.h"
#include "kernels/dev.h"
#include "plugin/boot/types.h"

#define EP_PAGE_FLAGS 4

struct ep_page_words {
	struct ep_kernel_report report; /* the first failure */
	uint32_t async[EP_PAGE_FLAGS];	/* by enum ep_async_flag */
	uint64_t abort;			/* 1 + the rank at fault: kernels stop waiting; 0: none */
	struct ep_ht_handle seen;	/* HT, eager: the head of a handle's memory, copied here to be read */
	uint64_t gone[];		/* [nranks]: with masks, not 0: the rank's process has ended */
};

struct ep_page {
	struct ep_pinned mem;
	uint32_t nranks;
};

int ep_page_open(struct ep_dev *dev, int nranks, struct ep_page *out);

static inline struct ep_page_words *ep_page_words(const struct ep_page *page)
{
	return page->mem.host;
}

/* The same words as kernels see them. */
static inline struct ep_page_words *ep_page_device(const struct ep_page *page)
{
	return page->mem.dev;
}

/* The kernels' report as an error: 0 while there is none, else a negative errno and the message in out. *blame is set
 * where another rank is at fault. */
int ep_page_report(const struct ep_page *page, int rank, uint64_t timeout_ns, struct ep_blame *blame, char *out,
		   size_t size);

#endif
