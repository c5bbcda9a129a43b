/* SPDX-License-Identifier: Apache-2.0 */
/* libsodium, linked. */
#include <errno.h>
#include <sodium.h>

#include "plugin/boot/mac.h"

static int blake2b(uint8_t *out, size_t n, const uint8_t key[EP_MAC_KEY], const void *text, size_t bytes)
{
	return crypto_generichash_blake2b(out, n, text, bytes, key, EP_MAC_KEY) ? -EINVAL : 0;
}

const struct ep_mac_ops *ep_mac_pick(void)
{
	static const struct ep_mac_ops sodium = {
		.name = "libsodium", .blake2b = blake2b, .differ = sodium_memcmp, .wipe = sodium_memzero
	};

	/* 1: the program has done it; safe from any thread. */
	return sodium_init() < 0 ? NULL : &sodium;
}
