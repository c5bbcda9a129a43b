/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PERF_PERF_DATA_H
#define EP_PERF_PERF_DATA_H

#include "perf/perf.h"
#include "test/oracle/data.h"

/* For LL; that of HT contains it. */
void perf_shape(const struct perf_opts *opts, struct ll_shape *shape);
/* Data of a rig, and of its first handle in its first round, which is the one timed. */
struct ll_data perf_data(const struct perf_opts *opts, int tokens);
struct ll_data perf_data_first(const struct perf_opts *opts, int tokens);
/* Whether the token has an expert on the rank. */
bool perf_goes_to(const struct ll_shape *shape, const struct ll_input *in, int token, int rank);

/* Sums of the reference programs: as fast as a compiler makes them. sum[n] += weight * row, and the rounded result. */
void perf_row_add(float *sum, const uint8_t *row, size_t n, enum num_type type, float weight);
void perf_row_store(uint8_t *row, const float *sum, size_t n, enum num_type type);

#endif
