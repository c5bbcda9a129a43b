/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake and the frame check, without sockets. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/boot/shake.h"
#include "plugin/boot/wire.h"

TestSuite(boot_shake, .timeout = 60);

static const uint8_t secret[EP_BOOT_SECRET] = "0123456789abcde", other[EP_BOOT_SECRET] = "0123456789abcdf";

struct talk {
	struct ep_shake client, server;
	struct ep_greet greet;
	struct ep_claim claim;
	struct ep_proof proof;
};

static void greet_and_claim(struct talk *t, const uint8_t *client_secret)
{
	*t = (struct talk){ .client = { .purpose = EP_TO_RANK, .from = 3, .to = 5 } };
	cr_assert_eq(ep_shake_greet(&t->server, &t->greet), 0);
	cr_assert_eq(ep_shake_claim(&t->client, client_secret, &t->greet, &t->claim), 0);
}

Test(boot_shake, both_know_the_secret)
{
	struct talk t;

	greet_and_claim(&t, secret);
	cr_assert_eq(ep_shake_verify(&t.server, secret, &t.claim), 0);
	cr_expect_eq(t.server.purpose, EP_TO_RANK);
	cr_expect_eq(t.server.from, 3);
	cr_expect_eq(t.server.to, 5);
	ep_shake_prove(&t.server, secret, EP_SHAKE_OK, &t.proof);
	cr_expect_eq(ep_shake_confirm(&t.client, secret, &t.proof), 0);
}

Test(boot_shake, either_end_without_the_secret_is_found_out)
{
	struct talk t;

	greet_and_claim(&t, other);
	cr_expect_eq(ep_shake_verify(&t.server, secret, &t.claim), -EACCES);
	greet_and_claim(&t, secret);
	cr_assert_eq(ep_shake_verify(&t.server, secret, &t.claim), 0);
	ep_shake_prove(&t.server, other, EP_SHAKE_OK, &t.proof);
	cr_expect_eq(ep_shake_confirm(&t.client, secret, &t.proof), -EPROTO);
}

Test(boot_shake, a_claim_sent_back_is_no_proof)
{
	struct talk t;

	greet_and_claim(&t, secret);
	memcpy(t.proof.mac, t.claim.mac, sizeof(t.proof.mac));
	cr_expect_eq(ep_shake_confirm(&t.client, secret, &t.proof), -EPROTO);
}

Test(boot_shake, a_claim_cannot_be_used_twice)
{
	struct talk t, again;

	greet_and_claim(&t, secret);
	greet_and_claim(&again, secret);
	cr_expect_eq(ep_shake_verify(&again.server, secret, &t.claim), -EACCES);
}

Test(boot_shake, no_bit_of_a_claim_or_proof_can_change)
{
	struct talk t;

	greet_and_claim(&t, secret);
	for (size_t bit = 0; bit < sizeof(t.claim) * 8; bit++) {
		struct ep_shake server = t.server;
		union ep_shake_record bent = { .claim = t.claim };

		bent.bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		cr_expect_eq(ep_shake_verify(&server, secret, &bent.claim), -EACCES, "bit %zu", bit);
	}
	cr_assert_eq(ep_shake_verify(&t.server, secret, &t.claim), 0);
	ep_shake_prove(&t.server, secret, EP_SHAKE_OK, &t.proof);
	for (size_t bit = 0; bit < sizeof(t.proof) * 8; bit++) {
		union ep_shake_record bent = { .proof = t.proof };

		if (bit / 8 >= 4 && bit / 8 < 8)
			continue; /* padding */
		bent.bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		cr_expect_neq(ep_shake_confirm(&t.client, secret, &bent.proof), 0, "bit %zu", bit);
	}
}

Test(boot_shake, another_protocol_is_recognised)
{
	struct ep_shake client = { .purpose = EP_TO_ROOT };
	struct ep_greet greet = { .magic = "SSH-2.0" };
	struct ep_claim claim;

	cr_expect_eq(ep_shake_claim(&client, secret, &greet, &claim), -EPROTO);
}

Test(boot_shake, refusals_say_why)
{
	struct talk t;

	greet_and_claim(&t, secret);
	ep_shake_prove(&t.server, secret, EP_SHAKE_SECRET, &t.proof);
	cr_expect_eq(ep_shake_confirm(&t.client, secret, &t.proof), -EACCES);
	ep_shake_prove(&t.server, secret, EP_SHAKE_ADDRESSEE, &t.proof);
	cr_expect_eq(ep_shake_confirm(&t.client, secret, &t.proof), -EADDRNOTAVAIL);
}

/* The frames each kind of connection accepts, at each end. */
Test(boot_shake, frames_have_their_place_and_size)
{
	static const struct {
		uint16_t type;
		enum ep_purpose purpose;
		bool at_server, at_client;
		uint32_t min, max;
	} want[] = {
		{ EP_F_HELLO, EP_TO_ROOT, true, false, 128, 128 },
		{ EP_F_DONE, EP_TO_ROOT, true, false, 0, 0 },
		{ EP_F_FAIL, EP_TO_ROOT, true, true, 0, EP_WHY_MAX },
		{ EP_F_HOST, EP_TO_ROOT, false, true, 0, 0 },
		{ EP_F_TABLE, EP_TO_ROOT, false, true, 0, 16 * 104 },
		{ EP_F_GO, EP_TO_ROOT, false, true, 0, 0 },
		{ EP_F_BLOCK, EP_TO_RANK, true, true, 0, EP_FRAME_MAX },
		{ EP_F_GONE, EP_TO_RANK, true, true, 0, EP_WHY_MAX },
		{ EP_F_PARTED, EP_TO_RANK, true, true, 0, EP_WHY_MAX },
		{ EP_F_LEFT, EP_TO_RANK, true, true, 0, 0 },
		{ EP_F_BYE, EP_TO_RANK, true, true, 0, 0 },
		{ EP_F_PING, EP_TO_RANK, true, true, 0, 0 },
		{ EP_F_PONG, EP_TO_RANK, true, true, 0, 0 },
		{ EP_F_SILENT, EP_TO_RANK, true, true, 0, 0 },
		{ EP_F_FD_GET, EP_TO_FD, true, false, 0, 0 },
		{ EP_F_FD_PUT, EP_TO_FD, false, true, 0, EP_BOOT_NOTE },
	};

	cr_assert_eq(sizeof(want) / sizeof(want[0]), EP_F_TYPES - 1);
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		for (int purpose = EP_TO_ROOT; purpose <= EP_TO_FD; purpose++)
			for (int server = 0; server < 2; server++) {
				bool ok = purpose == (int)want[i].purpose &&
					  (server ? want[i].at_server : want[i].at_client);
				struct ep_frame f = { .type = want[i].type, .bytes = want[i].min };

				cr_expect_eq(ep_frame_check(&f, purpose, server) == 0, ok);
				f.bytes = want[i].max;
				cr_expect_eq(ep_frame_check(&f, purpose, server) == 0, ok);
				f.bytes = want[i].max + 1;
				cr_expect_neq(ep_frame_check(&f, purpose, server), 0);
				f.bytes = want[i].min - 1;
				cr_expect_neq(ep_frame_check(&f, purpose, server), 0);
			}
}

Test(boot_shake, random_frames_are_bounded)
{
	int passed = 0;

	srand(7);
	for (int i = 0; i < 2000000; i++) {
		struct ep_frame f;
		uint8_t *p = (uint8_t *)&f;

		for (size_t k = 0; k < sizeof(f); k++)
			p[k] = (uint8_t)(rand() >> 7);
		f.type &= i & 1 ? 0xf : 0xffff;
		f.bytes &= i & 2 ? 0x1ffff : UINT32_MAX;
		if (ep_frame_check(&f, (enum ep_purpose)(1 + i % 3), i % 5 & 1))
			continue;
		passed++;
		cr_assert(f.bytes <= EP_FRAME_MAX && f.type && f.type < EP_F_TYPES);
	}
	cr_expect_gt(passed, 1000);
}
