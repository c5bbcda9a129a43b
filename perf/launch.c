/* SPDX-License-Identifier: Apache-2.0 */
#include "perf/launch.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf/launch_env.h"
#include "perf/launch_mpi.h"
#include "perf/launch_tcp.h"

struct launch {
	struct launch_env env;
	const struct launch_mpi *mpi; /* NULL: tcp */
	struct launch_tcp *tcp;
};

static int say(const struct launch_env *env, char *text, size_t size, const char *what, const char *why)
{
	snprintf(text, size, "rank %d: %s: %s", env->rank, what, why);
	return -1;
}

/*
 * RTLD_GLOBAL: Open MPI's components look for its symbols. Never closed: MPI leaves handlers behind. Where the MPI of
 * this mpirun is not installed as a library, TCP does if the host of rank 0 is told.
 */
static int mpi_open(struct launch *l, const struct launch_mpi *mpi, char *text, size_t size)
{
	char why[160] = "";

	for (const char *const *name = mpi->libraries; *name; name++) {
		void *library = dlopen(*name, RTLD_NOW | RTLD_GLOBAL);

		if (!library && !why[0])
			snprintf(why, sizeof(why), "%s", dlerror());
		if (!library || mpi->bind(library))
			continue;
		l->mpi = mpi;
		return mpi->init() ? say(&l->env, text, size, l->env.name, "MPI_Init failed") : 0;
	}
	if (l->env.host[0])
		return launch_tcp_open(&l->env, &l->tcp, text, size);
	snprintf(text, size,
		 "rank %d: started by %s, whose library cannot be opened (%s): install it, or set MASTER_ADDR "
		 "to the host of rank 0",
		 l->env.rank, l->env.name, why);
	return -1;
}

/* Ranks before this one on the same host, which is told by its boot, as names need not be unique. Exchanged by all, as
 * a rank that was told its index does not know whether the others were. */
static int local_count(struct launch *l, char *text, size_t size)
{
	char mine[64] = "", (*all)[sizeof(mine)] = calloc((size_t)l->env.ranks, sizeof(mine));
	FILE *in = fopen("/proc/sys/kernel/random/boot_id", "r");
	int rc = -1;

	if (!all)
		say(&l->env, text, size, "out of memory", "for the hosts of all ranks");
	if (!in || !fgets(mine, sizeof(mine), in))
		gethostname(mine, sizeof(mine) - 1);
	if (in)
		fclose(in);
	if (all)
		rc = launch_gather(l, mine, sizeof(mine), all, text, size);
	if (!rc && l->env.local < 0) {
		l->env.local = 0;
		for (int r = 0; r < l->env.rank; r++)
			l->env.local += !memcmp(all[r], mine, sizeof(mine));
	}
	free(all);
	return rc;
}

int launch_open(struct launch **out, char *text, size_t size)
{
	struct launch *l = calloc(1, sizeof(*l));
	int rc;

	*out = NULL;
	if (!l) {
		snprintf(text, size, "out of memory");
		return -1;
	}
	rc = launch_env_read(&l->env, text, size);
	if (rc || l->env.by == LAUNCH_ALONE) {
		free(l);
		return rc;
	}
	if (l->env.by == LAUNCH_TCP)
		rc = launch_tcp_open(&l->env, &l->tcp, text, size);
	else
		rc = mpi_open(l, l->env.by == LAUNCH_OMPI ? &launch_ompi : &launch_mpich, text, size);
	if (!rc)
		rc = local_count(l, text, size);
	if (rc) {
		if (l->tcp)
			launch_tcp_close(l->tcp);
		free(l);
		return -1;
	}
	*out = l;
	return 0;
}

void launch_close(struct launch *l)
{
	if (!l)
		return;
	if (l->mpi)
		l->mpi->finalize();
	else
		launch_tcp_close(l->tcp);
	free(l);
}

const char *launch_name(const struct launch *l)
{
	return l->env.name;
}

int launch_rank(const struct launch *l)
{
	return l->env.rank;
}

int launch_ranks(const struct launch *l)
{
	return l->env.ranks;
}

int launch_local(const struct launch *l)
{
	return l->env.local;
}

int launch_gather(struct launch *l, const void *mine, size_t bytes, void *all, char *text, size_t size)
{
	if (!l->mpi)
		return launch_tcp_gather(l->tcp, mine, bytes, all, text, size);
	return l->mpi->gather(mine, (int)bytes, all) ? say(&l->env, text, size, l->env.name, "MPI_Allgather failed")
						     : 0;
}
