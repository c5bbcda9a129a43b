/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on host streams of libnccl_ep run in the stream's order: one thread launches for all ranks, no group. */
#include "nccl_ep_ext.h"
#include "ranks.h"

#define N 3
#define ROUNDS 50

static int in_order(ncclComm_t comm[N], cudaStream_t stream[N])
{
	static int x[N], all[N][N];
	int bad = 0, want = 1;

	for (int i = 0; i < N; i++)
		x[i] = 1;
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < N; i++)
			EXPECT_OK(ncclAllReduce(&x[i], &x[i], 1, ncclUint32, ncclSum, comm[i], stream[i]));
	for (int i = 0; i < N; i++)
		EXPECT_OK(ncclAllGather(&x[i], all[i], 1, ncclUint32, comm[i], stream[i]));
	for (int i = 0; i < N; i++)
		EXPECT_OK(anyEpHostStreamSynchronize(stream[i]));
	for (int round = 0; round < ROUNDS; round++)
		want = (int)((unsigned)want * N);
	for (int i = 0; i < N; i++)
		for (int j = 0; j < N; j++)
			EXPECT(all[i][j] == want);
	return bad;
}

/* Two streams of one rank keep the order of the calls, which is the same on all ranks. */
static int two_streams(ncclComm_t comm[N], cudaStream_t stream[N], cudaStream_t second)
{
	static int x[N], y[N];
	int bad = 0;

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < N; i++) {
			x[i] = y[i] = 1;
			EXPECT_OK(ncclAllReduce(&x[i], &x[i], 1, ncclInt32, ncclSum, comm[i], stream[i]));
		}
		for (int i = 0; i < N; i++)
			EXPECT_OK(ncclAllReduce(&y[i], &y[i], 1, ncclInt32, ncclProd, comm[i], i ? stream[i] : second));
		for (int i = 0; i < N; i++)
			EXPECT_OK(anyEpHostStreamSynchronize(stream[i]));
		EXPECT_OK(anyEpHostStreamSynchronize(second));
		for (int i = 0; i < N; i++)
			EXPECT(x[i] == N && y[i] == 1);
	}
	return bad;
}

/* A late failure breaks the communicator, and destroy waits for what is still enqueued. */
static int late_error(ncclComm_t comm[N], cudaStream_t stream[N])
{
	static int x[N][2];
	ncclResult_t async = ncclSuccess;
	int bad = 0;

	for (int i = 0; i < N; i++)
		EXPECT_OK(ncclAllReduce(x[i], x[i], i ? 1 : 2, ncclInt32, ncclSum, comm[i], stream[i]));
	for (int i = 0; i < N; i++)
		EXPECT_OK(anyEpHostStreamSynchronize(stream[i]));
	for (int i = 0; i < N; i++) {
		EXPECT_OK(ncclCommGetAsyncError(comm[i], &async));
		EXPECT(async == ncclInvalidUsage);
		EXPECT(strstr(ncclGetLastError(comm[i]), "rank 0"));
	}
	return bad;
}

int main(void)
{
	ncclComm_t comm[N];
	cudaStream_t stream[N], second;
	int bad = 0;

	EXPECT_OK(ncclCommInitAll(comm, N, NULL));
	EXPECT_OK(anyEpHostStreamCreate(&second));
	for (int i = 0; i < N; i++)
		EXPECT_OK(anyEpHostStreamCreate(&stream[i]));
	if (bad)
		return 1;
	bad += in_order(comm, stream) + two_streams(comm, stream, second) + late_error(comm, stream);
	for (int i = 0; i < N; i++)
		EXPECT_OK(ncclCommDestroy(comm[i]));
	for (int i = 0; i < N; i++)
		EXPECT_OK(anyEpHostStreamDestroy(stream[i]));
	EXPECT_OK(anyEpHostStreamDestroy(second));
	return bad ? 1 : 0;
}
