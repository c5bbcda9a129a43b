/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/world.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/simt/simt.h"
#include "test/oracle/world_seat.h"
#include "util/rest.h"

#pragma weak simt_configure

#define BARRIER_SECONDS 100.0

double world_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

int world_random_order(uint64_t seed)
{
	const struct simt_options options = { .seed = seed, .resident = seed % 2 };

	if (!simt_configure) {
		fprintf(stderr, "-o: this program was built without the emulator\n");
		return -1;
	}
	simt_configure(&options);
	return 0;
}

int seat_rank(const struct seat *seat)
{
	return seat->rank;
}

int seat_ranks(const struct seat *seat)
{
	return seat->world->shared->ranks;
}

void *seat_board(const struct seat *seat)
{
	return seat->world->board;
}

int seat_fail(struct seat *seat, const char *format, ...)
{
	struct result *result = &seat->world->shared->result[seat->index];
	va_list args;

	if (!result->rc) {
		va_start(args, format);
		vsnprintf(result->text, sizeof(result->text), format, args);
		va_end(args);
	}
	result->rc = -1;
	atomic_store(&seat->world->shared->failed, true);
	return -1;
}

bool seat_failed(const struct seat *seat)
{
	return seat->world->shared->result[seat->index].rc != 0;
}

const char *seat_text(const struct seat *seat)
{
	return seat->world->shared->result[seat->index].text;
}

void seat_leave(struct seat *seat)
{
	atomic_store(&seat->world->shared->left[seat->index], true);
}

int seat_barrier(struct seat *seat)
{
	struct shared *s = seat->world->shared;
	unsigned round = atomic_load(&s->round);
	double end = 0;

	if (seat->world->joined)
		return joined_barrier(seat);
	if (atomic_fetch_add(&s->arrived, 1) + 1 == (unsigned)s->ranks) {
		atomic_store(&s->arrived, 0);
		atomic_store(&s->round, round + 1);
		return 0;
	}
	for (unsigned spins = 0; atomic_load(&s->round) == round; spins++) {
		if (atomic_load(&s->failed))
			return seat_fail(seat, "another rank failed");
		if (spins < 64)
			continue;
		ep_rest();
		if (spins % 4096)
			continue;
		end = end > 0 ? end : world_now() + BARRIER_SECONDS;
		if (world_now() > end)
			return seat_fail(seat, "waited %.0f s for the other ranks", BARRIER_SECONDS);
	}
	return 0;
}

ncclComm_t seat_comm(struct seat *seat)
{
	struct shared *s = seat->world->shared;
	ncclComm_t *comm;
	ncclResult_t rc;

	if (seat->world->joined)
		return joined_comm(seat);
	comm = &seat->comm[s->ranks];
	if (*comm)
		return *comm;
	if (seat->index == 0 && (rc = ncclGetUniqueId(&s->id)) != ncclSuccess) {
		seat_fail(seat, "ncclGetUniqueId: %s", ncclGetLastError(NULL));
		return NULL;
	}
	if (seat_barrier(seat))
		return NULL;
	rc = ncclCommInitRank(comm, s->ranks, s->id, seat->index);
	if (rc != ncclSuccess) {
		*comm = NULL;
		seat_fail(seat, "ncclCommInitRank: %s: %s", ncclGetErrorString(rc), ncclGetLastError(NULL));
		return NULL;
	}
	return seat_barrier(seat) ? NULL : *comm;
}

void seat_comms_drop(struct seat *seat, bool sound)
{
	lane_close(&seat->lane);
	for (int n = 0; n <= WORLD_SEATS; n++) {
		if (!seat->comm[n])
			continue;
		if (sound)
			ncclCommDestroy(seat->comm[n]);
		else
			ncclCommAbort(seat->comm[n]);
		seat->comm[n] = NULL;
	}
}

static void variables_set(const struct shared *s)
{
	for (int i = 0; i < VARIABLES && s->variable[i].name[0]; i++)
		setenv(s->variable[i].name, s->variable[i].value, 1);
}

/* Main loop of a seat: wait for a job, run it, report. */
static void *seat_main(void *arg)
{
	struct seat *seat = arg;
	struct shared *s = seat->world->shared;
	unsigned long seen = 0;

	shim_bind(seat->index);
	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct result *result = &s->result[seat->index];

		while (!s->quit && (s->number == seen || seat->index >= s->ranks)) {
			seen = s->number; /* a job of fewer ranks is done for this seat */
			pthread_cond_wait(&s->job, &s->lock);
		}
		if (s->quit)
			break;
		seen = s->number;
		if (seat->generation != s->generation) {
			seat->generation = s->generation;
			seat_comms_drop(seat, false);
		}
		if (seat->world->processes)
			variables_set(s);
		pthread_mutex_unlock(&s->lock);
		if (s->fn(seat, s->arg) && !result->rc)
			seat_fail(seat, "failed without a message");
		pthread_mutex_lock(&s->lock);
		result->done = true;
		pthread_cond_broadcast(&s->back);
		if (atomic_load(&s->left[seat->index])) {
			pthread_mutex_unlock(&s->lock);
			exit(0);
		}
	}
	pthread_mutex_unlock(&s->lock);
	seat_comms_drop(seat, true);
	return NULL;
}

int world_shared_make(struct world *world)
{
	pthread_mutexattr_t mutex;
	pthread_condattr_t cond;
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (s == MAP_FAILED)
		return -1;
	pthread_mutexattr_init(&mutex);
	pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&s->lock, &mutex);
	pthread_mutexattr_destroy(&mutex);
	pthread_condattr_init(&cond);
	pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
	pthread_condattr_setclock(&cond, CLOCK_MONOTONIC);
	pthread_cond_init(&s->job, &cond);
	pthread_cond_init(&s->back, &cond);
	pthread_condattr_destroy(&cond);
	world->shared = s;
	world->board = mmap(NULL, world->board_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return world->board == MAP_FAILED ? -1 : 0;
}

static int seat_start(struct seat *seat, int (*enter)(int))
{
	int rc;

	if (!seat->world->processes)
		return pthread_create(&seat->thread, NULL, seat_main, seat) ? -1 : 0;
	fflush(NULL);
	seat->pid = fork();
	if (seat->pid)
		return seat->pid < 0 ? -1 : 0;
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* no ranks are left when the test is killed */
	rc = enter ? enter(seat->index) : 0;
	if (!rc)
		seat_main(seat);
	_exit(rc);
}

void world_prepare(bool processes)
{
	setenv("NCCL_EP_TIMEOUT_MS", "30000", 0);
	setenv("NCCL_EP_DEBUG", "NONE", 0); /* many tests provoke errors; failures print their message anyway */
	/* Threads spin side by side on one GPU: streams that share a hardware queue would deadlock. Processes have
	   queues of their own, and under MPS the GPU has too few for 32 of each. */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", processes ? "2" : "32", 0);
	shim_choose();
}

int world_open(const struct world_opts *opts, struct world **out)
{
	struct world *world = calloc(1, sizeof(*world));

	world_prepare(opts->processes);
	if (!world || opts->seats < 1 || opts->seats > WORLD_SEATS) {
		fprintf(stderr, "the number of ranks must be 1 to %d\n", WORLD_SEATS);
		free(world);
		return -1;
	}
	world->seats = opts->seats;
	world->processes = opts->processes;
	world->doomed = -1;
	world->board_size = opts->board ? opts->board : 4096;
	if (world_shared_make(world)) {
		perror("mmap");
		free(world);
		return -1;
	}
	for (int i = 0; i < world->seats; i++) {
		world->seat[i] = (struct seat){ .world = world, .index = i, .rank = i };
		if (seat_start(&world->seat[i], opts->enter)) {
			fprintf(stderr, "cannot start rank %d: %s\n", i, strerror(errno));
			return -1;
		}
	}
	*out = world;
	return 0;
}

void world_setenv(struct world *world, const char *name, const char *value)
{
	struct shared *s = world->shared;
	int i = 0;

	pthread_mutex_lock(&s->lock);
	while (i < VARIABLES - 1 && s->variable[i].name[0] && strcmp(s->variable[i].name, name))
		i++;
	snprintf(s->variable[i].name, sizeof(s->variable[i].name), "%s", name);
	snprintf(s->variable[i].value, sizeof(s->variable[i].value), "%s", value);
	setenv(name, value, 1);
	pthread_mutex_unlock(&s->lock);
}

void world_doom(struct world *world, int seat)
{
	world->doomed = seat;
}

const char *world_text(const struct world *world)
{
	return world->text;
}

bool world_lost(const struct world *world)
{
	return world->lost;
}

void *world_board(const struct world *world)
{
	return world->board;
}

pid_t world_pid(const struct world *world, int seat)
{
	return world->seat[seat].pid;
}

/* A process that has exited, or -1. */
static int seat_dead(struct world *world)
{
	int status;

	for (int i = 0; world->processes && i < world->seats; i++)
		if (world->seat[i].pid > 0 && !atomic_load(&world->shared->left[i]) &&
		    waitpid(world->seat[i].pid, &status, WNOHANG) == world->seat[i].pid) {
			snprintf(world->text, sizeof(world->text), "rank %d died: %s %d", i,
				 WIFSIGNALED(status) ? "signal" : "exit",
				 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			world->seat[i].pid = 0;
			if (i == world->doomed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
				world->shared->result[i].done = true;
			else
				return i;
		}
	return -1;
}

/* With the lock held, until all have finished; -1 if one has not. */
static int world_wait(struct world *world, double seconds)
{
	struct shared *s = world->shared;
	double end = world_now() + seconds;

	for (int i = 0; i < s->ranks;) {
		struct timespec ts;

		if (s->result[i].done) {
			i++;
			continue;
		}
		if (seat_dead(world) >= 0)
			return -1;
		if (world_now() > end) {
			snprintf(world->text, sizeof(world->text), "rank %d has not finished after %.0f s", i, seconds);
			return -1;
		}
		clock_gettime(CLOCK_MONOTONIC, &ts);
		ts.tv_sec += 1;
		pthread_cond_timedwait(&s->back, &s->lock, &ts);
	}
	return 0;
}

/* The first failure that is not a consequence of another rank's. */
static int world_judge(struct world *world)
{
	struct shared *s = world->shared;
	int first = -1;

	for (int i = 0; i < s->ranks; i++)
		if (s->result[i].rc && (first < 0 || strstr(s->result[first].text, "another rank failed")))
			first = i;
	if (first < 0)
		return 0;
	snprintf(world->text, sizeof(world->text), "rank %d: %s", first, s->result[first].text);
	s->generation++;
	return -1;
}

int world_run(struct world *world, int ranks, world_fn fn, const void *arg, size_t size, double seconds)
{
	struct shared *s = world->shared;
	int rc;

	world->text[0] = '\0';
	if (world->lost || ranks > (world->joined ? world->peers.ranks : world->seats) || size > WORLD_ARG) {
		snprintf(world->text, sizeof(world->text), "%s",
			 world->lost ? "a rank was lost before" : "job too large");
		return -1;
	}
	pthread_mutex_lock(&s->lock);
	s->ranks = ranks;
	s->fn = fn;
	if (size)
		memcpy(s->arg, arg, size);
	memset(s->result, 0, sizeof(s->result));
	atomic_store(&s->arrived, 0);
	atomic_store(&s->failed, false);
	s->number++;
	if (world->joined) {
		pthread_mutex_unlock(&s->lock);
		return joined_run(world, fn);
	}
	pthread_cond_broadcast(&s->job);
	rc = world_wait(world, seconds);
	if (rc)
		world->lost = true;
	else
		rc = world_judge(world);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

int world_close(struct world *world)
{
	struct shared *s = world->shared;
	int rc = world->lost ? -1 : 0;

	if (world->joined)
		return joined_close(world);
	if (!world->lost) {
		pthread_mutex_lock(&s->lock);
		s->quit = true;
		pthread_cond_broadcast(&s->job);
		pthread_mutex_unlock(&s->lock);
	}
	for (int i = 0; i < world->seats; i++) {
		int status = 0;

		if (!world->processes) {
			if (world->lost)
				return rc; /* a thread that hangs cannot be ended: leak what it uses */
			pthread_join(world->seat[i].thread, NULL);
		} else if (world->seat[i].pid > 0) {
			if (world->lost)
				kill(world->seat[i].pid, SIGKILL);
			if (waitpid(world->seat[i].pid, &status, 0) < 0 || status)
				rc = -1;
		}
	}
	munmap(world->board, world->board_size);
	munmap(s, sizeof(*s));
	free(world);
	return rc;
}

int seat_meet(struct seat *seat, atomic_int *count, int want)
{
	double end = world_now() + 60;

	atomic_fetch_add(count, 1);
	while (atomic_load(count) < want) {
		if (world_now() > end)
			return seat_fail(seat, "waited a minute for %d other ranks", want - atomic_load(count));
		usleep(500);
	}
	return 0;
}

long world_resident_kib(void)
{
	long pages = 0, ignored;
	FILE *in = fopen("/proc/self/statm", "r");

	if (!in || fscanf(in, "%ld %ld", &ignored, &pages) != 2)
		pages = 0;
	if (in)
		fclose(in);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}
