/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Challenge and response: both ends prove that they know the secret of the id before either reads a frame.
 *
 *   server -> client  greet   nonce
 *   client -> server  claim   purpose, ranks, nonce of its own, MAC over all of it
 *   server -> client  proof   accepted or why not, MAC over the same with the server's label
 *
 * The MAC is keyed BLAKE2b. The server sends one only to a client that has authenticated, so that it signs nothing for
 * others; the labels differ, so that a claim cannot be reflected as a proof. The frames that follow are neither
 * encrypted nor authenticated: the secret keeps out strangers and other jobs, not an attacker on the network. No I/O
 * here: the event loop and the blocking descriptor fetch share it.
 */
#ifndef EP_PLUGIN_BOOT_SHAKE_H
#define EP_PLUGIN_BOOT_SHAKE_H

#include <stdint.h>

#include "plugin/boot/types.h"

#define EP_NONCE 16
#define EP_MAC 32

enum ep_shake_status { EP_SHAKE_OK, EP_SHAKE_SECRET, EP_SHAKE_ADDRESSEE, EP_SHAKE_STATES };

struct ep_greet {
	char magic[8];
	uint8_t nonce[EP_NONCE];
};

struct ep_claim {
	uint32_t purpose, from, to, order; /* order: 0x01020304, detects another byte order */
	uint8_t nonce[EP_NONCE];
	uint8_t mac[EP_MAC];
};

struct ep_proof {
	uint32_t status, pad;
	uint8_t mac[EP_MAC];
};

/* Receive buffer of any message. */
union ep_shake_record {
	struct ep_greet greet;
	struct ep_claim claim;
	struct ep_proof proof;
	uint8_t bytes[64];
};
_Static_assert(sizeof(union ep_shake_record) == 64 && sizeof(struct ep_claim) == 64, "no padding");

struct ep_shake {
	uint32_t purpose, from, to; /* set by the client, learnt from the claim by the server */
	uint8_t nonce[2][EP_NONCE]; /* server's, client's */
};

int ep_shake_greet(struct ep_shake *s, struct ep_greet *out);

/* The client's answer; -EPROTO if the server speaks another protocol. */
int ep_shake_claim(struct ep_shake *s, const uint8_t *secret, const struct ep_greet *in, struct ep_claim *out);

/* Fills purpose, from and to; -EACCES if the MAC is wrong. */
int ep_shake_verify(struct ep_shake *s, const uint8_t *secret, const struct ep_claim *in);
int ep_shake_prove(const struct ep_shake *s, const uint8_t *secret, enum ep_shake_status status, struct ep_proof *out);

/* 0; -EACCES: wrong secret; -EADDRNOTAVAIL: wrong destination rank; -EPROTO: the server's MAC is wrong. */
int ep_shake_confirm(const struct ep_shake *s, const uint8_t *secret, const struct ep_proof *in);

/* Random bytes for secrets, nonces and tokens. */
int ep_random(void *buf, size_t n);

#endif
