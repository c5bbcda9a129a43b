/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a caller's program: its communicator, device, and tensors as a framework describes them. */
#ifndef EP_TEST_CALLERS_CALLER_H
#define EP_TEST_CALLERS_CALLER_H

#include "test/callers/load.h"
#include "test/oracle/check.h"
#include "test/oracle/shim.h"
#include "test/oracle/world.h"

/* What both programs are told: [-t | -g] [-n ROUNDS] LIBNCCL_EP.SO */
struct caller_options {
	bool processes;
	int rounds;
	char library[512];
};

/* -1 to go on, or the status to exit with. */
int caller_options(struct caller_options *o, const char *program, int argc, char **argv);

struct caller {
	struct seat *seat;
	ncclComm_t comm;
	struct shim shim;
	int rank, ranks;
	struct ll_verdict verdict;
};

/* Collective. 0, or -1 after seat_fail, as all functions here. */
int caller_open(struct caller *c, struct seat *seat);
/* Also after a failure. Wrong values fail the seat; -1 if it has failed. */
int caller_close(struct caller *c);
int caller_sync(struct caller *c);
/*
 * The stream is idle, on every rank. Before memory is allocated or freed, and again after: on a GPU both wait for
 * kernels of the process, which may be those of a rank that waits for this one.
 */
int caller_meet(struct caller *c);
/* -1 and seat_fail unless the result is ncclSuccess. */
int caller_expect(struct caller *c, const char *call, ncclResult_t got);
/* A call that must return `want`; anything else counts in the verdict. */
void caller_want(struct caller *c, const char *call, ncclResult_t want, ncclResult_t got);
/* The stream is idle, and the group has no error. */
int caller_healthy(struct caller *c, ncclEpGroup_t group);

/* Where a tensor is: device memory, a registered window, or pinned host memory. */
enum where { ON_DEVICE, IN_WINDOW, PINNED };

struct tensor {
	ncclEpTensor_t t; /* points to sizes: not to be copied */
	size_t sizes[3];
	enum where where;
	uint8_t *at, *host; /* host: a copy, where memory of the device is not the host's */
	size_t bytes;	    /* allocated */
};

/* Collective with windows. A tensor of no elements has no data. */
int tensor_open(struct caller *c, struct tensor *t, enum where where, ncclDataType_t type, unsigned ndim,
		const size_t *sizes);
#define TENSOR(c, tensor, where, type, ...)                                                     \
	tensor_open(c, tensor, where, type, sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t), \
		    (size_t[]){ __VA_ARGS__ })
void tensor_close(struct caller *c, struct tensor *t);
/* The first rows only; with none, data is NULL. */
void tensor_rows(struct tensor *t, size_t rows);
int tensor_put(struct caller *c, struct tensor *t, const void *from);
int tensor_fill(struct caller *c, struct tensor *t, int byte);
/* All of it in host memory; NULL after a failure. */
const void *tensor_get(struct caller *c, struct tensor *t);
void tensors_close(struct caller *c, struct tensor *t, size_t count);

/* Memory that faults when it is used after it was closed: the CPU's addresses are then never used again. */
int pages_open(struct caller *c, size_t size, void **out);
void pages_close(struct caller *c, void *at, size_t size);

#endif
