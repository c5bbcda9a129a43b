/* SPDX-License-Identifier: Apache-2.0 */
#include "net/option.h"

#include <stdlib.h>
#include <string.h>

#include "util/error.h"

static int word_take(const char *net, const char *text, size_t n, const struct ep_net_option *option)
{
	size_t name = strlen(option->name), size;

	size = n > name ? n - name - 1 : 0;
	if (!size || size >= option->max)
		return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: option %s of %s needs a value of 1 to %llu characters",
			       option->name, net, (unsigned long long)option->max - 1);
	memcpy(option->text, text + name + 1, size);
	option->text[size] = 0;
	return 0;
}

static int option_take(const char *net, const char *text, size_t n, const struct ep_net_option *table, int count)
{
	const char *sign = memchr(text, '=', n);
	size_t name = sign ? (size_t)(sign - text) : n;
	unsigned long long value;
	char *end;

	for (int i = 0; i < count; i++) {
		if (strlen(table[i].name) != name || memcmp(table[i].name, text, name) != 0)
			continue;
		if (table[i].text)
			return word_take(net, text, n, &table[i]);
		errno = 0;
		/* strtoull accepts "-1": the first character must be a digit. */
		value = sign && sign[1] >= '0' && sign[1] <= '9' ? strtoull(sign + 1, &end, 0) : 0;
		if (!sign || sign[1] < '0' || sign[1] > '9' || end != text + n || errno || value > table[i].max)
			return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: option %s of %s needs a number from 0 to %llu",
				       table[i].name, net, (unsigned long long)table[i].max);
		*table[i].value = value;
		return 0;
	}
	return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: %s has no option %.*s", net, (int)name, text);
}

int ep_net_options(const char *net, const char *text, const struct ep_net_option *table, int count)
{
	while (*text) {
		size_t n = strcspn(text, ",");
		int rc = n ? option_take(net, text, n, table, count) : 0;

		if (rc)
			return rc;
		text += n + (text[n] == ',');
	}
	return 0;
}
