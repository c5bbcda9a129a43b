/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/shake.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "plugin/boot/mac.h"

_Static_assert(EP_BOOT_SECRET == EP_MAC_KEY, "the secret is the key of the MAC");

/* The digit is the version of the protocol after the greeting. */
static const char magic[8] = "AnyEPb1";
static const char client_says[8] = "client", server_says[8] = "server";

#define BYTE_ORDER_MARK 0x01020304u

int ep_random(void *buf, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t got = getrandom((char *)buf + at, n - at, 0);

		if (got < 0 && errno != EINTR)
			return -errno;
		at += got > 0 ? (size_t)got : 0;
	}
	return 0;
}

static int mac(const struct ep_shake *s, const uint8_t *secret, const char who[8], uint8_t out[EP_MAC])
{
	struct {
		char magic[8], who[8];
		uint32_t purpose, from, to, pad;
		uint8_t nonce[2][EP_NONCE];
	} text = { .purpose = s->purpose, .from = s->from, .to = s->to };

	memcpy(text.magic, magic, sizeof(magic));
	memcpy(text.who, who, sizeof(text.who));
	memcpy(text.nonce, s->nonce, sizeof(text.nonce));
	return ep_mac(out, EP_MAC, secret, &text, sizeof(text));
}

int ep_shake_greet(struct ep_shake *s, struct ep_greet *out)
{
	int rc = ep_random(s->nonce[0], EP_NONCE);

	if (rc)
		return rc;
	memcpy(out->magic, magic, sizeof(magic));
	memcpy(out->nonce, s->nonce[0], EP_NONCE);
	return 0;
}

int ep_shake_claim(struct ep_shake *s, const uint8_t *secret, const struct ep_greet *in, struct ep_claim *out)
{
	int rc;

	if (memcmp(in->magic, magic, sizeof(magic)))
		return -EPROTO;
	rc = ep_random(s->nonce[1], EP_NONCE);
	if (rc)
		return rc;
	memcpy(s->nonce[0], in->nonce, EP_NONCE);
	*out = (struct ep_claim){ .purpose = s->purpose, .from = s->from, .to = s->to, .order = BYTE_ORDER_MARK };
	memcpy(out->nonce, s->nonce[1], EP_NONCE);
	return mac(s, secret, client_says, out->mac);
}

int ep_shake_verify(struct ep_shake *s, const uint8_t *secret, const struct ep_claim *in)
{
	uint8_t want[EP_MAC];
	int rc;

	s->purpose = in->purpose;
	s->from = in->from;
	s->to = in->to;
	memcpy(s->nonce[1], in->nonce, EP_NONCE);
	rc = mac(s, secret, client_says, want);
	if (rc)
		return rc;
	return in->order != BYTE_ORDER_MARK || ep_mac_differ(want, in->mac, EP_MAC) ? -EACCES : 0;
}

int ep_shake_prove(const struct ep_shake *s, const uint8_t *secret, enum ep_shake_status status, struct ep_proof *out)
{
	*out = (struct ep_proof){ .status = status };
	return status == EP_SHAKE_OK ? mac(s, secret, server_says, out->mac) : 0;
}

int ep_shake_confirm(const struct ep_shake *s, const uint8_t *secret, const struct ep_proof *in)
{
	uint8_t want[EP_MAC];
	int rc;

	if (in->status == EP_SHAKE_SECRET)
		return -EACCES;
	if (in->status == EP_SHAKE_ADDRESSEE)
		return -EADDRNOTAVAIL;
	rc = mac(s, secret, server_says, want);
	if (rc)
		return rc;
	return in->status != EP_SHAKE_OK || ep_mac_differ(want, in->mac, EP_MAC) ? -EPROTO : 0;
}
