/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nccl_ep_ext.h"
#include "test/chaos/strike.h"

#define TOKENS 12
#define HIDDEN 64
#define TOPK 2
#define PER_RANK 2 /* experts */

struct life {
	struct strike_board *board;
	const struct strike *strike;
	struct strike_rank *me;
	int rank, experts;
	ncclComm_t comm;
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	int32_t idx[TOKENS * TOPK];
	int64_t idx64[TOKENS * TOPK];
	float weights[TOKENS * TOPK];
	float tokens[TOKENS * HIDDEN], sums[TOKENS * HIDDEN];
	float *rows, *row_weights;
	int64_t *row_idx;
	int32_t counts[PER_RANK];
	size_t capacity; /* rows */
};

double strike_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double strike_limit(const struct strike *strike)
{
	return 1e-3 * strike->timeout_ms * (strike->masks ? 2 : 1) + strike->slack;
}

static void begin(struct life *l, const char *call)
{
	snprintf(l->me->call, sizeof(l->me->call), "%s", call);
	atomic_store(&l->me->since, strike_now());
}

/* Whether the call succeeded. */
static bool end(struct life *l, ncclResult_t rc, const char *text)
{
	double took = strike_now() - atomic_load(&l->me->since);

	atomic_store(&l->me->since, 0.0);
	if (took > l->me->worst)
		l->me->worst = took;
	if (took > strike_limit(l->strike) && !l->me->late[0])
		memcpy(l->me->late, l->me->call, sizeof(l->me->late));
	if (rc != ncclSuccess && !l->me->failed[0]) {
		memcpy(l->me->failed, l->me->call, sizeof(l->me->failed));
		snprintf(l->me->text, sizeof(l->me->text), "%s", text ? text : "");
		l->me->result = rc;
		l->me->failed_at = strike_now();
	}
	return rc == ncclSuccess;
}

#define EP(call_, args) (begin(l, #call_), end(l, call_ args, anyEpGetLastError()))
#define NCCL(call_, args) (begin(l, #call_), end(l, call_ args, ncclGetLastError(NULL)))

static ncclEpTensor_t tensor(void *data, ncclDataType_t type, unsigned ndim, const size_t *sizes)
{
	ncclEpTensor_t t = NCCL_EP_TENSOR_INIT;

	t.ndim = ndim;
	t.datatype = type;
	t.data = data;
	t.sizes = (size_t *)(uintptr_t)sizes;
	return t;
}

static bool group_open(struct life *l)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

	config.algorithm = l->strike->ht ? NCCL_EP_ALGO_HIGH_THROUGHPUT : NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = (unsigned)l->experts;
	config.max_dispatch_tokens_per_rank = TOKENS;
	config.max_recv_tokens_per_rank = l->strike->ht ? (unsigned)(TOKENS * l->strike->ranks) : 0;
	config.max_token_bytes = HIDDEN * sizeof(float);
	config.enable_mask = l->strike->masks;
	return EP(ncclEpCreateGroup, (&l->group, l->comm, &config));
}

static void routes(struct life *l, int round)
{
	for (int i = 0; i < TOKENS * TOPK; i++) {
		l->idx64[i] = (i / TOPK + l->rank + round + (i % TOPK) * (l->experts / 2)) % l->experts;
		l->idx[i] = (int32_t)l->idx64[i];
		l->weights[i] = 0.5f;
	}
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		l->tokens[i] = (float)(i % 7);
}

static bool update(struct life *l, int round)
{
	size_t sizes[] = { TOKENS, TOPK };
	ncclEpTensor_t t = tensor(l->idx64, ncclInt64, 2, sizes);

	routes(l, round);
	return EP(ncclEpUpdateHandle, (l->handle, &t, NULL, NULL));
}

static bool dispatch(struct life *l)
{
	size_t in_sizes[] = { TOKENS, HIDDEN }, weight_sizes[] = { TOKENS, TOPK }, counts_sizes[] = { PER_RANK };
	size_t ll_sizes[] = { PER_RANK, l->capacity / PER_RANK, HIDDEN }, ht_sizes[] = { l->capacity, HIDDEN };
	size_t ht_topk[] = { l->capacity, TOPK };
	ncclEpTensor_t tokens = tensor(l->tokens, ncclFloat32, 2, in_sizes);
	ncclEpTensor_t weights = tensor(l->weights, ncclFloat32, 2, weight_sizes);
	ncclEpTensor_t rows =
		l->strike->ht ? tensor(l->rows, ncclFloat32, 2, ht_sizes) : tensor(l->rows, ncclFloat32, 3, ll_sizes);
	ncclEpTensor_t row_weights = tensor(l->row_weights, ncclFloat32, 2, ht_topk);
	ncclEpTensor_t row_idx = tensor(l->row_idx, ncclInt64, 2, ht_topk);
	ncclEpTensor_t counts = tensor(l->counts, ncclInt32, 1, counts_sizes);
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;

	in.tokens = &tokens;
	out.tokens = &rows;
	if (l->strike->ht) {
		in.topk_weights = &weights;
		out.topk_weights = &row_weights;
		out.topk_idx = &row_idx;
	} else {
		info.expert_counters = &counts;
	}
	return EP(ncclEpDispatch, (l->handle, &in, &out, &info, &config, NULL));
}

static bool combine(struct life *l)
{
	size_t out_sizes[] = { TOKENS, HIDDEN }, weight_sizes[] = { TOKENS, TOPK };
	size_t ll_sizes[] = { PER_RANK, l->capacity / PER_RANK, HIDDEN }, ht_sizes[] = { l->capacity, HIDDEN };
	ncclEpTensor_t sums = tensor(l->sums, ncclFloat32, 2, out_sizes);
	ncclEpTensor_t weights = tensor(l->weights, ncclFloat32, 2, weight_sizes);
	ncclEpTensor_t rows =
		l->strike->ht ? tensor(l->rows, ncclFloat32, 2, ht_sizes) : tensor(l->rows, ncclFloat32, 3, ll_sizes);
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;

	in.tokens = &rows;
	out.tokens = &sums;
	out.topk_weights = l->strike->ht ? NULL : &weights;
	return EP(ncclEpCombine, (l->handle, &in, &out, &config, NULL));
}

static bool look_at_masks(struct life *l)
{
	int mask[STRIKE_RANKS] = { 0 };

	if (!l->strike->masks)
		return true;
	if (!EP(ncclEpMaskQuery, (l->group, mask, NULL)))
		return false;
	for (int r = 0; r < l->strike->ranks; r++)
		l->me->masked |= !mask[r] << r;
	return true;
}

/* With masks the others go on until they have masked the victim. All stop after the same round, or one would wait for
 * those that have stopped: the first to decide says which, a few ahead of the round that any of them may be in. */
static bool more_rounds(const struct life *l, int round)
{
	int last = atomic_load(&l->board->last_round);
	bool struck = atomic_load(&l->board->struck) > 0;
	bool seen = l->me->masked >> l->strike->victim & 1 || atomic_load(&l->board->at_strike) > PHASE_OPS;

	if (round < l->strike->rounds || !l->strike->masks || l->strike->phase > PHASE_OPS)
		return round < l->strike->rounds;
	if (l->rank == l->strike->victim)
		return false;
	if (!last && struck && seen && atomic_compare_exchange_strong(&l->board->last_round, &last, round + 4))
		last = round + 4;
	return !last || round < last;
}

static void operate(struct life *l)
{
	for (int round = 0; more_rounds(l, round); round++)
		if (!update(l, round) || !dispatch(l) || !combine(l) || !look_at_masks(l))
			return;
}

static bool room(struct life *l)
{
	/* LL expert-major: every expert has room for all tokens; HT flat: one row per token and rank. */
	l->capacity = (size_t)(TOKENS * l->strike->ranks * PER_RANK);
	l->rows = calloc(l->capacity, HIDDEN * sizeof(float));
	l->row_weights = calloc(l->capacity, TOPK * sizeof(float));
	l->row_idx = calloc(l->capacity, TOPK * sizeof(int64_t));
	return l->rows && l->row_weights && l->row_idx;
}

static void enter(struct life *l, enum strike_phase phase)
{
	atomic_store(&l->me->phase, (int)phase);
}

static bool id_get(struct life *l)
{
	if (l->rank == 0) {
		if (!NCCL(ncclGetUniqueId, (&l->board->id)))
			return false;
		atomic_store(&l->board->id_ready, 1);
	}
	while (!atomic_load(&l->board->id_ready))
		usleep(100);
	return true;
}

void strike_live(struct strike_board *board, int rank)
{
	struct life *l = calloc(1, sizeof(*l));

	if (!l)
		return;
	*l = (struct life){ .board = board, .strike = &board->strike, .me = &board->rank[rank], .rank = rank };
	l->experts = PER_RANK * l->strike->ranks;
	if (!room(l) || !id_get(l))
		return;
	enter(l, PHASE_INIT);
	if (NCCL(ncclCommInitRank, (&l->comm, l->strike->ranks, board->id, rank))) {
		enter(l, PHASE_GROUP);
		if (group_open(l)) {
			enter(l, PHASE_HANDLE);
			if (EP(ncclEpInitHandle,
			       (&l->handle, l->group, l->strike->ht ? NCCL_EP_LAYOUT_FLAT : NCCL_EP_LAYOUT_EXPERT_MAJOR,
				NULL, TOPK, NULL))) {
				enter(l, PHASE_OPS);
				operate(l);
				enter(l, PHASE_PART);
				EP(ncclEpHandleDestroy, (l->handle));
			}
			enter(l, PHASE_PART);
			EP(ncclEpGroupDestroy, (l->group));
		}
		enter(l, PHASE_GONE);
		NCCL(ncclCommDestroy, (l->comm));
	}
	free(l->rows);
	free(l->row_weights);
	free(l->row_idx);
	free(l);
	atomic_store(&board->rank[rank].ended, 1);
}
