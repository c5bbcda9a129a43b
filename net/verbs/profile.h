/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a kind of NIC beyond what it says of itself: one row for each kernel driver. */
#ifndef EP_NET_VERBS_PROFILE_H
#define EP_NET_VERBS_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "nccl_ep_net.h"

struct ep_verbs_profile {
	const char *driver; /* as sysfs calls it, words by space where it has several; NULL: every other */
	const char *family; /* for people */
	ncclEpNetFlow_v1_t lowLatency, throughput; /* in flight at once; 0: no limit */
	bool ordered;				   /* a write never shows before an earlier one of its queue pair */
	bool v2_only;				   /* of GIDs: RoCE v1 is not taken, not even by its index */
	uint32_t max_inline;			   /* bytes asked for; 0: values go by registered slots */
	const char *refused;			   /* why not, or NULL */
	const char *note;			   /* for people, or NULL */
};

/* By number, the row for all others last; NULL behind it. */
const struct ep_verbs_profile *ep_verbs_profile(int index);
/* The row of this driver, or the last. */
const struct ep_verbs_profile *ep_verbs_profile_of(const char *driver);

#endif
