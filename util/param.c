/* SPDX-License-Identifier: Apache-2.0 */
#include "util/param.h"

#include <stdlib.h>
#include <string.h>

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

/* The first of the name and its fallbacks that is set and not empty. */
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
