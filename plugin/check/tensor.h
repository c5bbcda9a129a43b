/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors against tables. A table has one entry per tensor of an operation: whether it is required, its dtypes, and its
 * dimensions as symbols (T, K, H, ...). A symbol has a value from the start or takes it from the first tensor that has
 * it; later tensors must agree.
 */
#ifndef EP_PLUGIN_CHECK_TENSOR_H
#define EP_PLUGIN_CHECK_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "nccl_ep.h"

enum ep_slot_need { EP_REQUIRED, EP_OPTIONAL, EP_FORBIDDEN, EP_IGNORED };

enum ep_sym {
	EP_D_ONE,
	EP_D_T,
	EP_D_K,
	EP_D_H,
	EP_D_S,	 /* width of a row of scales */
	EP_D_S4, /* and of one of their exponents, four in a word */
	EP_D_N,	 /* rows received: at least its value; either all tensors are empty or none is */
	EP_D_EL,
	EP_D_R,
	EP_D_TMAX,
	EP_D_RTMAX,
	EP_SYMS
};

/* Dtypes that are free but must be the same. */
enum ep_alike { EP_ALIKE_NONE, EP_ALIKE_TOKENS, EP_ALIKE_SCALES, EP_ALIKE_COUNTERS, EP_ALIKES };

#define EP_DT(name) (1u << (name))
#define EP_DT_F32 EP_DT(ncclFloat32)
#define EP_DT_I32 EP_DT(ncclInt32)
#define EP_DT_I64 EP_DT(ncclInt64)
#define EP_DT_TOKEN (EP_DT(ncclBfloat16) | EP_DT(ncclFloat16) | EP_DT(ncclFloat32))

struct ep_slot {
	uint8_t tensor; /* index among the operation's tensors */
	uint8_t need;	/* enum ep_slot_need */
	uint8_t ndim;
	uint8_t alike; /* enum ep_alike */
	bool least;    /* dimensions may be larger */
	uint16_t dtypes;
	uint8_t dim[3]; /* enum ep_sym */
};

/* A bias of HT combine. */
/* clang-format off */
#define EP_BIAS_SLOT(t, needed) \
	{ .tensor = t, .need = needed, .ndim = 2, .alike = EP_ALIKE_TOKENS, .dtypes = EP_DT_TOKEN, \
	  .dim = { EP_D_T, EP_D_H } }
/* clang-format on */

struct ep_sym_value {
	bool known;
	size_t value;	  /* for EP_D_N: the least */
	const char *from; /* where the value comes from, for messages */
};

struct ep_env {
	const char *fn;
	const char *mode;	  /* "LL expert-major", ... */
	const char *const *names; /* of the tensors, by index */
	size_t tmax;		  /* the most T may be */
	struct ep_sym_value sym[EP_SYMS];
	int rows; /* EP_D_N so far: -1 not seen, 0 empty, 1 not empty */
	struct {
		bool known;
		ncclDataType_t dtype;
		const char *from;
	} alike[EP_ALIKES];
};

/* Symbols every operation of a handle knows: El, R, Tmax, and T and K where an Update or num_topk has fixed them. */
void ep_env_init(struct ep_env *env, const char *fn, const char *const *names, const struct ncclEpHandle *handle);

int ep_slots_check(struct ep_env *env, const struct ep_slot *slot, size_t count, const ncclEpTensor_t *const *tensors);

#endif
