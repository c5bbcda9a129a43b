/* SPDX-License-Identifier: Apache-2.0 */
/* Packed handles and keys of rails. */
#include "net/rails/rails.c"

#include "fuzz.h"

#define RANKS 3

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	fuzz_quiet();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	uint8_t shape = feed_u8(&f), part[NCCL_EP_NET_HANDLE_SIZE], *packs, *parts = NULL;
	size_t bytes = shape & 1 ? NCCL_EP_NET_HANDLE_SIZE : NCCL_EP_NET_KEY_SIZE;
	int n = 1 + (shape >> 1) % RAILS_MAX;
	struct pack pack;

	packs = malloc(RANKS * bytes);
	MUST(packs);
	for (int r = 0; r < RANKS; r++) {
		pack_begin(&pack, packs + (size_t)r * bytes, bytes, n);
		for (int k = 0; k < n; k++) {
			memset(part, 0, sizeof(part));
			feed_bytes(&f, part, feed_u8(&f) % 24);
			pack_add(&pack, part, bytes); /* -ENOSPC: the rest is missing */
		}
		feed_patch(&f, packs + (size_t)r * bytes, bytes);
	}
	if (!packs_open(packs, bytes, n, RANKS, &parts))
		MUST(parts);
	free(parts);
	free(packs);
	return 0;
}
