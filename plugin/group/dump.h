/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this rank's part of a group is doing, as a file in NCCL_EP_DUMP_DIR: one per group and rank, lines of "word
 * value ...". ep_info --dump joins those of all ranks (perf/ep_info_dump.c reads what this writes). Without the
 * variable there is no thread and no file.
 */
#ifndef EP_PLUGIN_DUMP_H
#define EP_PLUGIN_DUMP_H

#include "plugin/group/group.h"

/* Starts the group's guard, where the variable is set: a failure of the group writes a dump. */
int ep_dump_open(struct ncclEpGroup *group);
/* Now; replaces an earlier one. why: one line. */
int ep_dump_write(struct ncclEpGroup *group, const char *why);

#endif
