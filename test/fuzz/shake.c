/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake at both ends, with true and false MACs; ids and frame headers. */
#include "plugin/boot/shake.c"

#include "fuzz.h"

#include "plugin/boot/id.h"
#include "plugin/boot/wire.h"

static const uint8_t secret[EP_BOOT_SECRET] = "a true secret!!";

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	fuzz_quiet();
	return 0;
}

/* The server of a client that may know the secret. */
static void serve(struct feed *f)
{
	struct ep_shake s = { .nonce[0] = "server" }, theirs = s;
	struct ep_claim claim;
	struct ep_proof proof;
	bool honest = feed_u8(f) & 1, spoilt;
	int rc;

	feed_bytes(f, &claim, sizeof(claim));
	if (honest) {
		claim.order = BYTE_ORDER_MARK;
		theirs.purpose = claim.purpose;
		theirs.from = claim.from;
		theirs.to = claim.to;
		memcpy(theirs.nonce[1], claim.nonce, EP_NONCE);
		MUST(!mac(&theirs, secret, client_says, claim.mac));
	}
	spoilt = honest && feed_u8(f) & 1;
	if (spoilt)
		claim.mac[feed_u8(f) % EP_MAC] ^= 1;
	rc = ep_shake_verify(&s, secret, &claim);
	MUST(honest && !spoilt ? rc == 0 : rc == -EACCES); /* guessing a MAC would be a find */
	MUST(!ep_shake_prove(&s, secret, rc ? EP_SHAKE_SECRET : EP_SHAKE_OK, &proof));
	rc = ep_shake_confirm(&theirs, secret, &proof);
	MUST(honest && !spoilt ? rc == 0 : rc == -EACCES);
}

/* The client of a server that may be none. */
static void ask(struct feed *f)
{
	struct ep_shake s = { .purpose = EP_TO_RANK, .from = 1, .to = 2 };
	struct ep_greet greet;
	struct ep_claim claim;
	struct ep_proof proof;
	bool known = feed_u8(f) & 1;
	int rc;

	feed_bytes(f, &greet, sizeof(greet));
	if (known)
		memcpy(greet.magic, magic, sizeof(magic));
	rc = ep_shake_claim(&s, secret, &greet, &claim);
	MUST(rc == 0 || rc == -EPROTO);
	feed_bytes(f, &proof, sizeof(proof));
	rc = ep_shake_confirm(&s, secret, &proof);
	MUST(rc == -EPROTO || rc == -EACCES || rc == -EADDRNOTAVAIL);
}

static void ids(struct feed *f)
{
	struct ep_boot_id id;
	union ep_sockaddr addr;

	MUST(!ep_boot_id_init(&id));
	id.port = 5;
	id.naddr = 1;
	id.addr[0].family = 4;
	feed_patch(f, &id, sizeof(id));
	if (ep_boot_id_check(&id))
		return;
	for (int i = 0; i < id.naddr; i++)
		ep_boot_addr_get(&id.addr[i], id.port, &addr);
}

static void headers(struct feed *f)
{
	struct ep_frame head;
	struct ep_peer peer;

	feed_bytes(f, &head, sizeof(head));
	feed_bytes(f, &peer, sizeof(peer));
	for (int purpose = 0; purpose < 4; purpose++)
		if (!ep_frame_check(&head, (enum ep_purpose)purpose, feed_u8(f) & 1))
			MUST(head.bytes <= EP_FRAME_MAX && head.type < EP_F_TYPES);
	MUST(ep_frame_err(&head) > 0 && ep_frame_err(&head) < 4096);
	MUST(!ep_peer_ok(&peer, 3) || (peer.rank == 3 && peer.naddr <= EP_BOOT_ADDRS));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };

	switch (feed_u8(&f) % 4) {
	case 0:
		serve(&f);
		break;
	case 1:
		ask(&f);
		break;
	case 2:
		ids(&f);
		break;
	default:
		headers(&f);
	}
	return 0;
}
