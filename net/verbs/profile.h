/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a NIC family beyond what the device reports: one row per kernel driver. */
#ifndef EP_NET_VERBS_PROFILE_H
#define EP_NET_VERBS_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "nccl_ep_net.h"

struct ep_verbs_profile {
	const char *driver;			   /* as in sysfs, separated by spaces; NULL: any other */
	const char *family;			   /* for messages */
	ncclEpNetFlow_v1_t lowLatency, throughput; /* in flight; 0: no limit */
	bool ordered;	     /* known: a write never becomes visible before an earlier one of its queue pair */
	bool v2_only;	     /* RoCE v1 GIDs are not used, not even by index */
	uint8_t tc, sl;	     /* traffic class and service level, unless set by the user */
	uint32_t max_inline; /* bytes requested; 0: small puts use registered buffers */
	const char *refused; /* why it cannot be used, or NULL */
	const char *note;    /* for ep_info -p, or NULL */
};

/* By number; the last row is for all other drivers; NULL past it. */
const struct ep_verbs_profile *ep_verbs_profile(int index);
/* The row of this driver, or the last one. */
const struct ep_verbs_profile *ep_verbs_profile_of(const char *driver);

#endif
