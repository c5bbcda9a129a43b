/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's shape, data and routing for the given options. */
#include "perf/perf_data.h"

void perf_shape(const struct perf_opts *opts, struct ll_shape *shape)
{
	*shape = (struct ll_shape){ .layout = opts->layout == PERF_RANK_MAJOR ? LL_RANK_MAJOR : LL_EXPERT_MAJOR,
				    .quant = (enum ll_quant)opts->quant,
				    .ranks = opts->ranks,
				    .experts = opts->experts,
				    .topk = opts->topk,
				    .tmax = opts->last,
				    .hidden = opts->hidden,
				    .token = opts->quant == LL_QUANT_FWD ? NUM_E4M3 : (enum num_type)opts->dtype,
				    .scale = NUM_F32,
				    .scale_width = opts->hidden / 128,
				    .combine = (enum num_type)opts->dtype };
}

struct ll_data perf_data(const struct perf_opts *opts, int tokens)
{
	return (struct ll_data){ .seed = ll_seed(opts->seed, 1, (uint64_t)tokens),
				 .fill = tokens ? LL_FILL_FULL : LL_FILL_NONE,
				 .route = opts->zipf > 0 ? LL_ROUTE_ZIPF : LL_ROUTE_UNIFORM,
				 .zipf = opts->zipf,
				 .idle = opts->idle,
				 .fixed_t = tokens };
}

struct ll_data perf_data_first(const struct perf_opts *opts, int tokens)
{
	struct ll_data data = perf_data(opts, tokens);

	data.seed = ll_seed(data.seed, 0, 0);
	return data;
}

bool perf_goes_to(const struct ll_shape *shape, const struct ll_input *in, int token, int rank)
{
	for (int k = 0; k < shape->topk; k++)
		if (ll_owner(shape, NULL, in->idx[token * shape->topk + k]) == rank)
			return true;
	return false;
}

void perf_row_add(float *sum, const uint8_t *row, size_t n, enum num_type type, float weight)
{
	if (type == NUM_F32)
		for (size_t h = 0; h < n; h++)
			sum[h] += weight * ((const float *)(const void *)row)[h];
	else if (type == NUM_F16)
		for (size_t h = 0; h < n; h++)
			sum[h] += weight * num_from_f16(((const uint16_t *)(const void *)row)[h]);
	else
		for (size_t h = 0; h < n; h++) {
			union {
				uint32_t bits;
				float value;
			} x = { (uint32_t)((const uint16_t *)(const void *)row)[h] << 16 };

			sum[h] += weight * x.value;
		}
}

void perf_row_store(uint8_t *row, const float *sum, size_t n, enum num_type type)
{
	for (size_t h = 0; type == NUM_BF16 && h < n; h++) {
		union {
			float value;
			uint32_t bits;
		} x = { sum[h] };

		((uint16_t *)(void *)row)[h] = (uint16_t)((x.bits + 0x7fff + (x.bits >> 16 & 1)) >> 16);
	}
	for (size_t h = 0; type != NUM_BF16 && h < n; h++)
		num_store(type, row + h * num_info[type].size, sum[h]);
}
