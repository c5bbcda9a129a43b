/* SPDX-License-Identifier: Apache-2.0 */
/* Open MPI: a handle is the address of an object in the library. */
#include <dlfcn.h>

#include "perf/launch_mpi.h"

static struct {
	int (*init)(int *, char ***);
	int (*finalize)(void);
	int (*allgather)(const void *, int, void *type, void *, int, void *type_out, void *comm);
	void *world, *byte;
} mpi;

static int ompi_bind(void *library)
{
	*(void **)&mpi.init = dlsym(library, "MPI_Init");
	*(void **)&mpi.finalize = dlsym(library, "MPI_Finalize");
	*(void **)&mpi.allgather = dlsym(library, "MPI_Allgather");
	mpi.world = dlsym(library, "ompi_mpi_comm_world");
	mpi.byte = dlsym(library, "ompi_mpi_byte");
	return mpi.init && mpi.finalize && mpi.allgather && mpi.world && mpi.byte ? 0 : -1;
}

static int ompi_init(void)
{
	return mpi.init(NULL, NULL);
}

static int ompi_gather(const void *mine, int bytes, void *all)
{
	return mpi.allgather(mine, bytes, mpi.byte, all, bytes, mpi.byte, mpi.world);
}

static int ompi_finalize(void)
{
	return mpi.finalize();
}

static const char *const names[] = { "libmpi.so.40", "libmpi.so.80", "libmpi.so.20", "libmpi.so", NULL };

const struct launch_mpi launch_ompi = {
	.libraries = names, .bind = ompi_bind, .init = ompi_init, .gather = ompi_gather, .finalize = ompi_finalize
};
