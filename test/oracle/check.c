/* SPDX-License-Identifier: Apache-2.0 */
#include "test/oracle/check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ll_wrong(struct ll_verdict *verdict, uint64_t count, const char *format, ...)
{
	va_list args;

	if (count && !verdict->wrong) {
		va_start(args, format);
		vsnprintf(verdict->first, sizeof(verdict->first), format, args);
		va_end(args);
	}
	verdict->wrong += count;
}

/* The parts of a received row, packed in the model's order. */
enum { PART_TOKEN, PART_SCALE, PART_IDX, PART_WEIGHT, PARTS };

static const char *const part_names[PARTS] = { "tokens", "scales", "topk_idx", "topk_weights" };

struct part {
	size_t bytes, at, element; /* bytes per row; offset in the packed row; bytes per value */
	const uint8_t *base;
};

struct view {
	struct part part[PARTS];
	size_t bytes; /* of a packed row; each part starts at a multiple of 8 */
};

static void view_make(const struct ll_shape *shape, const struct ll_got *got, struct view *view)
{
	size_t k = shape->layout == LL_RANK_MAJOR ? (size_t)shape->topk * 4 : 0;

	*view = (struct view){ .part = {
				       [PART_TOKEN] = { .bytes = ll_out_bytes(shape),
							.element = num_info[ll_out_type(shape)].size,
							.base = got->tokens },
				       [PART_SCALE] = { .bytes = ll_out_scale_bytes(shape),
							.element = shape->scales == LL_SCALES_EXPONENTS
									   ? 1
									   : num_info[ll_scale_type(shape)].size,
							.base = got->scales },
				       [PART_IDX] = { .bytes = k, .element = 4, .base = (const uint8_t *)got->idx },
				       [PART_WEIGHT] = { .bytes = k,
							 .element = 4,
							 .base = (const uint8_t *)got->weights },
			       } };
	for (int p = 0; p < PARTS; p++) {
		view->part[p].at = view->bytes;
		view->bytes += (view->part[p].bytes + 7) & ~(size_t)7;
	}
}

static const uint8_t *part_row(const struct part *part, size_t row)
{
	return part->base + row * part->bytes;
}

static bool row_equal(const struct view *view, size_t row, const uint8_t *want)
{
	for (int p = 0; p < PARTS; p++)
		if (view->part[p].bytes &&
		    memcmp(part_row(&view->part[p], row), want + view->part[p].at, view->part[p].bytes))
			return false;
	return true;
}

/* Number of values of a row that differ, and the position of the first. */
static uint64_t row_differ(const struct view *view, size_t row, const uint8_t *want, int *part, size_t *element)
{
	uint64_t differ = 0;

	for (int p = 0; p < PARTS; p++)
		for (size_t i = 0; i < view->part[p].bytes; i += view->part[p].element) {
			if (!memcmp(part_row(&view->part[p], row) + i, want + view->part[p].at + i,
				    view->part[p].element))
				continue;
			if (!differ) {
				*part = p;
				*element = i / view->part[p].element;
			}
			differ++;
		}
	return differ;
}

static void row_pack(const struct ll_scene *scene, const struct view *view, struct ll_row row, uint8_t *want)
{
	const struct ll_input *in = &scene->in[row.src];
	const struct ll_shape *shape = scene->shape;

	ll_expect_payload(shape, in, row.token, want, want + view->part[PART_SCALE].at);
	if (!view->part[PART_IDX].bytes)
		return;
	ll_expect_idx(shape, in, row.token, scene->rank, (int32_t *)(void *)(want + view->part[PART_IDX].at));
	memcpy(want + view->part[PART_WEIGHT].at, in->weight + row.token * shape->topk, view->part[PART_WEIGHT].bytes);
}

/* One zone: the model's rows, packed, and which of them and of the received rows are matched. */
struct zone {
	int index, count, cap;
	const struct ll_row *rows;
	uint8_t *want;
	bool *taken;
	struct ll_row *map; /* of the received rows */
};

static uint64_t hash_bytes(const uint8_t *at, size_t n)
{
	uint64_t hash = 0, word;

	for (size_t i = 0; i < n; i += 8) {
		word = 0;
		memcpy(&word, at + i, n - i < 8 ? n - i : 8);
		hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
		hash ^= hash >> 29;
	}
	return hash;
}

/* Exact matches. Found by a hash of the row, so that n rows cost n comparisons. */
static int match_exact(const struct view *view, struct zone *zone)
{
	size_t token = view->part[PART_TOKEN].bytes, slots = 16;
	int *table;

	while (slots < 2 * (size_t)zone->count)
		slots *= 2;
	table = malloc(slots * sizeof(*table));
	if (!table)
		return -ENOMEM;
	memset(table, 0xff, slots * sizeof(*table));
	for (int i = 0; i < zone->count; i++) {
		size_t slot = hash_bytes(zone->want + (size_t)i * view->bytes, token) & (slots - 1);

		while (table[slot] >= 0)
			slot = (slot + 1) & (slots - 1);
		table[slot] = i;
	}
	for (int r = 0; r < zone->count; r++) {
		size_t row = (size_t)zone->index * (size_t)zone->cap + (size_t)r;
		size_t slot = hash_bytes(part_row(&view->part[PART_TOKEN], row), token) & (slots - 1);

		for (; table[slot] >= 0; slot = (slot + 1) & (slots - 1)) {
			int i = table[slot];

			if (zone->taken[i] || !row_equal(view, row, zone->want + (size_t)i * view->bytes))
				continue;
			zone->taken[i] = true;
			zone->map[r] = zone->rows[i];
			break;
		}
	}
	free(table);
	return 0;
}

/* The remaining rows are wrong: each is compared with the most similar row of the model. */
static void match_rest(const struct ll_scene *scene, const struct view *view, struct zone *zone,
		       struct ll_verdict *verdict)
{
	for (int r = 0; r < zone->count; r++) {
		size_t row = (size_t)zone->index * (size_t)zone->cap + (size_t)r, element = 0;
		uint64_t least = UINT64_MAX;
		int best = -1, part = 0;

		if (zone->map[r].src >= 0)
			continue;
		for (int i = 0; i < zone->count; i++) {
			uint64_t differ;
			size_t e = 0;
			int p = 0;

			if (zone->taken[i])
				continue;
			differ = row_differ(view, row, zone->want + (size_t)i * view->bytes, &p, &e);
			if (differ < least) {
				least = differ;
				best = i;
				part = p;
				element = e;
			}
		}
		zone->taken[best] = true;
		ll_wrong(verdict, least, "rank %d: dispatch %s[%d][%d][%zu] is wrong; nearest: token %d of rank %d",
			 scene->rank, part_names[part], zone->index, r, element, zone->rows[best].token,
			 zone->rows[best].src);
	}
}

/* Expert-major: the rows of a source are contiguous. */
static void check_runs(const struct ll_scene *scene, const struct zone *zone, struct ll_verdict *verdict)
{
	for (int r = 1; r < zone->count; r++) {
		int src = zone->map[r].src;

		if (src < 0 || zone->map[r - 1].src == src)
			continue;
		for (int back = r - 1; back >= 0; back--)
			if (zone->map[back].src == src) {
				ll_wrong(verdict, 1,
					 "rank %d: rows of rank %d are not contiguous in expert %d: %d and %d",
					 scene->rank, src, zone->index, back, r);
				break;
			}
	}
}

static bool value_clean(int part, const uint8_t *at, size_t element)
{
	static const uint8_t ones[8] = { 255, 255, 255, 255, 255, 255, 255, 255 }, zeros[8];
	uint8_t poison[8];

	memset(poison, LL_POISON_OUT, sizeof(poison));
	if (part == PART_IDX)
		return !memcmp(at, ones, element);
	/* The contract does not cover weights past the count: untouched or zero. */
	return !memcmp(at, poison, element) || (part == PART_WEIGHT && !memcmp(at, zeros, element));
}

/* All bytes equal: a quick test, since most rows are untouched and checking each value is slow. */
static bool row_clean(int part, const uint8_t *row, size_t n)
{
	return row[0] == (part == PART_IDX ? 0xff : LL_POISON_OUT) && !memcmp(row, row + 1, n - 1);
}

static void check_spare(const struct ll_scene *scene, const struct view *view, const struct zone *zone, int spare,
			struct ll_verdict *verdict)
{
	int end = spare < zone->cap - zone->count ? zone->count + spare : zone->cap;

	for (int r = zone->count; r < end; r++)
		for (int p = 0; p < PARTS; p++) {
			const struct part *part = &view->part[p];
			const uint8_t *row;

			if (!part->bytes)
				continue;
			row = part_row(part, (size_t)zone->index * (size_t)zone->cap + (size_t)r);
			if (row_clean(p, row, part->bytes))
				continue;
			for (size_t i = 0; i < part->bytes; i += part->element)
				ll_wrong(verdict, !value_clean(p, row + i, part->element),
					 "rank %d: dispatch %s[%d][%d][%zu] was written, but only %d rows are valid",
					 scene->rank, part_names[p], zone->index, r, i / part->element, zone->count);
		}
}

static int check_zone(const struct ll_scene *scene, const struct view *view, struct zone *zone,
		      struct ll_verdict *verdict)
{
	int rc = -ENOMEM;

	zone->want = malloc((size_t)zone->count * view->bytes + 1);
	zone->taken = calloc((size_t)zone->count + 1, sizeof(*zone->taken));
	if (!zone->want || !zone->taken)
		goto free_zone;
	for (int i = 0; i < zone->count; i++)
		row_pack(scene, view, zone->rows[i], zone->want + (size_t)i * view->bytes);
	rc = match_exact(view, zone);
	if (rc)
		goto free_zone;
	match_rest(scene, view, zone, verdict);
	if (scene->shape->layout == LL_EXPERT_MAJOR)
		check_runs(scene, zone, verdict);
free_zone:
	free(zone->want);
	free(zone->taken);
	return rc;
}

int ll_check_dispatch(const struct ll_scene *scene, const struct ll_got *got, int spare, struct ll_row *map,
		      struct ll_verdict *verdict)
{
	struct ll_expect expect;
	struct view view;
	int rc = ll_expect_dispatch(scene->shape, scene->in, scene->active, scene->rank, &expect);

	if (rc)
		return rc;
	view_make(scene->shape, got, &view);
	for (int z = 0; z < expect.zones && !rc; z++) {
		struct zone zone = { .index = z, .count = expect.count[z], .cap = expect.cap };

		zone.rows = expect.row + (size_t)z * (size_t)expect.cap;
		zone.map = map + (size_t)z * (size_t)expect.cap;
		for (int r = 0; r < expect.cap; r++)
			zone.map[r] = (struct ll_row){ .src = -1 };
		if (got->counts)
			ll_wrong(verdict, got->counts[z] != zone.count, "rank %d: counter %d is %d, must be %d",
				 scene->rank, z, got->counts[z], zone.count);
		rc = check_zone(scene, &view, &zone, verdict);
		check_spare(scene, &view, &zone, spare, verdict);
	}
	ll_expect_free(&expect);
	return rc;
}

/* The rows returned for one token, in top-k order; `room` holds topk rows. */
static void answers_make(const struct ll_scene *scene, int token, uint8_t *room, const uint8_t **answers)
{
	const struct ll_shape *shape = scene->shape;
	size_t bytes = ll_combine_bytes(shape);

	for (int k = 0; k < shape->topk; k++) {
		int64_t id = scene->in[scene->rank].idx[token * shape->topk + k];
		int owner = ll_owner(shape, scene->active, id);

		answers[k] = room + (size_t)k * bytes;
		if (owner >= 0)
			ll_answer(shape, scene->data, scene->in, (struct ll_row){ scene->rank, token },
				  shape->layout == LL_EXPERT_MAJOR ? id : owner, room + (size_t)k * bytes);
	}
}

int ll_check_combine(const struct ll_scene *scene, const uint8_t *rows, struct ll_verdict *verdict)
{
	const struct ll_shape *shape = scene->shape;
	size_t bytes = ll_combine_bytes(shape), size = num_info[shape->combine].size, k = (size_t)shape->topk;
	uint8_t *room = malloc(bytes * (k + 1));
	const uint8_t **answers = calloc(k, sizeof(*answers));
	float *sum = malloc(shape->hidden * sizeof(*sum));
	int rc = room && answers && sum ? 0 : -ENOMEM;

	for (int t = 0; !rc && t < scene->in[scene->rank].t; t++) {
		uint8_t *want = room + k * bytes;

		answers_make(scene, t, room, answers);
		ll_expect_sum(shape, &scene->in[scene->rank], scene->active, t, answers, sum, want);
		for (size_t h = 0; h < shape->hidden; h++) {
			const uint8_t *got = rows + (size_t)t * bytes + h * size;

			if (memcmp(got, want + h * size, size))
				ll_wrong(verdict, 1, "rank %d: combine tokens[%d][%zu] is %.9g, must be %.9g",
					 scene->rank, t, h, (double)num_load(shape->combine, got),
					 (double)num_load(shape->combine, want + h * size));
		}
	}
	free(room);
	free(answers);
	free(sum);
	return rc;
}
