/* SPDX-License-Identifier: Apache-2.0 */
#include "net/verbs/profile.h"

#include <stddef.h>
#include <string.h>

#define KIB(n) ((uint64_t)(n) << 10)

/*
 * Limits: without pacing Thor-2 falls from 49 to 4 GB/s in an all-to-all over RoCE, as its users report, and then fails
 * with retries exceeded. 1.5 MiB avoid that, and 32 large puts; for Pollara 2 MiB and 32. Small puts: UCCL-EP has 32
 * per FIFO (kMaxInflightLowLatency), which is a ring here, and 32 FIFOs per GPU (kNumProxyThs * kChannelPerProxy), 1024
 * in all. Other NICs or their fabrics pace themselves.
 *
 * Order: an RC queue pair completes in order, but where a fabric routes adaptively a ConnectX places packets as they
 * arrive, and no call tells whether it does. So only those are ordered that are known to be; ordered=1 is for users who
 * know their fabric. Unordered costs an immediate per put.
 *
 * Traffic class and service level of Thor: what UCCL-EP uses, DSCP 26 and priority 3, which most fabrics make lossless.
 */
static const struct ep_verbs_profile profiles[] = {
	{ .driver = "bnxt_re bnxt_en",
	  .family = "Broadcom Thor",
	  .lowLatency = { .maxBytes = KIB(1536), .maxPuts = 1024, .ringPuts = 32 },
	  .throughput = { .maxBytes = KIB(1536), .maxPuts = 32 },
	  .ordered = true,
	  .v2_only = true,
	  .tc = 104,
	  .sl = 3,
	  .max_inline = 64,
	  .note = "needs PFC or ECN on its priority (NCCL_EP_IB_TC); has v1 and v2 GIDs for every address" },
	{ .driver = "mlx5_core mlx5_ib",
	  .family = "NVIDIA ConnectX",
	  .max_inline = 64,
	  .note = "set ordered=1 if the fabric does not route adaptively" },
	{ .driver = "ionic ionic_rdma",
	  .family = "AMD Pollara",
	  .lowLatency = { .maxBytes = KIB(2048), .maxPuts = 1024, .ringPuts = 32 },
	  .throughput = { .maxBytes = KIB(2048), .maxPuts = 32 },
	  .v2_only = true,
	  .max_inline = 32,
	  .note = "sprays packets over paths, so it is used as unordered" },
	{ .driver = "irdma ice idpf i40e",
	  .family = "Intel E800",
	  .ordered = true,
	  .v2_only = true,
	  .max_inline = 64,
	  .note = "enable RoCE v2 (irdma: roce_ena=1); iWARP has no immediate data" },
	{ .driver = "rdma_rxe",
	  .family = "soft-RoCE",
	  .ordered = true,
	  .v2_only = true,
	  .max_inline = 64,
	  .note = "software, for tests" },
	{ .driver = "efa",
	  .family = "AWS EFA",
	  .refused = "it has no RC queue pairs; use NCCL_EP_NET=fabric",
	  .note = "SRD, used through libfabric" },
	{ .driver = NULL, .family = "any other", .max_inline = 64 },
};
#define PROFILES ((int)(sizeof(profiles) / sizeof(profiles[0])))

const struct ep_verbs_profile *ep_verbs_profile(int index)
{
	return index >= 0 && index < PROFILES ? &profiles[index] : NULL;
}

static bool word_in(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *at = list; n && (at = strstr(at, word)); at += n)
		if ((at == list || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
			return true;
	return false;
}

const struct ep_verbs_profile *ep_verbs_profile_of(const char *driver)
{
	const struct ep_verbs_profile *p = profiles;

	while (p->driver && !word_in(p->driver, driver))
		p++;
	return p;
}
