/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of this process that callers hold by address: one that was destroyed, or never was one, is refused
 * without being read. Of an address that a new object has got meanwhile this cannot be known.
 *
 * Lookups take no lock (8 ns; they come before every operation); everything else does.
 */
#ifndef EP_UTIL_LIVE_H
#define EP_UTIL_LIVE_H

#include <stdbool.h>

/* In the low bits of an address: at most 7. */
enum ep_live_kind { EP_LIVE_GROUP = 1, EP_LIVE_HANDLE, EP_LIVE_STREAM };

/* ptr is of calloc. -ENOMEM with its message. */
int ep_live_add(enum ep_live_kind kind, const void *ptr);
bool ep_live_has(enum ep_live_kind kind, const void *ptr);

/* To destroy it: of several callers one gets it, and to all others it is gone. Then either back, or drop. */
bool ep_live_hold(enum ep_live_kind kind, const void *ptr);
void ep_live_back(enum ep_live_kind kind, const void *ptr);
/* Also without a hold. */
void ep_live_drop(enum ep_live_kind kind, const void *ptr);

#endif
