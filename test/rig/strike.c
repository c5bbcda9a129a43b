/* SPDX-License-Identifier: Apache-2.0 */
#include "test/rig/strike.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

#define TOKENS 4
#define HIDDEN 128
#define TOPK 2
#define PER_RANK 2 /* experts */

struct board {
	struct strike_job job;
	ncclUniqueId id;
	_Atomic int have_id;
	pid_t pid[STRIKE_RANKS];
	struct strike_rank rank[STRIKE_RANKS];
};

struct life {
	struct board *board;
	struct strike_rank *me;
	const struct strike_job *job;
	int rank, round;
	ncclComm_t comm;
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	void *mem[8];
};

static const char *const names[] = {
	"ncclCommInitRank", "ncclEpCreateGroup",   "ncclEpInitHandle",	 "ncclEpUpdateHandle", "ncclEpDispatch",
	"ncclEpCombine",    "ncclEpHandleDestroy", "ncclEpGroupDestroy", "ncclCommFinalize",   "ncclCommDestroy",
	"no call",
};

const char *strike_name(enum strike_call call)
{
	return names[call];
}

bool strike_names(const char *text, int rank)
{
	char want[16];
	int n = snprintf(want, sizeof(want), "rank %d", rank);

	while ((text = strstr(text, want))) {
		text += n;
		if (*text < '0' || *text > '9')
			return true;
	}
	return false;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void nap_ms(long ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

/* ---- calls ---- */

struct view {
	ncclEpTensor_t t;
	size_t sizes[3];
};

static ncclEpTensor_t *view(struct view *v, void *data, ncclDataType_t type, size_t rows, size_t columns)
{
	v->sizes[0] = rows;
	v->sizes[1] = columns;
	v->t = (ncclEpTensor_t){ .size = NCCL_EP_TENSOR_SIZE,
				 .magic = NCCL_EP_TENSOR_MAGIC,
				 .ndim = columns ? 2 : 1,
				 .datatype = type,
				 .data = data,
				 .sizes = v->sizes };
	return &v->t;
}

/* LL expert-major has three dimensions. */
static ncclEpTensor_t *rows_of(const struct life *l, struct view *v)
{
	size_t n = (size_t)l->job->ranks * TOKENS;

	view(v, l->mem[2], ncclBfloat16, l->job->ht ? n * TOPK : PER_RANK, l->job->ht ? HIDDEN : n);
	if (!l->job->ht) {
		v->t.ndim = 3;
		v->sizes[2] = HIDDEN;
	}
	return &v->t;
}

static ncclResult_t group_create(struct life *l)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = l->job->ht ? NCCL_EP_ALGO_HIGH_THROUGHPUT : NCCL_EP_ALGO_LOW_LATENCY;
	c.num_experts = (unsigned)(PER_RANK * l->job->ranks);
	c.max_dispatch_tokens_per_rank = TOKENS;
	c.max_recv_tokens_per_rank = l->job->ht ? (unsigned)(l->job->ranks * TOKENS * TOPK) : 0;
	c.max_token_bytes = 2 * HIDDEN;
	c.enable_mask = l->job->masks;
	return ncclEpCreateGroup(&l->group, l->comm, &c);
}

static ncclResult_t update(struct life *l)
{
	int64_t *idx = l->mem[0];
	struct view v;

	for (int i = 0; i < TOKENS * TOPK; i++)
		idx[i] = (l->rank * 3 + i / TOPK + i % TOPK * 5 + l->round) % (PER_RANK * l->job->ranks);
	for (int i = 0; i < TOKENS; i++)
		idx[i * TOPK + 1] += idx[i * TOPK] == idx[i * TOPK + 1] ? idx[i * TOPK] ? -1 : 1 : 0;
	return ncclEpUpdateHandle(l->handle, view(&v, idx, ncclInt64, TOKENS, TOPK), NULL, NULL);
}

static ncclResult_t dispatch(struct life *l)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	size_t n = (size_t)l->job->ranks * TOKENS * TOPK;
	struct view v[6];

	in.tokens = view(&v[0], l->mem[1], ncclBfloat16, TOKENS, HIDDEN);
	out.tokens = rows_of(l, &v[1]);
	if (l->job->ht) {
		in.topk_weights = view(&v[2], l->mem[3], ncclFloat32, TOKENS, TOPK);
		out.topk_weights = view(&v[3], l->mem[4], ncclFloat32, n, TOPK);
		out.topk_idx = view(&v[4], l->mem[5], ncclInt64, n, TOPK);
	}
	info.expert_counters = view(&v[5], l->mem[7], ncclInt32, PER_RANK, 0);
	return ncclEpDispatch(l->handle, &in, &out, l->job->ht ? NULL : &info, NULL, NULL);
}

static ncclResult_t combine(struct life *l)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	struct view v[3];

	in.tokens = rows_of(l, &v[0]);
	out.tokens = view(&v[1], l->mem[6], ncclBfloat16, TOKENS, HIDDEN);
	if (!l->job->ht)
		out.topk_weights = view(&v[2], l->mem[3], ncclFloat32, TOKENS, TOPK);
	return ncclEpCombine(l->handle, &in, &out, NULL, NULL);
}

static ncclResult_t call_make(struct life *l, enum strike_call call)
{
	switch (call) {
	case STRIKE_INIT:
		return ncclCommInitRank(&l->comm, l->job->ranks, l->board->id, l->rank);
	case STRIKE_GROUP:
		return group_create(l);
	case STRIKE_HANDLE:
		return ncclEpInitHandle(&l->handle, l->group,
					l->job->ht ? NCCL_EP_LAYOUT_FLAT : NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, TOPK,
					NULL);
	case STRIKE_UPDATE:
		return update(l);
	case STRIKE_DISPATCH:
		return dispatch(l);
	case STRIKE_COMBINE:
		return combine(l);
	case STRIKE_HANDLE_END:
		return ncclEpHandleDestroy(l->handle);
	case STRIKE_GROUP_END:
		return ncclEpGroupDestroy(l->group);
	case STRIKE_FINALIZE:
		return ncclCommFinalize(l->comm);
	default:
		return ncclCommDestroy(l->comm);
	}
}

/* ---- a rank ---- */

static void mask_check(struct life *l)
{
	int mask[STRIKE_RANKS] = { 0 };

	if (l->job->masks && !l->me->masked && ncclEpMaskQuery(l->group, mask, NULL) == ncclSuccess)
		l->me->masked = mask[l->job->victim] != 0;
}

static ncclResult_t timed_call(struct life *l, enum strike_call call)
{
	double start = now(), took;
	ncclResult_t rc = call_make(l, call);

	took = now() - start;
	if (took > l->me->seconds) {
		l->me->seconds = took;
		l->me->slow = call;
	}
	return rc;
}

/* Not 0: the rank's life ends here. */
static int step(struct life *l, enum strike_call call)
{
	ncclResult_t rc;

	if (l->rank == l->job->victim && call == l->job->at && l->round == l->job->round)
		raise(l->job->signal);
	rc = timed_call(l, call);
	if (rc == ncclSuccess) {
		if (call == STRIKE_DISPATCH || call == STRIKE_COMBINE)
			mask_check(l);
		return 0;
	}
	l->me->call = call;
	l->me->result = rc;
	snprintf(l->me->text, sizeof(l->me->text), "%s",
		 call == STRIKE_INIT || call >= STRIKE_FINALIZE ? ncclGetLastError(NULL) : anyEpGetLastError());
	return -1;
}

static void calls_make(struct life *l)
{
	for (int c = STRIKE_INIT; c <= STRIKE_HANDLE; c++)
		if (step(l, (enum strike_call)c))
			return;
	for (; l->round < l->job->rounds; l->round++)
		for (int c = STRIKE_UPDATE; c <= STRIKE_COMBINE; c++)
			if (step(l, (enum strike_call)c))
				return;
	l->round = l->job->at < STRIKE_HANDLE_END ? l->job->rounds : l->job->round;
	for (int c = STRIKE_HANDLE_END; c < STRIKE_CALLS; c++)
		if (step(l, (enum strike_call)c))
			return;
}

/* A failed job is torn down too, and as quickly: it must not leave its process hanging. */
static void end(struct life *l)
{
	enum strike_call failed = l->me->call;

	if (failed > STRIKE_HANDLE && failed < STRIKE_HANDLE_END)
		timed_call(l, STRIKE_HANDLE_END);
	if (failed > STRIKE_GROUP && failed < STRIKE_GROUP_END)
		timed_call(l, STRIKE_GROUP_END);
	if (failed > STRIKE_INIT && failed < STRIKE_COMM_END)
		timed_call(l, STRIKE_COMM_END);
}

static void life(struct board *board, int rank)
{
	struct life l = { .board = board, .me = &board->rank[rank], .job = &board->job, .rank = rank };

	l.me->call = STRIKE_CALLS;
	for (size_t i = 0; i < sizeof(l.mem) / sizeof(l.mem[0]); i++)
		l.mem[i] = calloc((size_t)board->job.ranks * TOKENS * TOPK * PER_RANK, 2 * HIDDEN);
	if (rank == 0) {
		if (ncclGetUniqueId(&board->id) != ncclSuccess)
			_exit(2);
		board->have_id = 1;
	}
	while (!board->have_id)
		nap_ms(1);
	calls_make(&l);
	end(&l);
	l.me->done = true;
	_exit(0);
}

/* ---- the parent ---- */

static bool survivors_left(struct board *b)
{
	bool left = false;

	for (int r = 0; r < b->job.ranks; r++) {
		if (r == b->job.victim || b->pid[r] <= 0)
			continue;
		if (waitpid(b->pid[r], NULL, WNOHANG) == 0)
			left = true;
		else
			b->pid[r] = 0;
	}
	return left;
}

int strike_run(const struct strike_job *job, struct strike_rank out[STRIKE_RANKS])
{
	struct board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double end_at = now() + job->patience;

	if (b == MAP_FAILED || job->ranks > STRIKE_RANKS) {
		fprintf(stderr, "strike: cannot run %d ranks\n", job->ranks);
		return -1;
	}
	b->job = *job;
	for (int r = 0; r < job->ranks; r++) {
		pid_t pid = fork();

		if (!pid)
			life(b, r);
		b->pid[r] = pid; /* not in the child, which shares the memory */
	}
	if (job->at == STRIKE_CALLS && b->pid[job->victim] > 0) {
		usleep(job->after_us);
		kill(b->pid[job->victim], job->signal);
	}
	while (survivors_left(b) && now() < end_at)
		nap_ms(5);
	for (int r = 0; r < job->ranks; r++)
		if (b->pid[r] > 0) {
			kill(b->pid[r], SIGKILL);
			waitpid(b->pid[r], NULL, 0);
		}
	memcpy(out, b->rank, sizeof(b->rank));
	munmap(b, sizeof(*b));
	return 0;
}
