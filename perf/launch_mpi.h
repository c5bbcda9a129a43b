/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few calls of an MPI that a launch needs. The two families differ in their binary interface: handles are pointers
 * to objects of the library in Open MPI, numbers in MPICH and what descends from it. So each is a module of its own,
 * and neither is needed to build or to run.
 */
#ifndef EP_PERF_LAUNCH_MPI_H
#define EP_PERF_LAUNCH_MPI_H

#include <stddef.h>

struct launch_mpi {
	const char *const *libraries; /* tried in this order; ends with NULL */
	/* 0, or -1 if the library lacks a symbol. Once per process. */
	int (*bind)(void *library);
	int (*init)(void);
	int (*gather)(const void *mine, int bytes, void *all);
	int (*finalize)(void);
};

extern const struct launch_mpi launch_ompi, launch_mpich;

#endif
