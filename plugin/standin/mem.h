/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_STANDIN_MEM_H
#define EP_PLUGIN_STANDIN_MEM_H

#include <stddef.h>
#include <stdint.h>

/* See struct ep_standin_query. */
int ep_sc_mem_find(const void *ptr, void **base, size_t *size, uint64_t *id);
int ep_sc_mem_export(const void *ptr, int *fd, uint64_t *offset, uint64_t *size);

#endif
