/* SPDX-License-Identifier: Apache-2.0 */
#include "test/scribble/field.h"

#include <stddef.h>
#include <unistd.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

#include "kernels/args.h"
#include "plugin/group/plan.h"

struct list {
	struct field *out;
	int count;
};

static struct field *add(struct list *list, const char *name, bool payload, uint32_t width, uint64_t at)
{
	struct field *f = &list->out[list->count++];

	*f = (struct field){ .name = name, .payload = payload, .width = width, .at = at };
	return f;
}

static void dim(struct field *f, uint64_t step, uint64_t count)
{
	int i = 0;

	while (f->dim[i].count)
		i++;
	f->dim[i] = (struct field_dim){ step, count };
}

static const struct ep_window *payload_of(const struct ncclEpGroup *group)
{
	return group->payload.win[group->payload.count - 1];
}

/* Whole pages are mapped: what is behind a window is shared too. */
static uint64_t mapped(const struct ep_window *win)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return (win->mine.size + page - 1) / page * page;
}

static void whole_fields(struct list *list, const struct ncclEpGroup *group)
{
	const struct ep_window *win = payload_of(group);

	dim(add(list, "control page", false, 8, 0), 8, group->control.size / 8);
	dim(add(list, "payload", true, 4, 0), 4, win->size / 4);
	dim(add(list, "behind the control page", false, 8, group->control.size), 8,
	    (mapped(&group->control) - group->control.size) / 8);
	dim(add(list, "behind the payload", true, 8, win->size), 8, (mapped(win) - win->size) / 8);
}

static void ll_fields(struct list *list, const struct ncclEpGroup *group, const struct field_layout *layout)
{
	uint32_t n = (uint32_t)group->nranks, el = (uint32_t)group->experts_per_rank;
	struct ep_ll_shape s = { .nranks = n, .per_rank = el, .tmax = group->cfg.max_dispatch, .topk = layout->topk };
	uint64_t half = payload_of(group)->size / 2 / EP_PLAN_ALIGN * EP_PLAN_ALIGN, head, pitch, area;
	struct field *f;

	s.fan = s.topk < el ? s.topk : el;
	head = ep_ll_row_head_bytes(&s, layout->rank_major);
	pitch = ep_ll_align(head + ep_ll_pad(layout->row_bytes));
	area = ep_ll_area(&s, pitch);
	dim(add(list, "signal", false, 8, ep_ll_signal_at(0)), EP_LL_LINE, n);
	dim(add(list, "ack", false, 8, ep_ll_ack_at(n, 0, 0)), EP_LL_LINE, 2 * n);
	dim(add(list, "failed", false, 8, ep_ll_failed_at(n)), 8, 1);
	dim(add(list, "clean and jump", false, 8, ep_ll_clean_at(n, 0)), EP_LL_CLEAN_NUMBER, 2 * n * 4);
	for (int i = 0; i < 3; i++) {
		static const char *const names[] = { "total", "count", "row head" };

		f = add(list, names[i], true, 4, i == 0 ? 0 : i == 1 ? 16 : ep_ll_source_head(&s));
		dim(f, half, 2);
		dim(f, area, n);
		if (i == 1)
			dim(f, 4, el);
		if (i == 2) {
			dim(f, pitch, s.tmax);
			dim(f, 4, head / 4);
		}
	}
}

#define LINE(member) offsetof(struct ep_ht_line, member), sizeof(((struct ep_ht_line *)0)->member) / 8

static void ht_fields(struct list *list, const struct ncclEpGroup *group, const struct field_layout *layout)
{
	static const struct {
		const char *name;
		uint64_t at, words;
	} line[] = {
		{ "entered", LINE(entered) }, { "place", LINE(tensor) },
		{ "key", LINE(key) },	      { "way", LINE(way) },
		{ "meta", LINE(meta) },	      { "done", LINE(done) },
		{ "counted", LINE(counts) },  { "line", 0, sizeof(struct ep_ht_line) / 8 },
	};
	uint32_t n = (uint32_t)group->nranks;
	uint64_t bins = ep_ht_bins(n, group->cfg.num_experts, 0), rows = group->cfg.max_recv;
	uint64_t meta = ep_ht_meta_pitch(layout->topk, layout->expert_major);
	struct ep_ht_shape s = { .fan = (uint32_t)group->experts_per_rank };
	struct field *f;

	s.fan = layout->topk < s.fan ? layout->topk : s.fan;
	rows = rows ? rows : n * group->cfg.max_dispatch;
	dim(add(list, "failed", false, 8, 0), 8, 1);
	for (size_t i = 0; i < sizeof(line) / sizeof(line[0]); i++) {
		f = add(list, line[i].name, false, 8, ep_ht_line_at(0) + line[i].at);
		dim(f, sizeof(struct ep_ht_line), n);
		dim(f, 8, line[i].words);
	}
	f = add(list, "count", false, 4, ep_ht_counts_at(n, bins, 0));
	dim(f, ep_ht_counts_at(n, bins, 1) - ep_ht_counts_at(n, bins, 0), n);
	dim(f, 4, bins);
	f = add(list, "ids and weights", true, 4, 0);
	dim(f, meta, rows);
	dim(f, 4, meta / 4);
	f = add(list, "staged head", true, 4, layout->stage_at);
	dim(f, ep_ht_head(&s, layout->expert_major) + (layout->row_bytes + 15) / 16 * 16, rows);
	dim(f, 4, 1 + s.fan);
}

int field_list(const struct ncclEpGroup *group, const struct field_layout *layout, struct field *out)
{
	struct list list = { .out = out };

	if (ep_group_ht(group))
		ht_fields(&list, group, layout);
	else
		ll_fields(&list, group, layout);
	whole_fields(&list, group);
	return list.count;
}

void *field_word(const struct ncclEpGroup *group, const struct field *field, int rank, uint64_t random)
{
	const struct ep_window *win = field->payload ? payload_of(group) : &group->control;
	uint64_t at = field->at;

	for (int i = 0; i < FIELD_DIMS && field->dim[i].count; i++) {
		at += random % field->dim[i].count * field->dim[i].step;
		random /= field->dim[i].count;
	}
	if (!field->dim[0].count || !win->peer[rank] || at % field->width || at + field->width > mapped(win))
		return NULL;
	return (char *)win->peer[rank] + at;
}

static void fence(const struct ep_window *win, bool closed)
{
	char *end = (char *)win->mine.ptr + win->size;

	if (closed)
		ASAN_POISON_MEMORY_REGION(end, mapped(win) - win->size);
	else
		ASAN_UNPOISON_MEMORY_REGION(end, mapped(win) - win->size);
}

void field_fence(const struct ncclEpGroup *group, bool closed)
{
	fence(&group->control, closed);
	for (int i = 0; i < group->payload.count; i++)
		fence(group->payload.win[i], closed);
}
