/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/mac.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "util/error.h"

static int no_blake2b(uint8_t *out, size_t n, const uint8_t key[EP_MAC_KEY], const void *text, size_t bytes)
{
	(void)out;
	(void)n;
	(void)key;
	(void)text;
	(void)bytes;
	return -ENOSYS;
}

static int no_differ(const void *a, const void *b, size_t n)
{
	(void)a;
	(void)b;
	(void)n;
	return -1;
}

static const struct ep_mac_ops none = { .blake2b = no_blake2b, .differ = no_differ, .wipe = explicit_bzero };
static const struct ep_mac_ops *ops = &none;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void pick(void)
{
	const struct ep_mac_ops *found = ep_mac_pick();

	if (!found)
		return;
	ops = found;
	EP_INFO(EP_BOOT, "handshake MAC by %s", ops->name);
}

int ep_mac_check(void)
{
	pthread_once(&once, pick);
	if (ops != &none)
		return 0;
	return EP_FAIL(EP_BOOT, ENOSYS,
		       "no library provides keyed BLAKE2b: install libsodium (libsodium.so.23) or OpenSSL 3 "
		       "(libcrypto.so.3)");
}

int ep_mac(uint8_t *out, size_t n, const uint8_t key[EP_MAC_KEY], const void *text, size_t bytes)
{
	pthread_once(&once, pick);
	return ops->blake2b(out, n, key, text, bytes);
}

bool ep_mac_differ(const void *a, const void *b, size_t n)
{
	pthread_once(&once, pick);
	return ops->differ(a, b, n) != 0;
}

void ep_wipe(void *mem, size_t n)
{
	pthread_once(&once, pick);
	ops->wipe(mem, n);
}
