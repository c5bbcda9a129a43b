/* SPDX-License-Identifier: Apache-2.0 */
/* Pins the bytes of every handshake message for fixed inputs: the wire format does not depend on the library that
 * computes the MAC. For little-endian hosts, as integers are sent in the host's byte order. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <sys/random.h>

#include "plugin/boot/shake.h"
#include "plugin/boot/wire.h"

TestSuite(boot_vector, .timeout = 60);

static const uint8_t secret[EP_BOOT_SECRET] = "0123456789abcde";

/* Replaces libc's: the server's nonce is 00 01 .. 0f, the client's 10 11 .. 1f. */
ssize_t getrandom(void *buf, size_t n, unsigned flags)
{
	static uint8_t next;

	(void)flags;
	for (size_t i = 0; i < n; i++)
		((uint8_t *)buf)[i] = next++;
	return (ssize_t)n;
}

static void expect(const char *what, const void *bytes, size_t n, const char *want)
{
	char hex[2 * 64 + 1] = "";

	for (size_t i = 0; i < n; i++)
		snprintf(hex + 2 * i, 3, "%02x", ((const uint8_t *)bytes)[i]);
	cr_expect_str_eq(hex, want, "%s is %s", what, hex);
}

Test(boot_vector, handshake)
{
	struct ep_shake client = { .purpose = EP_TO_RANK, .from = 3, .to = 0x01020305 }, server = { 0 };
	struct ep_greet greet;
	struct ep_claim claim;
	struct ep_proof proof;

	cr_assert_eq(ep_shake_greet(&server, &greet), 0);
	expect("greet", &greet, sizeof(greet), "416e794550623100000102030405060708090a0b0c0d0e0f");
	cr_assert_eq(ep_shake_claim(&client, secret, &greet, &claim), 0);
	expect("claim", &claim, sizeof(claim),
	       "02000000030000000503020104030201101112131415161718191a1b1c1d1e1f35a1d79ee63788f421d5c2db62b07cad"
	       "7b67d996c1e894ca124f34db494024e3");
	cr_assert_eq(ep_shake_verify(&server, secret, &claim), 0);
	ep_shake_prove(&server, secret, EP_SHAKE_OK, &proof);
	expect("proof", &proof, sizeof(proof),
	       "0000000000000000872cc2d1238326feb7bbab0a84d38eae9b4b1f9fb39eefb2901bbb19b0ad4d25");
	cr_expect_eq(ep_shake_confirm(&client, secret, &proof), 0);
	ep_shake_prove(&server, secret, EP_SHAKE_SECRET, &proof);
	expect("refusal", &proof, sizeof(proof),
	       "01000000000000000000000000000000000000000000000000000000000000000000000000000000");
	ep_shake_prove(&server, secret, EP_SHAKE_ADDRESSEE, &proof);
	expect("wrong destination", &proof, sizeof(proof),
	       "02000000000000000000000000000000000000000000000000000000000000000000000000000000");
}
