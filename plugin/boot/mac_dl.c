/* SPDX-License-Identifier: Apache-2.0 */
/* libsodium or libcrypto, opened at run time: the few declarations needed are here. */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "plugin/boot/mac.h"

struct symbol {
	const char *name;
	size_t slot;
};

/* Opens the library and fills the table of functions. Never closed: both keep state for the process. */
static int load(const char *library, const struct symbol *symbols, size_t n, void *table)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!handle)
		return -ENOENT;
	for (size_t i = 0; i < n; i++) {
		void *symbol = dlsym(handle, symbols[i].name);

		if (!symbol)
			return -ENOSYS;
		memcpy((char *)table + symbols[i].slot, &symbol, sizeof(symbol));
	}
	return 0;
}

#define LOAD(library, symbols, table) load(library, symbols, sizeof(symbols) / sizeof(symbols[0]), table)

/* ---- libsodium ---- */

static struct {
	int (*init)(void);
	int (*blake2b)(uint8_t *out, size_t n, const void *text, unsigned long long bytes, const uint8_t *key,
		       size_t key_bytes);
	int (*memcmp)(const void *a, const void *b, size_t n);
	void (*memzero)(void *mem, size_t n);
} sodium;

static const struct symbol sodium_symbols[] = {
	{ "sodium_init", offsetof(__typeof__(sodium), init) },
	{ "crypto_generichash_blake2b", offsetof(__typeof__(sodium), blake2b) },
	{ "sodium_memcmp", offsetof(__typeof__(sodium), memcmp) },
	{ "sodium_memzero", offsetof(__typeof__(sodium), memzero) },
};

static int sodium_blake2b(uint8_t *out, size_t n, const uint8_t key[EP_MAC_KEY], const void *text, size_t bytes)
{
	return sodium.blake2b(out, n, text, bytes, key, EP_MAC_KEY) ? -EINVAL : 0;
}

static const struct ep_mac_ops *sodium_open(const char *library)
{
	static struct ep_mac_ops ops;

	if (LOAD(library, sodium_symbols, &sodium) || sodium.init() < 0)
		return NULL;
	ops = (struct ep_mac_ops){ library, sodium_blake2b, sodium.memcmp, sodium.memzero };
	return &ops;
}

/* ---- libcrypto of OpenSSL 3 ---- */

#define INIT_NO_ATEXIT 0x80000 /* or its state is freed at exit under our service threads */
#define UNSIGNED_INTEGER 2

/* OSSL_PARAM: an array of these ends with one without a key. */
struct crypto_param {
	const char *key;
	unsigned type;
	void *data;
	size_t size, returned;
};

static struct {
	int (*init)(uint64_t opts, const void *settings);
	void *(*fetch)(void *libctx, const char *algorithm, const char *properties);
	void *(*ctx_new)(void *mac);
	void (*ctx_free)(void *ctx);
	int (*start)(void *ctx, const uint8_t *key, size_t key_bytes, const struct crypto_param *params);
	int (*update)(void *ctx, const void *text, size_t bytes);
	int (*final)(void *ctx, uint8_t *out, size_t *n, size_t room);
	int (*memcmp)(const void *a, const void *b, size_t n);
	void (*cleanse)(void *mem, size_t n);
	void *mac; /* the algorithm */
} crypto;

static const struct symbol crypto_symbols[] = {
	{ "OPENSSL_init_crypto", offsetof(__typeof__(crypto), init) },
	{ "EVP_MAC_fetch", offsetof(__typeof__(crypto), fetch) },
	{ "EVP_MAC_CTX_new", offsetof(__typeof__(crypto), ctx_new) },
	{ "EVP_MAC_CTX_free", offsetof(__typeof__(crypto), ctx_free) },
	{ "EVP_MAC_init", offsetof(__typeof__(crypto), start) },
	{ "EVP_MAC_update", offsetof(__typeof__(crypto), update) },
	{ "EVP_MAC_final", offsetof(__typeof__(crypto), final) },
	{ "CRYPTO_memcmp", offsetof(__typeof__(crypto), memcmp) },
	{ "OPENSSL_cleanse", offsetof(__typeof__(crypto), cleanse) },
};

static int crypto_blake2b(uint8_t *out, size_t n, const uint8_t key[EP_MAC_KEY], const void *text, size_t bytes)
{
	struct crypto_param params[] = { { "size", UNSIGNED_INTEGER, &n, sizeof(n), 0 }, { 0 } };
	void *ctx = crypto.ctx_new(crypto.mac);
	size_t got = 0;
	bool ok;

	if (!ctx)
		return -ENOMEM;
	ok = crypto.start(ctx, key, EP_MAC_KEY, params) == 1 && crypto.update(ctx, text, bytes) == 1 &&
	     crypto.final(ctx, out, &got, n) == 1 && got == n;
	crypto.ctx_free(ctx);
	return ok ? 0 : -EIO;
}

static const struct ep_mac_ops *crypto_open(const char *library)
{
	static struct ep_mac_ops ops;

	if (LOAD(library, crypto_symbols, &crypto) || !crypto.init(INIT_NO_ATEXIT, NULL))
		return NULL;
	crypto.mac = crypto.fetch(NULL, "BLAKE2BMAC", NULL); /* NULL where only FIPS algorithms are allowed */
	if (!crypto.mac)
		return NULL;
	ops = (struct ep_mac_ops){ library, crypto_blake2b, crypto.memcmp, crypto.cleanse };
	return &ops;
}

/* ---- */

static const struct {
	const char *library;
	const struct ep_mac_ops *(*open)(const char *library);
} providers[] = {
	{ "libsodium.so.23", sodium_open }, /* to 1.0.18 */
	{ "libsodium.so.26", sodium_open }, /* from 1.0.19 */
	{ "libcrypto.so.3", crypto_open },
};

const struct ep_mac_ops *ep_mac_dl(const char *library)
{
	for (size_t i = 0; i < sizeof(providers) / sizeof(providers[0]); i++)
		if (!strcmp(library, providers[i].library))
			return providers[i].open(library);
	return NULL;
}

const struct ep_mac_ops *ep_mac_pick(void)
{
	const struct ep_mac_ops *ops = NULL;

	for (size_t i = 0; i < sizeof(providers) / sizeof(providers[0]) && !ops; i++)
		ops = providers[i].open(providers[i].library);
	return ops;
}
