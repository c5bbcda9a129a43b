/* SPDX-License-Identifier: Apache-2.0 */
/* The variables of mpirun, but no MPI to open: TCP if the host of rank 0 is told, else a message says what to do. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "perf/launch.h"

/* In place of the C library's: no library of an MPI is found. */
void *dlopen(const char *name, int flags)
{
	void *(*real)(const char *, int);

	*(void **)&real = dlsym(RTLD_NEXT, "dlopen");
	return real(name && strstr(name, "mpi") ? "no_mpi_here.so" : name, flags);
}

static void begin(void)
{
	unsetenv("TORCHELASTIC_RUN_ID");
	unsetenv("MASTER_ADDR");
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "10000", 1);
}

TestSuite(no_mpi, .timeout = 30, .init = begin);

static int gathers(int rank)
{
	struct launch *launch;
	char text[LAUNCH_TEXT] = "";
	int all[2] = { 0 }, mine = rank + 5;

	setenv("OMPI_COMM_WORLD_RANK", rank ? "1" : "0", 1);
	if (launch_open(&launch, text, sizeof(text)) || launch_rank(launch) != rank ||
	    launch_gather(launch, &mine, sizeof(mine), all, text, sizeof(text))) {
		fprintf(stderr, "%s\n", text);
		return 1;
	}
	launch_close(launch);
	return all[0] != 5 || all[1] != 6;
}

Test(no_mpi, tcp)
{
	char port[16];
	int status;
	pid_t pid;

	snprintf(port, sizeof(port), "%d", 23000 + (int)getpid() % 5000);
	setenv("NCCL_EP_PORT", port, 1);
	setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
	setenv("MASTER_ADDR", "localhost", 1);
	pid = fork();
	if (!pid)
		_exit(gathers(1));
	cr_expect_eq(gathers(0), 0);
	cr_expect(waitpid(pid, &status, 0) == pid && !status);
}

Test(no_mpi, told)
{
	struct launch *launch;
	char text[LAUNCH_TEXT] = "";

	setenv("PMI_RANK", "1", 1);
	setenv("PMI_SIZE", "2", 1);
	setenv("MPI_LOCALNRANKS", "2", 1);
	unsetenv("OMPI_COMM_WORLD_SIZE");
	cr_expect_eq(launch_open(&launch, text, sizeof(text)), -1);
	cr_expect_null(launch);
	cr_expect(strstr(text, "rank 1: started by mpirun (MPICH)") && strstr(text, "no_mpi_here.so") &&
			  strstr(text, "set MASTER_ADDR"),
		  "%s", text);
}
