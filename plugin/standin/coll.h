/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PLUGIN_STANDIN_COLL_H
#define EP_PLUGIN_STANDIN_COLL_H

#include <stddef.h>

#include "plugin/standin/comm.h"

struct ep_coll {
	enum ep_sc_kind kind;
	const void *send;
	void *recv;
	size_t count; /* per rank, as in NCCL's calls */
	ncclDataType_t dtype;
	ncclRedOp_t op;
	int root;
	void *stream;
};

/* Checks the arguments. */
int ep_coll_check(const struct ncclComm *comm, const struct ep_coll *coll);

/* Runs it, or enqueues it on a host stream. */
int ep_coll_run(struct ncclComm *comm, const struct ep_coll *coll);

#endif
