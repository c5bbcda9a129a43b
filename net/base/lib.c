/* SPDX-License-Identifier: Apache-2.0 */
#include "net/base/lib.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "util/error.h"

void ep_base_lib_load(struct ep_base_lib *lib, const struct ep_base_symbol *symbols, size_t count, void *api)
{
	void *handle = dlopen(lib->file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	const char *error;

	if (!handle) {
		error = dlerror();
		snprintf(lib->why, sizeof(lib->why), "cannot load %s: %.120s; %s", lib->file,
			 error ? error : "no reason given", lib->remedy);
		return;
	}
	for (size_t i = 0; i < count; i++) {
		const struct ep_base_symbol *s = &symbols[i];
		void *symbol = s->version ? dlvsym(handle, s->name, s->version) : dlsym(handle, s->name);

		if (!symbol && !s->optional) {
			snprintf(lib->why, sizeof(lib->why), "%s has no symbol %s%s%s; %s", lib->file, s->name,
				 s->version ? "@" : "", s->version ? s->version : "", lib->remedy);
			return;
		}
		memcpy((char *)api + s->slot, &symbol, sizeof(symbol));
	}
	lib->loaded = true;
}

bool ep_base_lib_check(const struct ep_base_lib *lib)
{
	if (!lib->loaded)
		ep_base_note(lib->net, "%s", lib->why);
	return lib->loaded;
}

void ep_base_note(const char *name, const char *fmt, ...)
{
	char text[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	EP_INFO(EP_NET, "%s: %s", name, text);
	ep_last_error_set(text);
}
