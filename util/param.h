/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment variables of the library, in one table (util/param_table.h); nothing else calls getenv.
 * Read at every call: all callers are on cold paths, and tests change values between groups.
 */
#ifndef EP_UTIL_PARAM_H
#define EP_UTIL_PARAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ep_param_id {
#define EP_PARAM(id, name, type, def, min, max, fallbacks, text) EP_P_##id,
#include "util/param_table.h"
#undef EP_PARAM
	EP_PARAMS
};

enum ep_param_type { EP_T_INT, EP_T_BOOL, EP_T_STR };

struct ep_param {
	const char *name;
	enum ep_param_type type;
	const char *def;
	int64_t min, max;
	const char *fallbacks; /* space-separated variables of other projects, used if the own one is not set */
	const char *text;
};

const struct ep_param *ep_param_info(enum ep_param_id id);

/* The variable that sets it (its own name or a fallback), or NULL if the default is used. */
const char *ep_param_source(enum ep_param_id id);

/* An invalid value is logged once, and the default is used. */
int64_t ep_param_int(enum ep_param_id id);
bool ep_param_bool(enum ep_param_id id);
const char *ep_param_str(enum ep_param_id id);

#endif
