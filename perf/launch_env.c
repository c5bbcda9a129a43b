/* SPDX-License-Identifier: Apache-2.0 */
/* Which launcher started this process, by its variables. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/launch_env.h"

#define TORCH_PORT 29500
/* Of a Slurm step: below Linux's ephemeral ports (32768 on), and two steps of a host rarely meet. */
#define SLURM_PORT 20000
#define SLURM_PORTS 10000

struct sign {
	enum launch_by by;
	const char *name;
	const char *needs; /* another variable that only this launcher sets, or NULL */
	const char *rank, *ranks, *local;
};

/*
 * The first whose variables are there. A launcher that another one started comes first: torchrun under srun or mpirun,
 * and mpirun, which starts its daemons by srun. PMI_RANK may also be of srun (--mpi=pmi2), MPI_LOCALNRANKS is MPICH's.
 * Plain RANK and WORLD_SIZE are what Ray and scripts around srun set. SLURM_STEP_ID is missing in a batch script, which
 * is no rank.
 */
static const struct sign signs[] = {
	{ LAUNCH_TCP, "torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK" },
	{ LAUNCH_OMPI, "mpirun (Open MPI)", NULL, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
	  "OMPI_COMM_WORLD_LOCAL_RANK" },
	{ LAUNCH_MPICH, "mpirun (MPICH)", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID" },
	{ LAUNCH_TCP, "RANK and WORLD_SIZE", "MASTER_ADDR", "RANK", "WORLD_SIZE", "LOCAL_RANK" },
	{ LAUNCH_TCP, "srun", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID" },
};

static const char *value_of(const char *name)
{
	const char *value = name ? getenv(name) : NULL;

	return value && *value ? value : NULL;
}

/* 0: *out is the number, or stays where the variable is not set; -1 with a text if it is none of [min, max]. */
static int number_of(const char *name, long min, long max, long *out, char *text, size_t size)
{
	const char *value = value_of(name);
	char *end;
	long n;

	if (!value)
		return 0;
	errno = 0;
	n = strtol(value, &end, 10);
	if (errno || *end || n < min || n > max) {
		snprintf(text, size, "%s=%s: must be a number from %ld to %ld", name, value, min, max);
		return -1;
	}
	*out = n;
	return 0;
}

static const struct sign *sign_find(void)
{
	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
		if (value_of(signs[i].rank) && value_of(signs[i].ranks) &&
		    (!signs[i].needs || value_of(signs[i].needs)))
			return &signs[i];
	return NULL;
}

/* torchrun's agent listens at MASTER_PORT itself: ours is the next. */
static int port_read(struct launch_env *env, char *text, size_t size)
{
	long master = TORCH_PORT, job = -1, step = 0, port;

	if (number_of("MASTER_PORT", 1, 65534, &master, text, size) ||
	    number_of("SLURM_JOB_ID", 0, 0xffffffffl, &job, text, size) ||
	    number_of("SLURM_STEP_ID", 0, 0xffffffffl, &step, text, size))
		return -1;
	port = master + 1;
	if (!value_of("MASTER_PORT") && job >= 0)
		port = SLURM_PORT + (job * 31 + step) % SLURM_PORTS;
	if (number_of("NCCL_EP_PORT", 1, 65535, &port, text, size))
		return -1;
	env->port = (uint16_t)port;
	return 0;
}

static int host_read(struct launch_env *env, char *text, size_t size)
{
	static const char *const lists[] = { "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST" };
	const char *master = value_of("MASTER_ADDR");

	if (master) {
		if (strlen(master) < sizeof(env->host)) {
			strcpy(env->host, master);
			return 0;
		}
		snprintf(text, size, "MASTER_ADDR: longer than %d characters", LAUNCH_HOST - 1);
		return -1;
	}
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		const char *list = value_of(lists[i]);

		if (!list)
			continue;
		if (!launch_first_host(list, env->host, sizeof(env->host)))
			return 0;
		snprintf(text, size, "%s=%s: no list of hosts; set MASTER_ADDR to the host of rank 0", lists[i], list);
		return -1;
	}
	return 0;
}

int launch_env_read(struct launch_env *out, char *text, size_t size)
{
	const struct sign *sign = sign_find();
	struct launch_env env = { .name = "alone", .ranks = 1 };
	long rank = 0, ranks = 1, local = -1;

	if (!sign) {
		*out = env;
		return 0;
	}
	if (number_of(sign->ranks, 1, 1 << 20, &ranks, text, size) ||
	    number_of(sign->rank, 0, ranks - 1, &rank, text, size) ||
	    number_of(sign->local, 0, ranks - 1, &local, text, size))
		return -1;
	if (ranks > 1) {
		env = (struct launch_env){
			.name = sign->name, .by = sign->by, .rank = (int)rank, .ranks = (int)ranks, .local = (int)local
		};
		if (port_read(&env, text, size) || host_read(&env, text, size))
			return -1;
	}
	*out = env;
	return 0;
}
