/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small floating-point formats by definition, independent of any device: each conversion is round to nearest even, done
 * in integers or by a table. Slow on purpose.
 */
#ifndef EP_TEST_ORACLE_NUM_H
#define EP_TEST_ORACLE_NUM_H

#include <stddef.h>
#include <stdint.h>

float num_from_bf16(uint16_t bits);
float num_from_f16(uint16_t bits);
float num_from_e4m3(uint8_t bits);

/* Round to nearest even; overflow gives infinity; a NaN stays a NaN. */
uint16_t num_to_bf16(float value);
uint16_t num_to_f16(float value);
/* Round to nearest even; saturates at 448 (the format has no infinity); a NaN becomes 0x7f or 0xff. */
uint8_t num_to_e4m3(float value);

uint32_t num_bits(float value);
float num_float(uint32_t bits);

/* The element types of tensors; sizes in bytes. e2m1x2 is a byte with two values. */
enum num_type { NUM_BF16, NUM_F16, NUM_F32, NUM_E4M3, NUM_E5M2, NUM_E2M1X2, NUM_U8, NUM_TYPES };

struct num_info {
	const char *name;
	size_t size;
	int nccl; /* ncclDataType_t */
};

extern const struct num_info num_info[NUM_TYPES];

/* -1 when no type has that name. */
int num_find(const char *name);

/* One element of bf16, f16 or f32. */
float num_load(enum num_type type, const void *at);
void num_store(enum num_type type, void *at, float value);

#endif
