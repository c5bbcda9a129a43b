/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of `ep_info --check`. */
#ifndef EP_PERF_INFO_CHECK_H
#define EP_PERF_INFO_CHECK_H

#include "perf/ep_check.h"

struct ep_info_check {
	const char *by; /* how the ranks were started, for people */
	int ranks;
	const struct ep_check_rank *all; /* [ranks] */
	const char *text;		 /* what went wrong and belongs to no rank, "": nothing */
};

/* Opens NCCL, libnccl_ep and the self-test. 0; -1: out has the error and the remedy. */
int ep_info_open(bool gpu, struct ep_check_rank *out, ep_check_fn *run);

/* Findings of all ranks, the cause before its consequences. */
void ep_info_judge(const struct ep_info_check *check);
/* Nodes, ranks, rails, shared GPUs. */
void ep_info_map_print(const struct ep_info_check *check);
void ep_info_map_json(const struct ep_info_check *check);

extern const char *const ep_info_phases[EP_CHECK_DONE + 1];
/* Room for the numbers of the ranks for which `same` holds, as in "0-3, 8". */
#define EP_INFO_RANKS 160
const char *ep_info_ranks(const struct ep_info_check *check, bool (*same)(const struct ep_check_rank *, const void *),
			  const void *arg, char out[EP_INFO_RANKS]);

#endif
