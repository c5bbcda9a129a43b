/* SPDX-License-Identifier: Apache-2.0 */
/* MPICH and what shares its binary interface (MVAPICH, Intel MPI, Cray MPICH): a handle is a number. */
#include <dlfcn.h>

#include "perf/launch_mpi.h"

#define MPICH_COMM_WORLD 0x44000000
#define MPICH_BYTE 0x4c00010d

static struct {
	int (*init)(int *, char ***);
	int (*finalize)(void);
	int (*allgather)(const void *, int, int type, void *, int, int type_out, int comm);
} mpi;

static int mpich_bind(void *library)
{
	*(void **)&mpi.init = dlsym(library, "MPI_Init");
	*(void **)&mpi.finalize = dlsym(library, "MPI_Finalize");
	*(void **)&mpi.allgather = dlsym(library, "MPI_Allgather");
	/* A libmpi.so that is Open MPI's takes pointers. */
	return mpi.init && mpi.finalize && mpi.allgather && !dlsym(library, "ompi_mpi_comm_world") ? 0 : -1;
}

static int mpich_init(void)
{
	return mpi.init(NULL, NULL);
}

static int mpich_gather(const void *mine, int bytes, void *all)
{
	return mpi.allgather(mine, bytes, MPICH_BYTE, all, bytes, MPICH_BYTE, MPICH_COMM_WORLD);
}

static int mpich_finalize(void)
{
	return mpi.finalize();
}

static const char *const names[] = { "libmpich.so.12", "libmpi.so.12", "libmpi_cray.so.12",
				     "libmpich.so",    "libmpi.so",    NULL };

const struct launch_mpi launch_mpich = {
	.libraries = names, .bind = mpich_bind, .init = mpich_init, .gather = mpich_gather, .finalize = mpich_finalize
};
