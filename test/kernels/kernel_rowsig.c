/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and signals between ranks that are threads. "kernel_rowsig cuda" runs the same on a GPU. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel_check.h"
#include "rowsig_order.h"
#include "rowsig_rank.h"

#define RANKS_MAX 8

struct run {
	struct rowsig_world world;
	struct rowsig_rank rank[RANKS_MAX];
};

static void *rank_main(void *arg)
{
	return (void *)(intptr_t)rowsig_run(arg);
}

static void world_run(const struct rowsig_world *world)
{
	struct run *run = calloc(1, sizeof(*run));
	void *window[RANKS_MAX];
	pthread_t thread[RANKS_MAX];
	int bad = 0;

	run->world = *world;
	for (int r = 0; r < world->nranks; r++) {
		bad |= rowsig_open(&run->rank[r], &run->world, r);
		window[r] = run->rank[r].window.ptr;
	}
	for (int r = 0; r < world->nranks && !bad; r++)
		bad |= rowsig_connect(&run->rank[r], window);
	for (int r = 0; r < world->nranks && !bad; r++)
		pthread_create(&thread[r], NULL, rank_main, &run->rank[r]);
	for (int r = 0; r < world->nranks && !bad; r++) {
		void *rc;

		pthread_join(thread[r], &rc);
		CHECK(rc == NULL, "rank %d of %d failed", r, world->nranks);
	}
	CHECK(!bad, "%d ranks could not be set up", world->nranks);
	for (int r = 0; r < world->nranks; r++)
		rowsig_close(&run->rank[r]);
	free(run);
}

/* Row lengths around the units of the copies: bytes, words, vectors, the four-deep loop, more than a stage. */
static const struct {
	uint64_t row;
	uint32_t skew;
} shapes[] = { { 1, 0 }, { 16, 0 }, { 20, 4 }, { 257, 1 }, { 2048, 0 }, { 7168, 0 }, { 4099, 3 } };

static const int ranks[] = { 1, 2, 3, 4, 8 };

/* Under the emulator, which has several orders, each order runs half of the worlds: every other pass the other half. */
static void matrix(enum ep_dev_kind kind, uint32_t pass)
{
	for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
		for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
			struct rowsig_world w = {
				.kind = kind,
				.nranks = ranks[i],
				.epochs = 9,
				.cap = 1 + (uint32_t)(s * 5 + i) % 13,
				.row = shapes[s].row,
				.skew = shapes[s].skew,
				.grid = 1 + (unsigned)(s + i) % 3,
				.warps = 1 + (unsigned)s % 2,
				.slices = 1 + (unsigned)(s * 3 + i) % 5,
				.single = (s / 2 + i) % 2,
				.stage = s % 2 ? 0 : 4096,
				.seed = pass * 1000 + 1 + (uint32_t)(i * 100 + s),
				.stalls = s % 3 == 0,
				.timeout_ms = 30000,
			};

			if (rowsig_orders() > 1 && (i + s + pass) % 2)
				continue;
			world_run(&w);
			if (atomic_load(&check_failures) > 0)
				return; /* each of the others would fail the same way after its timeout */
		}
	}
}

int main(int argc, char **argv)
{
	enum ep_dev_kind kind = argc > 1 && strcmp(argv[1], "cuda") == 0 ? EP_DEV_CUDA : EP_DEV_HOST;
	int devices;

	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32",
	       1); /* before the driver is initialised: every rank needs a hardware queue */
	if (ep_dev_row(kind)->count(&devices) != 0 || devices == 0)
		return 77;
	alarm(540);
	for (int pass = 0; pass < rowsig_orders(); pass++) {
		rowsig_order(pass);
		matrix(kind, (uint32_t)pass);
	}
	return check_result("kernel_rowsig");
}
