/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What MPS does to processes that share a GPU; nothing of the library is in it. Prints how many blocks of all processes
 * share an SM with another (they only compute, and take twice as long then), and how many GB/s a block stores: the two
 * SMs of a pair share the way of their stores, and the SMs of a part are pairs.
 * usage: mps_place RANKS BLOCKS, where MPS runs and CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is set
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 64
#define BLOCKS_MAX 1024
#define WAIT_SECONDS 30
#define STORED (256u << 10) /* by a block, 400 times: it stays in the L2 cache */
#define TIMES 400

struct board {
	volatile int ready[2][RANKS_MAX], failed;
	unsigned long long computed[RANKS_MAX][BLOCKS_MAX], stored[RANKS_MAX][BLOCKS_MAX]; /* ns */
};

__global__ void compute(unsigned long long *ns, float *sink, int n)
{
	unsigned long long start, end;
	float a[8];

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	for (int i = 0; i < 8; i++)
		a[i] = threadIdx.x + i;
	for (int j = 0; j < n; j++)
#pragma unroll
		for (int i = 0; i < 8; i++)
			a[i] = fmaf(a[i], 0.999f, 0.5f);
	for (int i = 1; i < 8; i++)
		a[0] += a[i];
	sink[blockIdx.x * blockDim.x + threadIdx.x] = a[0];
	__syncthreads();
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end));
	if (!threadIdx.x)
		ns[blockIdx.x] = end - start;
}

__global__ void store(unsigned long long *ns, uint4 *to, int n)
{
	unsigned long long start, end;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	for (int j = 0; j < n; j++)
		for (unsigned i = threadIdx.x; i < STORED / sizeof(*to); i += blockDim.x)
			to[blockIdx.x * (STORED / sizeof(*to)) + i] = make_uint4(j, j, j, j);
	__syncthreads();
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end));
	if (!threadIdx.x)
		ns[blockIdx.x] = end - start;
}

static int wait_all(struct board *board, int phase, int rank, int ranks)
{
	time_t end = time(NULL) + WAIT_SECONDS;

	board->ready[phase][rank] = 1;
	for (int r = 0; r < ranks; r++)
		while (!board->ready[phase][r]) {
			if (board->failed || time(NULL) > end)
				return -1;
			sched_yield();
		}
	return 0;
}

static int rank_main(struct board *board, int rank, int ranks, int blocks)
{
	size_t size = blocks * sizeof(unsigned long long);
	unsigned long long *ns;
	uint4 *memory;

	if (cudaMalloc(&ns, size) || cudaMalloc(&memory, blocks * STORED))
		return -1;
	compute<<<blocks, 1024>>>(ns, (float *)memory, 1000);
	store<<<blocks, 512>>>(ns, memory, 2);
	if (cudaDeviceSynchronize() || wait_all(board, 0, rank, ranks))
		return -1;
	compute<<<blocks, 1024>>>(ns, (float *)memory, 200000);
	if (cudaMemcpy(board->computed[rank], ns, size, cudaMemcpyDeviceToHost) || wait_all(board, 1, rank, ranks))
		return -1;
	store<<<blocks, 512>>>(ns, memory, TIMES);
	return cudaMemcpy(board->stored[rank], ns, size, cudaMemcpyDeviceToHost) ? -1 : 0;
}

static void tell(const struct board *board, int ranks, int blocks)
{
	unsigned long long least = ~0ull, sum = 0;
	int doubled = 0;

	for (int r = 0; r < ranks; r++)
		for (int b = 0; b < blocks; b++)
			least = board->computed[r][b] < least ? board->computed[r][b] : least;
	for (int r = 0; r < ranks; r++)
		for (int b = 0; b < blocks; b++) {
			doubled += board->computed[r][b] > least + least / 2;
			sum += board->stored[r][b];
		}
	printf("%d %.1f\n", doubled, (double)STORED * TIMES * ranks * blocks / (double)sum);
}

int main(int argc, char **argv)
{
	int ranks = argc == 3 ? atoi(argv[1]) : 0, blocks = argc == 3 ? atoi(argv[2]) : 0;
	void *memory = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct board *board = (struct board *)memory;

	if (ranks < 1 || ranks > RANKS_MAX || blocks < 1 || blocks > BLOCKS_MAX || memory == MAP_FAILED) {
		fprintf(stderr, "usage: mps_place RANKS BLOCKS\n");
		return 2;
	}
	for (int r = 0; r < ranks; r++)
		if (!fork()) {
			if (rank_main(board, r, ranks, blocks)) {
				fprintf(stderr, "rank %d: %s\n", r, cudaGetErrorString(cudaGetLastError()));
				board->failed = 1;
			}
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
	if (!board->failed)
		tell(board, ranks, blocks);
	return board->failed;
}
