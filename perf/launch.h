/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that a launcher has started, one per process: mpirun of Open MPI or MPICH, torchrun (or whatever sets its
 * variables, as Ray), srun. The programs here find out by the environment, so that one binary serves all of them. All a
 * launcher is needed for is to exchange a few bytes before there is a communicator: by MPI, which is opened at run
 * time, or by TCP over rank 0.
 */
#ifndef EP_PERF_LAUNCH_H
#define EP_PERF_LAUNCH_H

#include <stddef.h>

/* Room for a message. */
#define LAUNCH_TEXT 512

struct launch;

/*
 * Collective: meets the other ranks. *out is NULL where the process is alone. -1: text names the rank and what to do.
 * A host's index of this rank is counted here where the launcher did not tell it.
 */
int launch_open(struct launch **out, char *text, size_t size);
void launch_close(struct launch *launch); /* collective for MPI; NULL is accepted */

const char *launch_name(const struct launch *launch);
int launch_rank(const struct launch *launch);
int launch_ranks(const struct launch *launch);
int launch_local(const struct launch *launch);
/* Collective: `bytes` of every rank, in their order, to all[ranks]. 0, or -1 as above. Also a barrier. */
int launch_gather(struct launch *launch, const void *mine, size_t bytes, void *all, char *text, size_t size);

#endif
