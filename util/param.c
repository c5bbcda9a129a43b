/* SPDX-License-Identifier: Apache-2.0 */
#include "util/param.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util/log.h"

static const struct ep_param params[EP_PARAMS] = {
#define EP_PARAM(id, name, type, def, min, max, fallbacks, text) \
	[EP_P_##id] = { name, type, def, min, max, fallbacks, text },
#include "util/param_table.h"
#undef EP_PARAM
};

const struct ep_param *ep_param_info(enum ep_param_id id)
{
	return &params[id];
}

/* Finds the first of "name fallback fallback" that is set and not empty. */
static const char *find(enum ep_param_id id, const char **source)
{
	const struct ep_param *p = &params[id];
	const char *value = getenv(p->name);
	const char *f = p->fallbacks;

	*source = p->name;
	while ((!value || !*value) && *f) {
		size_t n = strcspn(f, " ");
		char name[64];

		if (n < sizeof(name)) {
			memcpy(name, f, n);
			name[n] = '\0';
			value = getenv(name);
			*source = f;
		}
		f += n + strspn(f + n, " ");
	}
	if (value && *value)
		return value;
	*source = NULL;
	return NULL;
}

const char *ep_param_source(enum ep_param_id id)
{
	static _Thread_local char name[64];
	const char *source;
	size_t n;

	if (!find(id, &source))
		return NULL;
	n = strcspn(source, " ");
	if (n >= sizeof(name))
		return NULL;
	memcpy(name, source, n);
	name[n] = '\0';
	return name;
}

const char *ep_param_str(enum ep_param_id id)
{
	const char *source, *value = find(id, &source);

	return value ? value : params[id].def;
}

/* Once per parameter: a bad value would otherwise be repeated at every group. */
static void complain(enum ep_param_id id, const char *value, const char *want)
{
	static atomic_bool said[EP_PARAMS];

	if (!atomic_exchange_explicit(&said[id], true, memory_order_relaxed))
		EP_WARN(EP_ENV, "%s=%s is not %s; using the default, %s", ep_param_source(id), value, want,
			params[id].def);
}

int64_t ep_param_int(enum ep_param_id id)
{
	const struct ep_param *p = &params[id];
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
	return strcmp(params[id].def, "0") != 0;
}
