/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/bits.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct board {
	uint64_t hash[BITS_RANKS];
};

struct job {
	bits_fn fn;
};

uint64_t bits_add(uint64_t hash, const uint8_t *at, size_t n)
{
	for (size_t i = 0; i < n; i++)
		hash = (hash ^ at[i]) * 0x100000001b3ull + 1;
	return hash;
}

static int bits_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct board *board = seat_board(seat);
	uint64_t *hash = &board->hash[seat_rank(seat)];

	*hash = 0xcbf29ce484222325ull;
	return job->fn(seat, hash);
}

static int usage(FILE *out, const char *name, int status)
{
	fprintf(out,
		"usage: %s [-t | -g] [-x NUMBER] [-o SEED]\n"
		"  -t  ranks are threads (default)   -g  ranks are processes   -x  expected hash\n"
		"  -o  under the emulator: GPU threads in random order\n",
		name);
	return status;
}

static int play(const char *name, bits_fn fn, bool processes, uint64_t want)
{
	struct world_opts opts = { .seats = BITS_RANKS, .processes = processes, .board = sizeof(struct board) };
	struct job job = { .fn = fn };
	struct world *world;
	uint64_t got;
	int rc;

	if (world_open(&opts, &world))
		return 1;
	rc = world_run(world, BITS_RANKS, bits_job, &job, sizeof(job), 200);
	if (rc)
		printf("FAILED %s\n", world_text(world));
	got = bits_add(0, world_board(world), sizeof(struct board));
	if (world_close(world))
		rc = -1;
	printf("%s: %#018llx%s; %s\n", name, (unsigned long long)got,
	       !want	     ? ""
	       : want == got ? ", as expected"
			     : ", not as expected",
	       processes ? "processes" : "threads");
	return rc || (want && want != got) ? 1 : 0;
}

int bits_main(const char *name, bits_fn fn, int argc, char **argv)
{
	bool processes = false;
	uint64_t want = 0;
	int c;

	while ((c = getopt(argc, argv, "tgx:o:h")) != -1) {
		if (c == 'h')
			return usage(stdout, name, 0);
		if (c == 't' || c == 'g')
			processes = c == 'g';
		else if (c == 'x')
			want = strtoull(optarg, NULL, 0);
		else if (c == 'o' && world_random_order(strtoull(optarg, NULL, 0)))
			return 1;
		else if (c != 'o')
			return usage(stderr, name, 2);
	}
	return optind == argc ? play(name, fn, processes, want) : usage(stderr, name, 2);
}
