/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of ep_info. */
#ifndef EP_PERF_INFO_H
#define EP_PERF_INFO_H

#include <stdbool.h>
#include <stddef.h>

/* error: EP cannot run */
enum ep_info_level { EP_INFO_NOTE, EP_INFO_WARNING, EP_INFO_ERROR };

/* Facts of a section follow each other. */
void ep_info_fact(const char *section, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void ep_info_find(enum ep_info_level level, const char *fix, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Prints all of them; the last line is what to do first. The exit status: 0, EP can run. */
int ep_info_verdict(void);
int ep_info_json(const char *version);
/* The same of the findings only; where: "EP can run ...". The second is the end of an object. */
int ep_info_findings_print(const char *where);
int ep_info_findings_json(void);
int ep_info_status(void);
/* The first error and what to do, if there is one; and a new beginning. */
void ep_info_gravest(char *what, size_t what_size, char *fix, size_t fix_size);
void ep_info_forget(void);
/* "name": "value" of JSON. */
void ep_info_pair(const char *name, const char *value, const char *after);

void ep_info_host(void);
void ep_info_rdma(void);
void ep_info_libraries(void);
/* GPUs, RDMA devices and what joins them, of this host, or of a copy of its /sys; printed by the other two. */
void ep_info_topo_read(const char *sys);
void ep_info_topo_print(void);
/* As a member of an object. */
void ep_info_topo_json(void);
/* What ncclGetVersion or its like says, 0: nothing. */
int ep_info_version(void *dl, const char *name);
/* Which transport would connect ranks of several hosts, after a registration with its device. */
void ep_info_transports(void);

/* The libnccl of Python's packages, "" where there is none. */
void ep_info_python_nccl(char *path, size_t size);

/* --check, by the command line. */
struct ep_info_check_opts {
	int ranks; /* 0: not given */
	bool processes, json;
	const char *device; /* NULL: not given */
};

/* The self-test between ranks: the exit status, the same on every rank. Rank 0 prints. */
int ep_info_check(const struct ep_info_check_opts *opts);

/* Call first: captures what transports log, for ep_info_nets. */
void ep_info_listen(void);
/* Every transport: its devices, or why it has none; and what a rank here would use. */
void ep_info_nets(void);
/* Joins the dumps in a folder; the exit status. */
int ep_info_dump(const char *folder);
/* NIC profiles of the verbs transport. Weak: it may not be built in. */
void ep_info_profiles(void) __attribute__((weak));

#endif
