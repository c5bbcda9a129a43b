/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of world.h. */
#ifndef EP_TEST_ORACLE_WORLD_SEAT_H
#define EP_TEST_ORACLE_WORLD_SEAT_H

#include <pthread.h>

#include "test/oracle/shim.h"
#include "test/oracle/world.h"

enum { TEXT = 768, VARIABLES = 8 };

struct variable {
	char name[40], value[160];
};

struct result {
	bool done;
	int rc;
	char text[TEXT];
};

/* Shared by parent and ranks; protected by the lock except for the atomics. */
struct shared {
	pthread_mutex_t lock;
	pthread_cond_t job, back;
	unsigned long number; /* of the job; each seat runs it once */
	bool quit;
	int ranks;
	world_fn fn;
	_Alignas(16) char arg[WORLD_ARG];
	unsigned long generation; /* communicators of older generations are dropped */
	struct variable variable[VARIABLES];
	struct result result[WORLD_SEATS];

	_Alignas(64) atomic_uint arrived;
	_Alignas(64) atomic_uint round;
	atomic_bool failed; /* some rank of this job */
	atomic_bool left[WORLD_SEATS];
	ncclUniqueId id; /* rank 0 writes it before a barrier, the others read it after */
};

/* Buffers on the device for seat_gather. */
struct lane {
	struct shim shim;
	void *send, *recv;
};

struct seat {
	struct world *world;
	int index; /* in this world */
	int rank;
	pid_t pid;
	pthread_t thread;
	ncclComm_t comm[WORLD_SEATS + 1]; /* by size */
	unsigned long generation;
	struct lane lane; /* of a joined world: kept */
};

struct world {
	struct shared *shared;
	void *board;
	size_t board_size;
	int seats;
	bool processes, lost;
	bool joined; /* by world_join: one seat, the others are elsewhere */
	struct world_peers peers;
	int doomed; /* -1: nobody */
	char text[TEXT + 64];
	struct seat seat[WORLD_SEATS];
};

/* Before the first communicator of a process. */
void world_prepare(bool processes);
int world_shared_make(struct world *world);
void seat_comms_drop(struct seat *seat, bool sound);

/* Of a joined world. */
int joined_barrier(struct seat *seat);
ncclComm_t joined_comm(struct seat *seat);
int joined_run(struct world *world, world_fn fn);
int joined_close(struct world *world);
void lane_close(struct lane *lane);

#endif
