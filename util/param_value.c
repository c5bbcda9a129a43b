/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters as values: above the log, which reads its own settings as strings. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util/log.h"
#include "util/param.h"

/* Once per parameter, not at every group. */
static void complain(enum ep_param_id id, const char *value, const char *want)
{
	static atomic_bool said[EP_PARAMS];

	if (!atomic_exchange_explicit(&said[id], true, memory_order_relaxed))
		EP_WARN(EP_ENV, "%s=%s is not %s; using the default, %s", ep_param_source(id), value, want,
			ep_param_info(id)->def);
}

int64_t ep_param_int(enum ep_param_id id)
{
	const struct ep_param *p = ep_param_info(id);
	const char *value = ep_param_str(id);
	char *end;
	long long n = strtoll(value, &end, 0);

	if (end != value && !*end && n >= p->min && n <= p->max)
		return n;
	complain(id, value, "a number in range");
	return strtoll(p->def, NULL, 0);
}

bool ep_param_bool(enum ep_param_id id)
{
	static const struct {
		const char *word;
		bool value;
	} words[] = { { "0", false },  { "1", true },	   { "n", false },   { "y", true },    { "no", false },
		      { "yes", true }, { "false", false }, { "true", true }, { "off", false }, { "on", true } };
	const char *value = ep_param_str(id);

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (!strcasecmp(value, words[i].word))
			return words[i].value;
	complain(id, value, "0 or 1");
	return strcmp(ep_param_info(id)->def, "0") != 0;
}
