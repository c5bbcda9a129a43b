/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of groups whose ranks are threads of one process, on the CPU device. They hold plain pointers into each
 * other's windows, and engines of one put into the memory of another. A rank that ends without the others' consent
 * keeps its memory until the last of them has ended, and that one frees the memory of all.
 */
#ifndef EP_PLUGIN_RETIRE_H
#define EP_PLUGIN_RETIRE_H

#include "plugin/group/group.h"

/*
 * The rank has ended: its kernels, threads and engines. safe: all of them have, so that it uses no memory of others any
 * more. quiet: no other rank uses its memory. Returns the groups to be freed now, linked by `retired`: this one, if it
 * is quiet, and those that waited for it.
 */
struct ncclEpGroup *ep_retire(struct ncclEpGroup *group, bool safe, bool quiet);

#endif
