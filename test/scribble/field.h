/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks of a node share, as fields: where the words of one kind lie in the control page or the payload window, so
 * that a test can overwrite just these. Offsets come from the layout in kernels/ll/args.h and kernels/ht/args.h.
 */
#ifndef EP_TEST_SCRIBBLE_FIELD_H
#define EP_TEST_SCRIBBLE_FIELD_H

#include <stdbool.h>
#include <stdint.h>

#include "plugin/group/group.h"

#define FIELD_DIMS 4
#define FIELDS 24

/* Words at `at` plus any multiple below count of each step. */
struct field {
	const char *name;
	bool payload;	/* else the control page */
	uint32_t width; /* bytes of a word: 4 or 8 */
	uint64_t at;
	struct field_dim {
		uint64_t step, count;
	} dim[FIELD_DIMS]; /* count 0: not used */
};

/* What the layout of windows depends on besides the group. */
struct field_layout {
	uint32_t topk, row_bytes;
	bool rank_major;   /* LL */
	bool expert_major; /* HT */
	uint64_t stage_at; /* HT */
};

/* Fills out[FIELDS] and returns how many there are: the same names, in the same order, for every group of an algorithm.
 */
int field_list(const struct ncclEpGroup *group, const struct field_layout *layout, struct field *out);

/* A word of the field in the memory of a rank, picked by the random number; NULL: it has none, or lies outside. */
void *field_word(const struct ncclEpGroup *group, const struct field *field, int rank, uint64_t random);

/* Closes what is between this rank's windows and the end of their last page to AddressSanitizer. To be opened before
 * the group is destroyed. */
void field_fence(const struct ncclEpGroup *group, bool closed);

#endif
