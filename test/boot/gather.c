/* SPDX-License-Identifier: Apache-2.0 */
/* ep_gather alone: a simulated mesh that delivers in random order, with and without deaths. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdlib.h>

#include "plugin/boot/gather.h"

TestSuite(boot_gather, .timeout = 120);

#define MAX_NODES 70
#define PIPE_MAX 4096

/* One direction of a connection, a FIFO. */
struct pipe {
	struct node *from, *to;
	int edge_to; /* the receiver's number for it */
	struct ep_blob *queue[PIPE_MAX];
	int head, tail;
};

struct node {
	struct ep_gather g;
	bool dead;
	int emitted;
	uint8_t *all;
	int rounds; /* collectives completed */
	bool inside;
};

struct world {
	int n, pipes;
	size_t size;
	uint32_t seed;
	struct node node[MAX_NODES];
	struct pipe *pipe[MAX_NODES * MAX_NODES];
};

static uint32_t draw(struct world *w, uint32_t below)
{
	w->seed = w->seed * 1664525u + 1013904223u;
	return (w->seed >> 8) % below;
}

static int emit(void *ctx, void *user, struct ep_blob *blob)
{
	struct node *me = ctx;
	struct pipe *p = user;

	me->emitted++;
	if (p->to->dead || p->tail - p->head == PIPE_MAX)
		return p->to->dead ? 0 : -ENOMEM;
	/* A copy, as over the wire: references must not cross between ranks. */
	p->queue[p->tail++ % PIPE_MAX] = ep_blob_new(&blob->frame, blob->body);
	return 0;
}

static void connect(struct world *w, int a, int b)
{
	struct pipe *ab = calloc(1, sizeof(*ab)), *ba = calloc(1, sizeof(*ba));

	cr_assert(ab && ba);
	*ab = (struct pipe){ .from = &w->node[a], .to = &w->node[b] };
	*ba = (struct pipe){ .from = &w->node[b], .to = &w->node[a] };
	ba->edge_to = ep_gather_edge_add(&w->node[a].g, (uint32_t)b, ab);
	ab->edge_to = ep_gather_edge_add(&w->node[b].g, (uint32_t)a, ba);
	cr_assert(ab->edge_to >= 0 && ba->edge_to >= 0);
	w->pipe[w->pipes++] = ab;
	w->pipe[w->pipes++] = ba;
}

static struct world *world_new(int n, size_t size, bool survive, uint32_t seed)
{
	struct world *w = calloc(1, sizeof(*w));

	cr_assert(w);
	w->n = n;
	w->size = size;
	w->seed = seed;
	for (int i = 0; i < n; i++) {
		cr_assert(!ep_gather_init(&w->node[i].g, (uint32_t)i, (uint32_t)n, survive));
		w->node[i].g.emit = emit;
		w->node[i].g.ctx = &w->node[i];
		w->node[i].all = calloc((size_t)n, size ? size : 1);
	}
	for (int a = 0; a < n; a++)
		for (int b = 0; b < n; b++)
			if (a != b && ep_mesh_dials((uint32_t)a, (uint32_t)b, (uint32_t)n))
				connect(w, a, b);
	return w;
}

static void world_free(struct world *w)
{
	for (int i = 0; i < w->pipes; i++) {
		struct pipe *p = w->pipe[i];

		while (p->head < p->tail)
			ep_blob_put(p->queue[p->head++ % PIPE_MAX]);
		free(p);
	}
	for (int i = 0; i < w->n; i++) {
		ep_gather_free(&w->node[i].g);
		free(w->node[i].all);
	}
	free(w);
}

static uint8_t value(int round, int rank, size_t at)
{
	return (uint8_t)(round * 31 + rank * 7 + (int)(at % 251));
}

static void begin(struct world *w, int i)
{
	struct node *me = &w->node[i];
	uint8_t *mine = malloc(w->size ? w->size : 1);

	for (size_t k = 0; k < w->size; k++)
		mine[k] = value(me->rounds, i, k);
	me->inside = true;
	cr_assert_eq(ep_gather_begin(&me->g, mine, w->size), 0);
	free(mine);
}

static void end(struct world *w, int i)
{
	struct node *me = &w->node[i];

	memset(me->all, 0xee, (size_t)w->n * w->size);
	ep_gather_end(&me->g, me->all);
	for (int r = 0; r < w->n; r++) {
		const uint8_t *block = me->all + (size_t)r * w->size;
		bool absent = w->node[r].dead && w->size && block[0] == 0xee && block[w->size - 1] == 0xee;

		for (size_t k = 0; k < w->size && !absent; k += w->size > 999 ? 997 : 1)
			cr_assert_eq(block[k], value(me->rounds, r, k), "rank %d has a wrong byte of rank %d", i, r);
	}
	me->rounds++;
	me->inside = false;
}

static void deliver(struct world *w, struct pipe *p)
{
	struct ep_blob *blob;

	if (p->head == p->tail)
		return;
	blob = p->queue[p->head++ % PIPE_MAX];
	if (!p->to->dead)
		cr_assert_eq(ep_gather_take(&p->to->g, p->edge_to, blob), 0);
	ep_blob_put(blob);
	(void)w;
}

/* All nodes run `rounds` collectives, each at its own speed; true when all live ones are done. */
static bool run(struct world *w, int rounds, int steps)
{
	for (int s = 0; s < steps; s++) {
		int i = (int)draw(w, (uint32_t)w->n), left = 0;

		if (!w->node[i].dead && !w->node[i].inside && w->node[i].rounds < rounds)
			begin(w, i);
		for (int k = 0; k < 4 && w->pipes; k++)
			deliver(w, w->pipe[draw(w, (uint32_t)w->pipes)]);
		if (!w->node[i].dead && w->node[i].inside && ep_gather_done(&w->node[i].g))
			end(w, i);
		for (int k = 0; s % 64 == 0 && k < w->n; k++)
			left += !w->node[k].dead && w->node[k].rounds < rounds;
		if (s % 64 == 0 && !left)
			return true;
	}
	return false;
}

Test(boot_gather, every_size_and_order)
{
	static const size_t sizes[] = { 0, 1, 1000, EP_FRAME_MAX, EP_FRAME_MAX + 1, 3 * EP_FRAME_MAX };

	for (int n = 1; n <= 20; n++)
		for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
			struct world *w = world_new(n, sizes[s], n % 2, (uint32_t)(n * 100 + (int)s));

			cr_assert(run(w, 4, 1000000), "%d ranks, %zu bytes", n, sizes[s]);
			world_free(w);
		}
}

Test(boot_gather, every_rank_gets_every_block_once)
{
	static const int counts[] = { 2, 3, 8, 33, 64 };

	for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
		struct world *w = world_new(counts[c], 16, false, (uint32_t)c);
		int emitted = 0;

		cr_assert(run(w, 3, 1000000));
		for (int i = 0; i < w->n; i++)
			emitted += w->node[i].emitted;
		cr_assert_eq(emitted, 3 * w->n * (w->n - 1));
		world_free(w);
	}
}

/* A death: the rank stops, its connections close, and the others learn of it at some later time. */
static void kill_node(struct world *w, int victim)
{
	w->node[victim].dead = true;
	for (int i = 0; i < w->pipes; i++)
		if (w->pipe[i]->from == &w->node[victim])
			while (w->pipe[i]->head < w->pipe[i]->tail && draw(w, 3))
				deliver(w, w->pipe[i]);
	for (int i = 0; i < w->pipes; i++) {
		struct pipe *p = w->pipe[i];

		if (p->from != &w->node[victim])
			continue;
		while (p->head < p->tail)
			ep_blob_put(p->queue[p->head++ % PIPE_MAX]);
		ep_gather_edge_drop(&p->to->g, p->edge_to);
	}
}

Test(boot_gather, survivors_complete_after_deaths)
{
	for (uint32_t seed = 0; seed < 150; seed++) {
		int n = 3 + (int)(seed % 14), rounds = 6;
		struct world *w = world_new(n, seed % 3 ? 40 : 2 * EP_FRAME_MAX + 5, true, seed);
		/* Fewer deaths than edges per rank cannot partition the mesh. */
		int deaths = 1 + (int)draw(w, n > 8 ? 3 : 2), victim[3];

		for (int d = 0; d < deaths; d++) {
			run(w, rounds, 20 + (int)draw(w, 300));
			victim[d] = (int)draw(w, (uint32_t)n);
			if (!w->node[victim[d]].dead)
				kill_node(w, victim[d]);
			for (int i = 0; i < n; i++) {
				run(w, rounds, (int)draw(w, 3));
				if (!w->node[i].dead)
					cr_assert_eq(ep_gather_gone(&w->node[i].g, (uint32_t)victim[d], 0), 0);
			}
		}
		cr_assert(run(w, rounds, 2000000), "seed %u: %d ranks, %d deaths", seed, n, deaths);
		world_free(w);
	}
}

/* Rank 3 gets the block of rank 0 by way of rank 1, which dies when all but rank 3 have completed and moved on. */
Test(boot_gather, the_last_to_complete_is_not_forgotten)
{
	struct world *w = world_new(4, 40, true, 1);

	for (int i = 0; i < 4; i++)
		begin(w, i);
	for (int k = 0; k < 1000; k++) {
		struct pipe *p = w->pipe[draw(w, (uint32_t)w->pipes)];

		if (p->from != &w->node[1] || p->to != &w->node[3])
			deliver(w, p);
	}
	for (int i = 0; i < 3; i++) {
		cr_assert(ep_gather_done(&w->node[i].g));
		end(w, i);
	}
	cr_assert(!ep_gather_done(&w->node[3].g));
	w->node[1].dead = true;
	for (int i = 0; i < w->pipes; i++)
		if (w->pipe[i]->from == &w->node[1])
			ep_gather_edge_drop(&w->pipe[i]->to->g, w->pipe[i]->edge_to);
	for (int i = 0; i < 4; i++)
		if (i != 1)
			cr_assert_eq(ep_gather_gone(&w->node[i].g, 1, 0), 0);
	for (int k = 0; k < 1000; k++) {
		struct pipe *p = w->pipe[draw(w, (uint32_t)w->pipes)];

		if (p->from != &w->node[1])
			deliver(w, p);
	}
	cr_assert(ep_gather_done(&w->node[3].g));
	end(w, 3);
	cr_expect_eq(w->node[3].all[0], value(0, 0, 0), "the block of rank 0 is there");
	world_free(w);
}

Test(boot_gather, a_new_edge_brings_what_was_missed)
{
	/* 8 ranks; when 1, 2, 4, 6 and 7 are dead, rank 0 has no neighbour. */
	static const int victims[] = { 1, 2, 4, 6, 7 };
	struct world *w = world_new(8, 100, true, 5);

	cr_assert(run(w, 2, 1000000));
	for (size_t v = 0; v < 5; v++)
		kill_node(w, victims[v]);
	for (int i = 0; i < 8; i++)
		for (size_t v = 0; v < 5 && !w->node[i].dead; v++)
			ep_gather_gone(&w->node[i].g, (uint32_t)victims[v], 0);
	cr_assert(!run(w, 5, 100000), "rank 0 cannot be reached yet");
	connect(w, 0, 3);
	cr_assert(run(w, 5, 1000000));
	world_free(w);
}

static int take(struct ep_gather *g, struct ep_frame f, size_t body)
{
	static const uint8_t bytes[EP_FRAME_MAX];
	struct ep_blob *blob;
	int rc;

	f.type = EP_F_BLOCK;
	f.bytes = (uint32_t)body;
	blob = ep_blob_new(&f, bytes);
	rc = ep_gather_take(g, 0, blob);
	ep_blob_put(blob);
	return rc;
}

Test(boot_gather, nonsense_is_refused)
{
	struct world *w = world_new(4, 8, true, 1);
	struct ep_gather *g = &w->node[0].g;

	cr_expect_eq(take(g, (struct ep_frame){ .rank = 4, .total = 8 }, 8), -EPROTO, "no such rank");
	cr_expect_eq(take(g, (struct ep_frame){ .rank = 1, .total = 8, .seq = 2 }, 8), -EPROTO, "two ahead");
	cr_expect_eq(take(g, (struct ep_frame){ .rank = 1, .total = 9 }, 8), -EPROTO, "too short");
	cr_expect_eq(take(g, (struct ep_frame){ .rank = 1, .total = 7 }, 8), -EPROTO, "too long");
	cr_expect_eq(take(g, (struct ep_frame){ .rank = 1, .total = 8, .index = 1 }, 0), -EPROTO, "no such piece");
	cr_expect_eq(take(g, (struct ep_frame){ .rank = 1, .total = UINT64_MAX, .index = 5 }, EP_FRAME_MAX), -EPROTO,
		     "a gap");
	cr_expect_eq(take(g, (struct ep_frame){ .rank = 0, .total = 8 }, 8), -EPROTO,
		     "our own block before we have one");
	cr_expect_eq(take(g, (struct ep_frame){ .rank = 1, .total = 8 }, 8), 0);
	cr_expect_eq(take(g, (struct ep_frame){ .rank = 1, .total = 8 }, 8), 0, "again");
	cr_expect_eq(take(g, (struct ep_frame){ .rank = 1, .total = 9 }, 9), -EPROTO,
		     "another size for the same block");
	cr_expect_eq(ep_gather_begin(g, "0123456789", 9), -EMSGSIZE);
	cr_expect_eq(g->culprit, 1);
	cr_expect_eq(ep_gather_begin(g, "0123456789", 8), 0);
	cr_expect_eq(take(g, (struct ep_frame){ .rank = 2, .total = 16 }, 16), -EMSGSIZE);
	cr_expect_eq(g->culprit, 2);
	world_free(w);
}

Test(boot_gather, missing_ranks_are_named)
{
	struct world *w = world_new(20, 0, false, 1);
	char text[128];

	begin(w, 3);
	take(&w->node[3].g, (struct ep_frame){ .rank = 1 }, 0);
	cr_expect_eq(ep_gather_missing(&w->node[3].g, text, sizeof(text)), 18);
	cr_expect_str_eq(text, "0, rank 2, rank 4, rank 5, rank 6, rank 7, rank 8, rank 9 and 10 more");
	world_free(w);
}

/* Its relay may be dead, and whoever has the block may have left. */
Test(boot_gather, a_barrier_that_a_rank_has_passed_is_complete)
{
	struct world *barrier = world_new(4, 0, true, 1), *data = world_new(4, 8, true, 1);

	begin(barrier, 0);
	begin(data, 0);
	ep_gather_passed(&barrier->node[0].g, 0);
	cr_expect_not(ep_gather_done(&barrier->node[0].g), "the rank left before it");
	ep_gather_passed(&barrier->node[0].g, 1);
	ep_gather_passed(&data->node[0].g, 1);
	cr_expect(ep_gather_done(&barrier->node[0].g));
	cr_expect_not(ep_gather_done(&data->node[0].g), "the blocks are missing");
	world_free(barrier);
	world_free(data);
}
