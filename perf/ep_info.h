/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of ep_info. */
#ifndef EP_PERF_INFO_H
#define EP_PERF_INFO_H

/* Call first: captures what transports log, for ep_info_nets. */
void ep_info_listen(void);
/* Every transport: its devices, or why it has none; and what a rank here would use. */
void ep_info_nets(void);
/* Joins the dumps in a folder; the exit status. */
int ep_info_dump(const char *folder);
/* NIC profiles of the verbs transport. Weak: it may not be built in. */
void ep_info_profiles(void) __attribute__((weak));

#endif
