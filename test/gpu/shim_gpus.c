/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one process on two GPUs, as threads of `ep_info --check` and ep_perf on a machine with several: each gets
 * streams of its own GPU. Over a model of the driver (argument 1).
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/oracle/shim.h"

#define RANKS 8
#define MOST 16 /* ranks of a process on a GPU, as shim_cuda.c has it */

/* That of shim.c needs the library. */
int shim_fail(struct shim *shim, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(shim->text, sizeof(shim->text), format, args);
	va_end(args);
	return -1;
}

static int failed;

static void expect(bool good, const char *what, const struct shim *shim)
{
	if (!good)
		fprintf(stderr, "%s: %s\n", what, shim->text);
	failed |= !good;
}

static void rank_open(struct shim *shim, int rank)
{
	*shim = (struct shim){ .ops = &shim_cuda };
	shim_bind(rank);
	expect(!shim_cuda.open(shim, rank % 2, true), "open", shim);
}

int main(int argc, char **argv)
{
	struct shim shim[MOST + 1];

	if (argc < 2 || !dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) {
		fprintf(stderr, "%s\n", argc < 2 ? "usage: t_shim_gpus MODEL" : dlerror());
		return 1;
	}
	setenv("NCCL_EP_DEVICE", "cuda", 1);
	shim_choose();
	for (int i = 0; i < RANKS; i++)
		rank_open(&shim[i], i);
	for (int i = 0; i < RANKS; i++) {
		shim_bind(i);
		expect(!shim_cuda.fill(&shim[i], shim, 0, 1), "a fill in its own stream", &shim[i]);
		for (int k = 0; k < i; k++)
			expect(shim[k].stream != shim[i].stream, "two ranks have one stream", &shim[i]);
	}
	for (int i = 0; i < RANKS; i++)
		shim_cuda.close(&shim[i]);
	for (int i = 0; i < MOST; i++) /* all were given back */
		rank_open(&shim[i], 0);
	shim[MOST] = (struct shim){ .ops = &shim_cuda };
	expect(shim_cuda.open(&shim[MOST], 0, true) != 0, "one more than there are streams", &shim[MOST]);
	expect(strstr(shim[MOST].text, "more than 16 ranks") != NULL, "its message", &shim[MOST]);
	for (int i = 0; i <= MOST; i++)
		shim_cuda.close(&shim[i]);
	return failed;
}
