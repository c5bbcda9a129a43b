/* SPDX-License-Identifier: Apache-2.0 */
/* Every library that plugin/boot/mac_dl.c can open computes the MACs that test/boot/vector.c pins. Exits 77 where none
 * of them is installed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/boot/mac.h"

static const uint8_t key[EP_MAC_KEY] = "0123456789abcde";

/* The MACs of the client and the server, and one of 8 bytes, the size of a process cookie. */
static const struct {
	size_t n;
	const char *who, *want;
} vectors[] = {
	{ 32, "client\0", "35a1d79ee63788f421d5c2db62b07cad7b67d996c1e894ca124f34db494024e3" },
	{ 32, "server\0", "872cc2d1238326feb7bbab0a84d38eae9b4b1f9fb39eefb2901bbb19b0ad4d25" },
	{ 8, "cookie\0", "87904fe1fbf18921" },
};

/* The text of shake.c's MAC, as bytes. */
static void text_fill(const char *who, uint8_t text[64])
{
	static const uint8_t head[16] = { 2, 0, 0, 0, 3, 0, 0, 0, 5, 3, 2, 1 };

	memcpy(text, "AnyEPb1", 8);
	memcpy(text + 8, who, 8);
	memcpy(text + 16, head, sizeof(head));
	for (int i = 0; i < 32; i++)
		text[32 + i] = (uint8_t)i;
}

static int check(const struct ep_mac_ops *ops)
{
	uint8_t text[64], out[32], same[32];
	int failed = 0;

	for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
		char hex[65] = "";

		text_fill(vectors[i].who, text);
		if (ops->blake2b(out, vectors[i].n, key, text, sizeof(text)))
			failed++;
		for (size_t k = 0; k < vectors[i].n; k++)
			snprintf(hex + 2 * k, 3, "%02x", out[k]);
		if (strcmp(hex, vectors[i].want)) {
			printf("%s: the %s MAC is %s\n", ops->name, vectors[i].who, hex);
			failed++;
		}
	}
	memcpy(same, out, sizeof(same));
	failed += ops->differ(out, same, sizeof(same)) != 0;
	for (size_t bit = 0; bit < 8 * sizeof(same); bit++) {
		same[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		failed += ops->differ(out, same, sizeof(same)) == 0;
		same[bit / 8] ^= (uint8_t)(1u << (bit % 8));
	}
	ops->wipe(same, sizeof(same));
	for (size_t i = 0; i < sizeof(same); i++)
		failed += same[i] != 0;
	printf("%s: %s\n", ops->name, failed ? "FAILED" : "ok");
	return failed;
}

int main(void)
{
	static const char *const libraries[] = { "libsodium.so.23", "libsodium.so.26", "libcrypto.so.3" };
	int found = 0, failed = 0;

	for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
		const struct ep_mac_ops *ops = ep_mac_dl(libraries[i]);

		if (!ops) {
			printf("%s: not here\n", libraries[i]);
			continue;
		}
		found++;
		failed += check(ops);
	}
	/* Only names in the table are opened. */
	failed += ep_mac_dl("libc.so.6") != NULL;
	if (!found)
		return 77;
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
