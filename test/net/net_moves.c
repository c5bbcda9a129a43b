/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_moves [-s] [-g ranks] SPEC...: conformance to nccl_ep_net.h, according to the net's properties: bytes,
 * immediates, contexts, order, quiet puts, flushes, invalid arguments. Ranks are threads of one process, or with
 * -g of several. -s: skipped when the first net has no device.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/rig/net_rig.h"

enum { ROW = 64, ROUNDS = 400, RANKS = 3, AREA = ROUNDS * ROW, BYTES = 4 * 65536 };
_Static_assert(BYTES >= (RANKS + 2) * AREA, "an area per source, one to send from, one for words");
_Static_assert(ROUNDS % 8 == 0 && RANKS * 8 <= ROUNDS, "the last row covers, and the area holds eight for each rank");
#define WORDS ((uint64_t)(RANKS + 1) * AREA)

static uint8_t byte_of(int from, int to, unsigned round, unsigned i)
{
	return (uint8_t)(from * 37 + to * 11 + (int)round * 7 + (int)i);
}

struct inbox {
	unsigned next[RANKS], total, overtaken;
	bool seen[RANKS][ROUNDS];
};

/* The bytes of a put have arrived when its immediate has. */
static void row_check(struct net_rank *me, uint32_t imm, void *arg)
{
	uint32_t from = imm / ROUNDS, round = imm % ROUNDS;
	struct inbox *in = arg;
	const uint8_t *row;

	EXPECT(me, from < (uint32_t)me->nranks);
	if (from >= (uint32_t)me->nranks)
		return;
	EXPECT(me, !in->seen[from][round]);
	in->seen[from][round] = true;
	in->overtaken += round != in->next[from]++;
	in->total++;
	row = me->mem + (size_t)from * AREA + (size_t)round * ROW;
	for (unsigned i = 0; i < ROW; i++)
		EXPECT(me, row[i] == byte_of((int)from, me->rank, round, i));
}

/* All to all, including itself. Seven puts are quiet and the eighth covers them; then their sources are reused. */
static void rows(struct net_rank *me)
{
	static _Thread_local struct inbox in;

	memset(&in, 0, sizeof(in));
	for (unsigned round = 0; round < ROUNDS; round++)
		for (int to = 0; to < me->nranks; to++) {
			uint64_t from = (uint64_t)RANKS * AREA + ((uint64_t)to * 8 + round % 8) * ROW;
			ncclEpNetPut_v1_t put = {
				.peer = to,
				.flags = NCCL_EP_NET_IMM | (round % 8 == 7 ? 0 : NCCL_EP_NET_QUIET),
				.imm = (uint32_t)me->rank * ROUNDS + round,
				.srcMr = me->mr,
				.dstMr = me->mr,
				.srcOffset = from,
				.dstOffset = (uint64_t)me->rank * AREA + (uint64_t)round * ROW,
				.size = ROW,
			};

			for (unsigned i = 0; i < ROW; i++)
				me->mem[from + i] = byte_of(me->rank, to, round, i);
			EXPECT(me, net_put(me, &put, row_check, &in) == 0);
		}
	NET_UNTIL(me, in.total == (unsigned)me->nranks * ROUNDS, row_check, &in);
	EXPECT(me, !me->props.ordered || !in.overtaken);
}

/* The same on the last context: immediates arrive on the context they were put on. */
static void rows_elsewhere(struct net_rank *me)
{
	void *first = me->ctx;

	if (me->props.maxContexts < 2)
		return;
	EXPECT(me, me->net->ops.createContext(me->comm, (int)me->props.maxContexts - 1, &me->ctx) == 0);
	net_meet(me);
	rows(me);
	net_meet(me);
	EXPECT(me, me->net->ops.destroyContext(me->ctx) == 0);
	me->ctx = first;
}

static int word_put(struct net_rank *me, int to, uint64_t offset, uint64_t value)
{
	ncclEpNetPut_v1_t put = {
		.peer = to,
		.flags = NCCL_EP_NET_INLINE,
		.src = &value,
		.dstMr = me->mr,
		.dstOffset = offset,
		.size = 8,
	};

	return net_put(me, &put, NULL, NULL);
}

static uint64_t word_get(struct net_rank *me, uint64_t offset)
{
	return __atomic_load_n((uint64_t *)(me->mem + offset), __ATOMIC_ACQUIRE);
}

/* Inline puts whose source is overwritten after the call, many in flight; each arrives unchanged. */
static void values(struct net_rank *me)
{
	uint64_t value;
	ncclEpNetPut_v1_t put = { .src = &value, .dstMr = me->mr, .size = sizeof(value) };

	put.peer = (me->rank + 1) % me->nranks;
	for (unsigned i = 0; i < ROUNDS; i++) {
		value = i + 1;
		put.flags = NCCL_EP_NET_INLINE | (i + 1 == ROUNDS ? 0 : NCCL_EP_NET_QUIET | NCCL_EP_NET_MORE);
		put.dstOffset = i * sizeof(value);
		EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
	}
	for (unsigned i = 0; i < ROUNDS; i++)
		NET_UNTIL(me, word_get(me, i * sizeof(value)) == i + 1, NULL, NULL);
}

/* Blocks 1 to 3, then the word. */
static void round_send(struct net_rank *me, unsigned round)
{
	ncclEpNetPut_v1_t put = {
		.peer = 1,
		.flags = NCCL_EP_NET_QUIET,
		.srcMr = me->mr,
		.dstMr = me->mr,
		.dstOffset = 256,
		.size = 200,
	};

	memset(me->mem, (int)round, 200);
	for (int i = 0; i < 3; i++, put.dstOffset += 256)
		EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
	EXPECT(me, word_put(me, 1, WORDS, round) == 0);
}

/* Of an ordered net rank 1 polls the word in its memory, as a device would, and checks what was put before it. */
static void order(struct net_rank *me)
{
	if (!me->props.ordered)
		return;
	memset(me->mem, 0, BYTES);
	net_meet(me);
	for (unsigned round = 1; round <= ROUNDS && me->rank < 2; round++) {
		if (me->rank == 0) {
			round_send(me, round);
			NET_UNTIL(me, word_get(me, WORDS + 64) == round, NULL, NULL);
			continue;
		}
		NET_UNTIL(me, word_get(me, WORDS) == round, NULL, NULL);
		for (unsigned block = 1; block <= 3; block++)
			for (unsigned i = 0; i < 200; i++)
				EXPECT(me, me->mem[block * 256 + i] == (uint8_t)round);
		EXPECT(me, word_put(me, 0, WORDS + 64, round) == 0);
	}
	net_meet(me);
}

/*
 * More quiet puts than any queue holds, to all peers in turn; the last one to each peer covers them and can be polled.
 */
static void quiets(struct net_rank *me)
{
	enum { MANY = 700 };

	memset(me->mem + WORDS + 64, 100 + me->rank, sizeof(uint64_t));
	for (unsigned i = 0; i <= MANY; i++)
		for (int to = 0; to < me->nranks; to++) {
			uint64_t word = i == MANY ? 64 : 0;
			ncclEpNetPut_v1_t put = {
				.peer = to,
				.flags = word ? 0 : NCCL_EP_NET_QUIET | NCCL_EP_NET_MORE,
				.srcMr = me->mr,
				.dstMr = me->mr,
				.srcOffset = WORDS + word,
				.dstOffset = (uint64_t)me->rank * AREA + word,
				.size = word ? sizeof(uint64_t) : 64,
			};

			EXPECT(me, net_put(me, &put, NULL, NULL) == 0);
		}
	for (int from = 0; from < me->nranks; from++)
		NET_UNTIL(me, word_get(me, (uint64_t)from * AREA + 64) % 256 == 100 + (unsigned)from, NULL, NULL);
}

static void flush(struct net_rank *me)
{
	void *request = NULL;

	if (!me->props.flushes)
		return;
	EXPECT(me, !me->hot->iflush(me->ctx, me->mr, &request) && request && !net_end(me, request, NULL, NULL));
}

/* Refused at once or failed at completion, and never executed. */
static void mistakes(struct net_rank *me)
{
	ncclEpNetPut_v1_t good = { .peer = 0, .srcMr = me->mr, .dstMr = me->mr, .size = 64 }, bad[6];
	ncclEpNetMem_v1_t mem = { .ptr = me->mem, .size = 4096, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
	uint8_t key[NCCL_EP_NET_KEY_SIZE];
	void *alone = NULL;

	EXPECT(me, me->net->ops.regMr(me->comm, &mem, key, &alone) == 0);
	good.dstOffset = 4096 + 64 * (uint64_t)me->rank;
	for (int i = 0; i < 6; i++)
		bad[i] = good;
	bad[0].peer = me->nranks;
	bad[1].peer = -1;
	bad[2].srcOffset = BYTES - 63;
	bad[3].srcOffset = UINT64_MAX - 8;
	bad[4].size = UINT64_MAX;
	bad[5].dstMr = alone; /* not shared */
	for (int i = 0; i < 6; i++)
		EXPECT(me, net_put(me, &bad[i], NULL, NULL) == -EINVAL);
	EXPECT(me, net_put(me, &good, NULL, NULL) == 0);
	EXPECT(me, me->net->ops.deregMr(me->comm, alone) == 0);
}

int main(int argc, char **argv)
{
	static void (*const runs[])(
		struct net_rank *) = { rows, rows_elsewhere, values, quiets, order, flush, mistakes };
	int each = 0, errors = 0, c;
	bool skip = false;

	while ((c = getopt(argc, argv, "sg:")) != -1) {
		skip |= c == 's';
		each = c == 'g' ? atoi(optarg) : each;
	}
	if (skip && optind < argc && net_absent(argv[optind]))
		return 77;
	for (int i = optind; i < argc; i++)
		for (unsigned k = 0; k < sizeof(runs) / sizeof(runs[0]); k++) {
			struct net_case test = {
				.spec = argv[i],
				.ranks = RANKS,
				.each = each,
				.bytes = BYTES,
				.run = runs[k],
			};

			errors += net_run(&test);
		}
	return errors || optind == argc;
}
