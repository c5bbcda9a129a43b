/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/standin/job.h"
#include "util/error.h"

static int coll_run(const struct ep_job *job)
{
	struct ncclComm *comm = NULL;
	int rc = ep_sc_get(job->comm, ep_sc_kind_name(job->coll.kind), &comm);

	if (rc)
		return rc;
	rc = ep_coll_run(comm, &job->coll);
	ep_sc_put(comm);
	return rc;
}

static ncclResult_t coll_submit(ncclComm_t comm, const struct ep_coll *coll)
{
	struct ep_job job = { .run = coll_run, .key = comm, .comm = comm, .coll = *coll };
	struct ncclComm *found = NULL;
	int rc = ep_sc_get(comm, ep_sc_kind_name(coll->kind), &found);

	if (!rc) {
		rc = ep_coll_check(found, coll);
		ep_sc_put(found);
	}
	return (ncclResult_t)ep_result(ep_job_submit(rc, &job));
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
			   ncclComm_t comm, cudaStream_t stream)
{
	struct ep_coll coll = { .kind = EP_SC_ALLGATHER, .send = sendbuff, .recv = recvbuff };

	coll.count = sendcount;
	coll.dtype = datatype;
	coll.stream = stream;
	return coll_submit(comm, &coll);
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
			   ncclComm_t comm, cudaStream_t stream)
{
	struct ep_coll coll = { .kind = EP_SC_ALLREDUCE, .send = sendbuff, .recv = recvbuff };

	coll.count = count;
	coll.dtype = datatype;
	coll.op = op;
	coll.stream = stream;
	return coll_submit(comm, &coll);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
			       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	struct ep_coll coll = { .kind = EP_SC_REDUCE_SCATTER, .send = sendbuff, .recv = recvbuff };

	coll.count = recvcount;
	coll.dtype = datatype;
	coll.op = op;
	coll.stream = stream;
	return coll_submit(comm, &coll);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
			   ncclComm_t comm, cudaStream_t stream)
{
	struct ep_coll coll = { .kind = EP_SC_BROADCAST, .send = sendbuff, .recv = recvbuff };

	coll.count = count;
	coll.dtype = datatype;
	coll.root = root;
	coll.stream = stream;
	return coll_submit(comm, &coll);
}

/* Does not call ncclBroadcast: in a process with a real NCCL that name may be the other library's. */
ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
		       cudaStream_t stream)
{
	struct ep_coll coll = { .kind = EP_SC_BROADCAST, .send = buff, .recv = buff };

	coll.count = count;
	coll.dtype = datatype;
	coll.root = root;
	coll.stream = stream;
	return coll_submit(comm, &coll);
}
