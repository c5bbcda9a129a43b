/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PERF_LAUNCH_ENV_H
#define EP_PERF_LAUNCH_ENV_H

#include <stddef.h>
#include <stdint.h>

#define LAUNCH_HOST 256

enum launch_by { LAUNCH_ALONE, LAUNCH_OMPI, LAUNCH_MPICH, LAUNCH_TCP };

/* What the environment says. */
struct launch_env {
	const char *name; /* of the launcher, for people */
	enum launch_by by;
	int rank, ranks;
	int local;		/* index among the ranks of this host; -1: not told */
	char host[LAUNCH_HOST]; /* TCP: where rank 0 is, "": not told */
	uint16_t port;
};

/* 0; LAUNCH_ALONE where no launcher started this process, or only one rank. -1: text says what is wrong. */
int launch_env_read(struct launch_env *out, char *text, size_t size);

/* The first host of a list in Slurm's syntax, as a[01-03,7],b; -1: none, or longer than size. */
int launch_first_host(const char *list, char *out, size_t size);

#endif
