/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that hash output bits, which are the same on every device, at every warp width, with threads and processes. */
#ifndef EP_TEST_ORACLE_BITS_H
#define EP_TEST_ORACLE_BITS_H

#include <stddef.h>
#include <stdint.h>

#include "test/oracle/world.h"

#define BITS_RANKS 4

/* Depends on the order, and on the position of zeros. */
uint64_t bits_add(uint64_t hash, const uint8_t *at, size_t n);

/* Runs on every rank and adds the outputs to *hash; 0, or -1 after seat_fail. */
typedef int (*bits_fn)(struct seat *seat, uint64_t *hash);

/* The main function of such a test: prints the hash and compares it with that of -x. Returns its exit status. */
int bits_main(const char *name, bits_fn fn, int argc, char **argv);

#endif
