/* SPDX-License-Identifier: Apache-2.0 */
/* A world of processes that somebody else started: whatever ranks exchange goes over the communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "test/oracle/world_seat.h"

#define LANE_BYTES ((size_t)16384) /* per rank and call */
#define LANE_SECONDS 100.0

void lane_close(struct lane *lane)
{
	if (!lane->shim.ops)
		return;
	lane->shim.ops->free(&lane->shim, lane->send);
	lane->shim.ops->free(&lane->shim, lane->recv);
	shim_close(&lane->shim);
	*lane = (struct lane){ 0 };
}

static int lane_open(struct seat *seat, ncclComm_t comm, struct lane *lane)
{
	size_t ranks = (size_t)seat_ranks(seat);

	if (shim_open(&lane->shim, comm, false) || lane->shim.ops->alloc(&lane->shim, LANE_BYTES, &lane->send) ||
	    lane->shim.ops->alloc(&lane->shim, ranks * LANE_BYTES, &lane->recv))
		return seat_fail(seat, "memory to gather results: %s", lane->shim.text);
	return 0;
}

/* n of LANE_BYTES at most; a part of every rank's data, which lie `stride` apart. */
static int lane_gather(struct seat *seat, struct lane *lane, const uint8_t *mine, size_t n, uint8_t *all, size_t stride)
{
	struct shim *shim = &lane->shim;
	ncclComm_t comm = seat_comm(seat);

	if (shim->ops->put(shim, lane->send, mine, n))
		return seat_fail(seat, "%s", shim->text);
	if (ncclAllGather(lane->send, lane->recv, n, ncclChar, comm, shim->stream) != ncclSuccess)
		return seat_fail(seat, "another rank failed: %s", ncclGetLastError(comm));
	if (shim->ops->sync(shim, LANE_SECONDS))
		return seat_fail(seat, "%s", shim->text);
	for (int r = 0; r < seat_ranks(seat); r++)
		if (shim->ops->get(shim, all + (size_t)r * stride, (uint8_t *)lane->recv + (size_t)r * n, n))
			return seat_fail(seat, "%s", shim->text);
	return 0;
}

/* A GPU has few streams (shim_cuda.c): seats of one process give theirs back. */
int seat_gather(struct seat *seat, const void *mine, size_t bytes, void *all)
{
	struct lane short_lived = { 0 }, *lane = seat->world->joined ? &seat->lane : &short_lived;
	ncclComm_t comm = seat_comm(seat);
	int rc = !comm ? -1 : lane->shim.ops ? 0 : lane_open(seat, comm, lane);

	for (size_t at = 0; !rc && at < bytes; at += LANE_BYTES)
		rc = lane_gather(seat, lane, (const uint8_t *)mine + at,
				 bytes - at < LANE_BYTES ? bytes - at : LANE_BYTES, (uint8_t *)all + at, bytes);
	lane_close(&short_lived);
	return rc;
}

int joined_barrier(struct seat *seat)
{
	size_t ranks = (size_t)seat_ranks(seat);
	uint8_t here = 1, *all = malloc(ranks);
	int rc = all ? seat_gather(seat, &here, 1, all) : seat_fail(seat, "out of memory");

	free(all);
	return rc;
}

/* The id of rank 0 reaches the others by the launcher. */
ncclComm_t joined_comm(struct seat *seat)
{
	const struct world_peers *peers = &seat->world->peers;
	ncclUniqueId id = { 0 }, *all;
	ncclComm_t comm = NULL;
	ncclResult_t rc;
	char text[TEXT];

	if (seat->comm[0])
		return seat->comm[0];
	if (!peers->rank && ncclGetUniqueId(&id) != ncclSuccess) {
		seat_fail(seat, "ncclGetUniqueId: %s", ncclGetLastError(NULL));
		return NULL;
	}
	all = calloc((size_t)peers->ranks, sizeof(*all));
	if (!all || peers->gather(peers->arg, &id, sizeof(id), all, text, sizeof(text))) {
		seat_fail(seat, "%s", all ? text : "out of memory");
		free(all);
		return NULL;
	}
	rc = ncclCommInitRank(&comm, peers->ranks, all[0], peers->rank);
	free(all);
	if (rc != ncclSuccess) {
		seat_fail(seat, "ncclCommInitRank: %s: %s", ncclGetErrorString(rc), ncclGetLastError(NULL));
		return NULL;
	}
	seat->comm[0] = comm;
	return comm;
}

int joined_run(struct world *world, world_fn fn)
{
	struct seat *seat = &world->seat[0];
	struct result *result = &world->shared->result[0];

	if (fn(seat, world->shared->arg) && !result->rc)
		seat_fail(seat, "failed without a message");
	if (!result->rc)
		return 0;
	snprintf(world->text, sizeof(world->text), "rank %d: %s", seat->rank, result->text);
	world->lost = true;
	return -1;
}

int world_join(const struct world_peers *peers, size_t board, struct world **out)
{
	struct world *world = calloc(1, sizeof(*world));

	world_prepare(true);
	if (world) {
		world->joined = true;
		world->peers = *peers;
		world->seats = 1;
		world->doomed = -1;
		world->board_size = board ? board : 4096;
	}
	if (!world || world_shared_make(world)) {
		perror("memory of a rank");
		free(world);
		return -1;
	}
	world->seat[0] = (struct seat){ .world = world, .rank = peers->rank };
	shim_bind(peers->local);
	*out = world;
	return 0;
}

int joined_close(struct world *world)
{
	int rc = world->lost ? -1 : 0;

	seat_comms_drop(&world->seat[0], !world->lost);
	munmap(world->board, world->board_size);
	munmap(world->shared, sizeof(*world->shared));
	free(world);
	return rc;
}
