/* SPDX-License-Identifier: Apache-2.0 */
/* Which launcher the environment names, the rank it gives, and where rank 0 is to be met. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "perf/launch.h"
#include "perf/launch_env.h"

static struct launch_env env;
static char text[LAUNCH_TEXT];

static void clean(void)
{
	static const char *const names[] = { "RANK",
					     "WORLD_SIZE",
					     "LOCAL_RANK",
					     "MASTER_ADDR",
					     "MASTER_PORT",
					     "TORCHELASTIC_RUN_ID",
					     "NCCL_EP_PORT",
					     "OMPI_COMM_WORLD_RANK",
					     "OMPI_COMM_WORLD_SIZE",
					     "OMPI_COMM_WORLD_LOCAL_RANK",
					     "PMI_RANK",
					     "PMI_SIZE",
					     "MPI_LOCALNRANKS",
					     "MPI_LOCALRANKID",
					     "SLURM_STEP_ID",
					     "SLURM_PROCID",
					     "SLURM_STEP_NUM_TASKS",
					     "SLURM_LOCALID",
					     "SLURM_JOB_ID",
					     "SLURM_STEP_NODELIST",
					     "SLURM_JOB_NODELIST",
					     "SLURM_NODELIST",
					     "SLURM_NTASKS" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
}

/* Variables as NAME=VALUE, separated by spaces. */
static int read_with(const char *list)
{
	char copy[512], *rest = copy;

	snprintf(copy, sizeof(copy), "%s", list);
	for (char *word; (word = strtok_r(rest, " ", &rest));) {
		char *value = strchr(word, '=');

		*value = '\0';
		setenv(word, value + 1, 1);
	}
	env = (struct launch_env){ .rank = -7 };
	return launch_env_read(&env, text, sizeof(text));
}

TestSuite(env, .timeout = 10, .init = clean);

#define SRUN                                                                                                           \
	"SLURM_JOB_ID=71 SLURM_STEP_ID=2 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_JOB_NODELIST=z9 " \
	"SLURM_STEP_NODELIST=n[08-09] "
#define TORCH "RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=head MASTER_PORT=3000 TORCHELASTIC_RUN_ID=x "
#define OMPI "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
#define MPICH "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 "

Test(env, nothing)
{
	cr_expect_eq(read_with(""), 0);
	cr_expect_eq(env.by, LAUNCH_ALONE);
	cr_expect(env.rank == 0 && env.ranks == 1);
}

Test(env, srun)
{
	cr_expect_eq(read_with(SRUN), 0);
	cr_expect(env.by == LAUNCH_TCP && env.rank == 3 && env.ranks == 4 && env.local == 1);
	cr_expect_str_eq(env.host, "n08"); /* of the step, not of the job */
	cr_expect_eq(env.port, 20000 + 71 * 31 + 2);
}

Test(env, batch_script_is_no_rank)
{
	cr_expect_eq(read_with("SLURM_JOB_ID=71 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0"), 0);
	cr_expect_eq(env.by, LAUNCH_ALONE);
}

Test(env, torchrun)
{
	cr_expect_eq(read_with(TORCH), 0);
	cr_expect(env.by == LAUNCH_TCP && env.rank == 2 && env.ranks == 4 && env.local == 0);
	cr_expect_str_eq(env.host, "head");
	cr_expect_eq(env.port, 3001); /* its agent has 3000 */
}

Test(env, own_port)
{
	cr_expect_eq(read_with(TORCH "NCCL_EP_PORT=4100"), 0);
	cr_expect_eq(env.port, 4100);
}

Test(env, torchrun_inside_others)
{
	cr_expect_eq(read_with(SRUN OMPI TORCH), 0);
	cr_expect(env.rank == 2 && env.by == LAUNCH_TCP);
	cr_expect_str_eq(env.host, "head");
}

Test(env, mpirun)
{
	cr_expect_eq(read_with(OMPI), 0);
	cr_expect(env.by == LAUNCH_OMPI && env.rank == 1 && env.ranks == 4 && env.local == 1);
}

Test(env, mpich_in_an_allocation)
{
	cr_expect_eq(read_with(SRUN MPICH), 0);
	cr_expect(env.by == LAUNCH_MPICH && env.rank == 3 && env.ranks == 4 && env.local == 1);
}

Test(env, pmi_of_srun)
{
	cr_expect_eq(read_with(SRUN "PMI_RANK=3 PMI_SIZE=4"), 0);
	cr_expect(env.by == LAUNCH_TCP && env.rank == 3);
}

Test(env, ray)
{
	cr_expect_eq(read_with("RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"), 0);
	cr_expect(env.by == LAUNCH_TCP && env.local == -1 && env.port == 29501);
}

Test(env, one_rank_is_alone)
{
	cr_expect_eq(read_with("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1"), 0);
	cr_expect_eq(env.by, LAUNCH_ALONE);
}

Test(env, nonsense)
{
	cr_expect_eq(read_with("OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_SIZE=4"), -1);
	cr_expect_str_eq(text, "OMPI_COMM_WORLD_RANK=4: must be a number from 0 to 3");
	cr_expect_eq(env.rank, -7); /* written on success only */
	cr_expect_eq(read_with("OMPI_COMM_WORLD_RANK=1x"), -1);
	clean();
	cr_expect_eq(read_with(SRUN "SLURM_STEP_NODELIST=n[8"), -1);
	cr_expect(strstr(text, "set MASTER_ADDR"), "%s", text);
	clean();
	cr_expect_eq(read_with(TORCH "NCCL_EP_PORT=70000"), -1);
	cr_expect(strstr(text, "NCCL_EP_PORT=70000"), "%s", text);
}
