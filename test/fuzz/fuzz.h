/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz targets, for libFuzzer (./run fuzz). A target includes the source file it tests, to reach what is static there,
 * and neither opens connections nor draws random numbers: an input always takes the same way. An input is a program:
 * bytes that choose what happens next and with which values, so that most inputs pass the first checks.
 */
#ifndef EP_TEST_FUZZ_H
#define EP_TEST_FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold whatever the input is. */
#define MUST(cond)                                                                         \
	do {                                                                               \
		if (!(cond)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                           \
		}                                                                          \
	} while (0)

/* Every refusal writes a line: 20,000 of them a second. */
static inline void fuzz_quiet(void)
{
	setenv("NCCL_EP_DEBUG", "NONE", 1);
	setenv("NCCL_EP_NET_PLUGIN", "none", 1);
}

struct feed {
	const uint8_t *at;
	size_t left;
};

/* Zeros once the input is used up. */
static inline void feed_bytes(struct feed *f, void *out, size_t n)
{
	size_t have = n < f->left ? n : f->left;

	memset(out, 0, n);
	if (have)
		memcpy(out, f->at, have);
	f->at += have;
	f->left -= have;
}

static inline uint8_t feed_u8(struct feed *f)
{
	uint8_t v;

	feed_bytes(f, &v, sizeof(v));
	return v;
}

/* Small numbers, those around limits, or any. */
static inline uint64_t feed_number(struct feed *f)
{
	static const uint64_t odd[] = {
		UINT64_MAX,  UINT64_MAX - 1,
		INT64_MAX,   (uint64_t)INT64_MAX + 1,
		UINT32_MAX,  UINT32_MAX - 1ull,
		INT32_MAX,   1ull << 31,
		1ull << 32,  1ull << 40,
		65535,	     65536,
		65537,	     1ull << 20,
		64ull << 20, (64ull << 20) + 1,
		4095,	     4096,
	};
	uint8_t kind = feed_u8(f);
	uint64_t v;

	if (kind < 0xd0)
		return kind;
	if (kind < 0xf0)
		return odd[kind % (sizeof(odd) / sizeof(odd[0]))];
	feed_bytes(f, &v, sizeof(v));
	return v;
}

/* Overwrites parts of a true message: how many, then where, how long, and the bytes. */
static inline void feed_patch(struct feed *f, void *message, size_t size)
{
	for (int n = feed_u8(f) % 8; n && size; n--) {
		uint16_t where;
		uint64_t v;
		size_t bytes;

		feed_bytes(f, &where, sizeof(where));
		v = feed_number(f);
		bytes = (size_t)1 << (v & 3);
		v = feed_number(f);
		where = (uint16_t)(where % size);
		memcpy((uint8_t *)message + where, &v, bytes < size - where ? bytes : size - where);
	}
}

#endif
