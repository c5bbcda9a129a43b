/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranks: argv[1] of them (default 1024) in processes of 128 threads. Prints the slowest rank's times. */
#include <sys/resource.h>

#include "ranks.h"

#define PER_PROCESS 128
#define MOST 8192

struct times {
	double open_ms, gather_ms, close_ms;
	int bad;
};

/* Shared by all processes. */
static struct run {
	struct ep_boot_id id;
	_Atomic int ready; /* 1: the id is valid, -1: it could not be created */
	int n;
	struct times times[MOST];
} *run;

static double ms_since(uint64_t *t)
{
	uint64_t now = ep_now_ns();
	double ms = (double)(now - *t) / 1e6;

	*t = now;
	return ms;
}

static void *one(void *arg)
{
	struct times *t = arg;
	struct ep_boot_opts opts = {
		.id = &run->id, .rank = (int)(t - run->times), .nranks = run->n, .timeout_ms = 120000
	};
	int mine = opts.rank * 7, *all = calloc((size_t)run->n, sizeof(*all));
	struct ep_boot *boot;
	uint64_t at = ep_now_ns();

	t->bad = !all || ep_boot_open(&opts, &boot);
	t->open_ms = ms_since(&at);
	if (!t->bad) {
		t->bad = ep_boot_allgather(boot, &mine, sizeof(mine), all) != 0;
		t->gather_ms = ms_since(&at);
		for (int i = 0; i < run->n; i++)
			t->bad += all[i] != i * 7;
		ep_boot_close(boot);
		t->close_ms = ms_since(&at);
	}
	free(all);
	return NULL;
}

/* The first process creates the id; the others are forked before any has threads. */
static int process(int first)
{
	int n = run->n - first < PER_PROCESS ? run->n - first : PER_PROCESS, bad = 0;
	pthread_t thread[PER_PROCESS];

	if (!first)
		run->ready = ep_boot_id_create(&run->id) ? -1 : 1;
	if (!UNTIL(run->ready) || run->ready < 0)
		return 1;
	for (int i = 0; i < n; i++)
		bad += pthread_create(&thread[i], NULL, one, &run->times[first + i]) != 0;
	for (int i = 0; i < n && !bad; i++)
		pthread_join(thread[i], NULL);
	return bad;
}

int main(int argc, char **argv)
{
	struct rlimit files;
	struct times worst = { 0 };
	int status;

	if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_max < 8192) {
		fprintf(stderr, "128 ranks in a process need 8192 descriptors, the limit is %llu\n",
			(unsigned long long)files.rlim_max);
		return 77;
	}
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	run = mmap(NULL, sizeof(*run), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (run == MAP_FAILED)
		return 1;
	run->n = argc > 1 ? atoi(argv[1]) : 1024;
	if (run->n < 1 || run->n > MOST)
		return 1;
	for (int first = 0; first < run->n; first += PER_PROCESS)
		if (!fork())
			_exit(process(first));
	while (wait(&status) > 0)
		worst.bad += !WIFEXITED(status) || WEXITSTATUS(status);
	for (int i = 0; i < run->n; i++) {
		const struct times *t = &run->times[i];

		worst.open_ms = t->open_ms > worst.open_ms ? t->open_ms : worst.open_ms;
		worst.gather_ms = t->gather_ms > worst.gather_ms ? t->gather_ms : worst.gather_ms;
		worst.close_ms = t->close_ms > worst.close_ms ? t->close_ms : worst.close_ms;
		worst.bad += t->bad;
	}
	printf("# %d ranks: open %.0f ms, allgather of 4 bytes %.0f ms, close %.0f ms, %d wrong\n", run->n,
	       worst.open_ms, worst.gather_ms, worst.close_ms, worst.bad);
	return worst.bad ? 1 : 0;
}
