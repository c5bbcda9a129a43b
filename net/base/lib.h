/* SPDX-License-Identifier: Apache-2.0 */
/* A vendor's library, loaded at run time, and why a transport has no device. */
#ifndef EP_NET_BASE_LIB_H
#define EP_NET_BASE_LIB_H

#include <stdbool.h>
#include <stddef.h>

struct ep_base_symbol {
	const char *name, *version; /* version NULL: the default one */
	size_t slot;		    /* where its pointer goes in the table of functions */
	bool optional;
};

struct ep_base_lib {
	const char *net, *file;
	const char *remedy; /* what to do where it cannot be loaded: "install ..." */
	bool loaded;
	char why[256]; /* where it is not */
};

/*
 * Fills api, a struct of function pointers, from the library. It is never unloaded: threads and caches of its providers
 * outlive our last use.
 */
void ep_base_lib_load(struct ep_base_lib *lib, const struct ep_base_symbol *symbols, size_t count, void *api);
/* lib->loaded; where it is not, the reason is noted. */
bool ep_base_lib_check(const struct ep_base_lib *lib);

/* Why there is no device, or not this one: a line at INFO ("NAME: TEXT"); the text is also ep_last_error(). */
void ep_base_note(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
