/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a vendor's library at run time, and reporting why a transport has no device. */
#ifndef EP_NET_BASE_LIB_H
#define EP_NET_BASE_LIB_H

#include <stdbool.h>
#include <stddef.h>

struct ep_base_symbol {
	const char *name, *version; /* version NULL: the default one */
	size_t slot;		    /* offset of its pointer in the struct of functions */
	bool optional;
};

struct ep_base_lib {
	const char *net, *file;
	const char *remedy; /* what to do when it cannot be loaded: "install ..." */
	bool loaded;
	char why[256]; /* the reason when it is not */
};

/*
 * Fills api, a struct of function pointers, from the library. It is never unloaded: threads and caches of its providers
 * outlive the last use.
 */
void ep_base_lib_load(struct ep_base_lib *lib, const struct ep_base_symbol *symbols, size_t count, void *api);
/* Returns lib->loaded, after a note of the reason when it is not. */
bool ep_base_lib_check(const struct ep_base_lib *lib);

/* Why there is no device, or why one is left out: logs "NAME: TEXT" at INFO, and TEXT becomes ep_last_error(). */
void ep_base_note(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
