/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of ep_info. */
#ifndef EP_PERF_INFO_H
#define EP_PERF_INFO_H

/* error: EP cannot run */
enum ep_info_level { EP_INFO_NOTE, EP_INFO_WARNING, EP_INFO_ERROR };

/* Facts of a section follow each other. */
void ep_info_fact(const char *section, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void ep_info_find(enum ep_info_level level, const char *fix, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Prints all of them; the last line is what to do first. The exit status: 0, EP can run. */
int ep_info_verdict(void);
int ep_info_json(const char *version);

void ep_info_host(void);
void ep_info_rdma(void);
void ep_info_libraries(void);
/* Which transport would connect ranks of several hosts, after a registration with its device. */
void ep_info_transports(void);

/* Call first: captures what transports log, for ep_info_nets. */
void ep_info_listen(void);
/* Every transport: its devices, or why it has none; and what a rank here would use. */
void ep_info_nets(void);
/* Joins the dumps in a folder; the exit status. */
int ep_info_dump(const char *folder);
/* NIC profiles of the verbs transport. Weak: it may not be built in. */
void ep_info_profiles(void) __attribute__((weak));

#endif
