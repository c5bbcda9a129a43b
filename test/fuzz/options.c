/* SPDX-License-Identifier: Apache-2.0 */
/* What users write: transports, options, parameters, interface and CPU lists; and text of peers in messages. */
#include "fuzz.h"

#include "net/net.h"
#include "net/option.h"
#include "proxy/cpus.h"
#include "util/error.h"
#include "util/param.h"
#include "util/sock.h"
#include "util/text.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	fuzz_quiet();
	return 0;
}

static void specs(const char *text)
{
	char list[EP_NET_SPEC_MAX], one[EP_NET_SPEC_MAX];
	const char *rest = list;
	struct ep_net *net;

	if (ep_net_list(text, list))
		return;
	while (ep_net_next(&rest, one)) {
		MUST(strlen(one) < sizeof(one));
		ep_net_is_local(one);
		/* Nets that load libraries and search devices are no parsers. */
		if (strstr(one, "verbs") || strstr(one, "fabric") || ep_net_try(one, &net, NULL))
			continue;
		ep_net_close(net);
	}
}

static void options(const char *text)
{
	uint64_t small = 0, any = 0;
	char word[8] = "";
	const struct ep_net_option table[] = { { "small", &small, 7, NULL },
					       { "any", &any, UINT64_MAX, NULL },
					       { "word", NULL, sizeof(word), word } };

	ep_net_options("fuzz", text, table, 3);
	MUST(small <= 7 && strnlen(word, sizeof(word)) < sizeof(word));
}

static void parameters(struct feed *f, const char *text)
{
	enum ep_param_id id = (enum ep_param_id)(feed_u8(f) % EP_PARAMS);
	const struct ep_param *p = ep_param_info(id);
	int64_t n;

	setenv(p->name, text, 1);
	ep_param_source(id);
	if (p->type == EP_T_INT) {
		n = ep_param_int(id);
		MUST(n >= p->min && n <= p->max);
	} else if (p->type == EP_T_BOOL) {
		ep_param_bool(id);
	} else {
		ep_param_str(id);
	}
	unsetenv(p->name);
	fuzz_quiet();
}

static void peers(struct feed *f, const char *text, size_t n)
{
	size_t size = 1 + feed_u8(f) % 64;
	char *out = malloc(size);

	MUST(out);
	ep_text_take(out, size, text, n);
	MUST(strlen(out) < size);
	for (const char *c = out; *c; c++)
		MUST(*c >= ' ' && *c <= '~');
	free(out);
	MUST(ep_rc_take((long long)feed_number(f)) <= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	uint8_t what = feed_u8(&f);
	struct feed head = { f.at, f.left < 2 ? f.left : 2 };
	struct ep_cpus cpus;
	char *text;

	f.at += head.left;
	f.left -= head.left;
	text = malloc(f.left + 1);
	MUST(text);
	if (f.left)
		memcpy(text, f.at, f.left);
	text[f.left] = 0;
	if (what < 0x60)
		specs(text);
	else if (what < 0x90)
		options(text);
	else if (what < 0xb0)
		parameters(&head, text);
	else if (what < 0xd0)
		ep_sock_if_match(text, "eth0");
	else if (what < 0xe0)
		ep_cpus_parse(text, &cpus);
	else
		peers(&head, text, f.left);
	free(text);
	return 0;
}
