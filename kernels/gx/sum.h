/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of a token's rows by one block or one warp: fp32, in the order of the terms, one fused multiply-add each, as
 * NCCL EP's, whose callers compare bytes; the result is rounded to its type once. Always gx_fma, never left to a
 * compiler's contraction: devices would differ. A NULL term is skipped; without any term the sum is zero. Additions are
 * the same as weights of 1.
 *
 * 16 bytes per thread and eight loads in flight where everything is aligned, else one element per thread. On the CPU
 * (a warp of one lane) a tile of elements, term by term, which compilers vectorise.
 */
#ifndef EP_KERNELS_SUM_H
#define EP_KERNELS_SUM_H

#include "kernels/gx/gx.h"
#include "kernels/gx/num.h"

#define SUM_TILE 256u
#define SUM_AHEAD 8u /* loads in flight per thread */

struct sum {
	uint8_t *out;
	const uint8_t *const *term;
	const float *weight; /* NULL: plain additions */
	uint32_t terms;
	uint32_t n;	       /* elements */
	uint32_t tid, threads; /* this thread's index among those that add, and their number */
};

GX_DEV float sum_load(const uint8_t *row, uint32_t i, uint32_t dtype)
{
	if (dtype == EP_NUM_F32)
		return ((const float *)row)[i];
	if (dtype == EP_NUM_F16)
		return num_from_f16(((const uint16_t *)row)[i]);
	return num_from_bf16(((const uint16_t *)row)[i]);
}

GX_DEV void sum_store(uint8_t *row, uint32_t i, float v, uint32_t dtype)
{
	if (dtype == EP_NUM_F32)
		((float *)row)[i] = v;
	else if (dtype == EP_NUM_F16)
		((uint16_t *)row)[i] = (uint16_t)num_to_f16(v);
	else
		((uint16_t *)row)[i] = (uint16_t)num_to_bf16(v);
}

/* n elements starting at first, term by term: acc stays in the L1 cache. */
GX_DEV void sum_tile(const struct sum *s, uint32_t first, uint32_t n, uint32_t dtype)
{
	float acc[SUM_TILE];
	uint32_t size = dtype == EP_NUM_F32 ? 4 : 2;

	for (uint32_t i = 0; i < n; i++)
		acc[i] = 0.0f;
	for (uint32_t k = 0; k < s->terms; k++) {
		const uint8_t *x = s->term[k];
		float w = s->weight ? s->weight[k] : 1.0f;

		if (!x)
			continue;
		x += (uint64_t)first * size;
		if (w == 1.0f) /* the same bits, and fast where gx_fma is a call */
			for (uint32_t i = 0; i < n; i++)
				acc[i] = acc[i] + sum_load(x, i, dtype);
		else
			for (uint32_t i = 0; i < n; i++)
				acc[i] = gx_fma(sum_load(x, i, dtype), w, acc[i]);
	}
	for (uint32_t i = 0; i < n; i++)
		sum_store(s->out + (uint64_t)first * size, i, acc[i], dtype);
}

GX_DEV void sum_tiles(const struct sum *s, uint32_t dtype)
{
	for (uint32_t first = s->tid * SUM_TILE; first < s->n; first += s->threads * SUM_TILE)
		sum_tile(s, first, s->n - first < SUM_TILE ? s->n - first : SUM_TILE, dtype);
}

GX_DEV void sum_elements(const struct sum *s, uint32_t dtype)
{
	for (uint32_t i = s->tid; i < s->n; i += s->threads) {
		float acc = 0.0f;

		for (uint32_t k = 0; k < s->terms; k++)
			if (s->term[k])
				acc = gx_fma(sum_load(s->term[k], i, dtype), s->weight ? s->weight[k] : 1.0f, acc);
		sum_store(s->out, i, acc, dtype);
	}
}

union sum_vector {
	gx_u4 v;
	uint32_t w[4];
};

/* Adds the 16 bytes of one term. This and sum_pack in as few instructions as the device allows: with more, a combine on
 * few multiprocessors is bound by them and not by memory. */
GX_DEV void sum_add(float *acc, gx_u4 v, float w, uint32_t dtype)
{
	union sum_vector u;

	u.v = v;
	for (uint32_t i = 0; i < 4; i++) {
		if (dtype == EP_NUM_F32) {
			acc[i] = gx_fma(num_f32(u.w[i]), w, acc[i]);
		} else if (dtype == EP_NUM_F16) {
			acc[2 * i] = gx_fma(gx_from_f16(u.w[i] & 0xffffu), w, acc[2 * i]);
			acc[2 * i + 1] = gx_fma(gx_from_f16(u.w[i] >> 16), w, acc[2 * i + 1]);
		} else {
			acc[2 * i] = gx_fma(num_f32(u.w[i] << 16), w, acc[2 * i]);
			acc[2 * i + 1] = gx_fma(num_f32(u.w[i] & 0xffff0000u), w, acc[2 * i + 1]);
		}
	}
}

GX_DEV gx_u4 sum_pack(const float *acc, uint32_t dtype)
{
	union sum_vector u;

	for (uint32_t i = 0; i < 4; i++) {
		if (dtype == EP_NUM_F32)
			u.w[i] = num_bits(acc[i]);
		else if (dtype == EP_NUM_F16)
			u.w[i] = gx_pack_f16(acc[2 * i], acc[2 * i + 1]);
		else
			u.w[i] = gx_pack_bf16(acc[2 * i], acc[2 * i + 1]);
	}
	return u.v;
}

/* Two vectors at a time: a token's loads are in flight together. */
#define SUM_PAIR 2u

GX_DEV void sum_vectors(const struct sum *s, uint32_t dtype)
{
	uint32_t vectors = s->n / (dtype == EP_NUM_F32 ? 4 : 8);

	for (uint32_t i = s->tid; i < vectors; i += SUM_PAIR * s->threads) {
		float acc[SUM_PAIR][8];
		uint32_t second = i + s->threads < vectors;

		for (uint32_t m = 0; m < SUM_PAIR * 8; m++)
			acc[m / 8][m % 8] = 0.0f;
		for (uint32_t k = 0; k < s->terms; k += SUM_AHEAD) {
			const uint8_t *t[SUM_AHEAD];
			gx_u4 v[SUM_AHEAD][SUM_PAIR];

			for (uint32_t j = 0; j < SUM_AHEAD; j++) {
				t[j] = k + j < s->terms ? s->term[k + j] : NULL;
				if (t[j])
					v[j][0] = gx_ld_u4(t[j] + (uint64_t)i * 16);
				if (t[j] && second)
					v[j][1] = gx_ld_u4(t[j] + (uint64_t)(i + s->threads) * 16);
			}
			for (uint32_t j = 0; j < SUM_AHEAD; j++) {
				if (t[j])
					sum_add(acc[0], v[j][0], s->weight[k + j], dtype);
				if (t[j] && second)
					sum_add(acc[1], v[j][1], s->weight[k + j], dtype);
			}
		}
		gx_st_u4(s->out + (uint64_t)i * 16, sum_pack(acc[0], dtype));
		if (second)
			gx_st_u4(s->out + (uint64_t)(i + s->threads) * 16, sum_pack(acc[1], dtype));
	}
}

/* sum_add without a weight. */
GX_DEV void sum_add_plain(float *acc, gx_u4 v, uint32_t dtype)
{
	union sum_vector u;

	u.v = v;
	for (uint32_t i = 0; i < 4; i++) {
		if (dtype == EP_NUM_F32) {
			acc[i] = acc[i] + num_f32(u.w[i]);
		} else if (dtype == EP_NUM_F16) {
			acc[2 * i] = acc[2 * i] + gx_from_f16(u.w[i] & 0xffffu);
			acc[2 * i + 1] = acc[2 * i + 1] + gx_from_f16(u.w[i] >> 16);
		} else {
			acc[2 * i] = acc[2 * i] + num_f32(u.w[i] << 16);
			acc[2 * i + 1] = acc[2 * i + 1] + num_f32(u.w[i] & 0xffff0000u);
		}
	}
}

#define SUM_WIDE 4u  /* vectors at a time */
#define SUM_TERMS 4u /* and terms */

/* Plain additions. A token of HT has few terms: more vectors at once keep as many loads in flight. */
GX_DEV void sum_plain(const struct sum *s, uint32_t dtype)
{
	uint32_t vectors = s->n / (dtype == EP_NUM_F32 ? 4 : 8);

	for (uint32_t i = s->tid; i < vectors; i += SUM_WIDE * s->threads) {
		float acc[SUM_WIDE][8];

		for (uint32_t m = 0; m < SUM_WIDE * 8; m++)
			acc[m / 8][m % 8] = 0.0f;
		for (uint32_t k = 0; k < s->terms; k += SUM_TERMS) {
			gx_u4 v[SUM_TERMS][SUM_WIDE];

			for (uint32_t m = 0; m < SUM_TERMS * SUM_WIDE; m++) {
				uint32_t j = m / SUM_WIDE, at = i + m % SUM_WIDE * s->threads;

				if (k + j < s->terms && at < vectors)
					v[j][m % SUM_WIDE] = gx_ld_u4(s->term[k + j] + (uint64_t)at * 16);
			}
			for (uint32_t m = 0; m < SUM_TERMS * SUM_WIDE; m++) {
				uint32_t j = m / SUM_WIDE, at = i + m % SUM_WIDE * s->threads;

				if (k + j < s->terms && at < vectors)
					sum_add_plain(acc[m % SUM_WIDE], v[j][m % SUM_WIDE], dtype);
			}
		}
		for (uint32_t m = 0; m < SUM_WIDE; m++)
			if (i + m * s->threads < vectors)
				gx_st_u4(s->out + (uint64_t)(i + m * s->threads) * 16, sum_pack(acc[m], dtype));
	}
}

GX_DEV uint32_t sum_aligned(const struct sum *s, uint32_t dtype)
{
	uintptr_t bits = (uintptr_t)s->out | s->n * (dtype == EP_NUM_F32 ? 4 : 2);

	for (uint32_t k = 0; k < s->terms; k++)
		bits |= (uintptr_t)s->term[k];
	return bits % 16 == 0;
}

GX_DEV void sum_as(const struct sum *s, uint32_t dtype, uint32_t plain)
{
	if (GX_WARP == 1)
		sum_tiles(s, dtype);
	else if (sum_aligned(s, dtype) && plain)
		sum_plain(s, dtype);
	else if (sum_aligned(s, dtype))
		sum_vectors(s, dtype);
	else
		sum_elements(s, dtype);
}

/* dtype is a constant from here on: the inner loops have no branch. So is plain (no weights): a kernel gets the code
 * of one variant only. */
GX_DEV void sum_typed(const struct sum *s, uint32_t dtype, uint32_t plain)
{
	if (dtype == EP_NUM_F32)
		sum_as(s, EP_NUM_F32, plain);
	else if (dtype == EP_NUM_F16)
		sum_as(s, EP_NUM_F16, plain);
	else
		sum_as(s, EP_NUM_BF16, plain);
}

GX_DEV void sum_rows(const struct sum *s, uint32_t dtype)
{
	sum_typed(s, dtype, 0);
}

GX_DEV void sum_rows_plain(const struct sum *s, uint32_t dtype)
{
	sum_typed(s, dtype, 1);
}

#endif
