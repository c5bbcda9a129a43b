/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keyed BLAKE2b, constant-time compare and wipe for the handshake. meson picks one provider: libsodium linked at build
 * time (mac_sodium.c) or, where it is not installed, libsodium or OpenSSL's libcrypto opened at run time (mac_dl.c),
 * so that a machine on which nothing can be installed still builds and runs the library.
 */
#ifndef EP_PLUGIN_BOOT_MAC_H
#define EP_PLUGIN_BOOT_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EP_MAC_KEY 16

struct ep_mac_ops {
	const char *name;
	int (*blake2b)(uint8_t *out, size_t n, const uint8_t key[EP_MAC_KEY], const void *text, size_t bytes);
	int (*differ)(const void *a, const void *b, size_t n);
	void (*wipe)(void *mem, size_t n);
};

/* The provider or NULL; called once. */
const struct ep_mac_ops *ep_mac_pick(void);
/* mac_dl.c: the provider in the shared library of this name, or NULL. */
const struct ep_mac_ops *ep_mac_dl(const char *library);

/* 0, or a failure with a message if there is no provider; without one no handshake succeeds. */
int ep_mac_check(void);

/* Keyed BLAKE2b with an output of n bytes, 1 to 64; n enters the hash. */
int ep_mac(uint8_t *out, size_t n, const uint8_t key[EP_MAC_KEY], const void *text, size_t bytes);
bool ep_mac_differ(const void *a, const void *b, size_t n); /* in constant time */
void ep_wipe(void *mem, size_t n);

#endif
