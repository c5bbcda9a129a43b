/* SPDX-License-Identifier: Apache-2.0 */
/* Writes into memory, in order or not. */
#include <stdlib.h>
#include <string.h>

#include "nic.h"

#define LATE_MAX 24u /* writes of a queue pair that are not yet visible */

struct nic_mr *nic_mr_of(uint32_t key, uint64_t addr, uint64_t length, int access)
{
	struct nic_mr *mr = nic.mrs[key % NIC_MRS];
	uint64_t base;

	if (!mr || mr->mr.lkey != key || (mr->access & access) != access)
		return NULL;
	base = (uintptr_t)mr->mr.addr;
	return addr >= base && length <= mr->mr.length && addr - base <= mr->mr.length - length ? mr : NULL;
}

/* A NIC writes an aligned word at once, and a thread may poll it. */
static void memory_write(uint64_t addr, const uint8_t *bytes, uint32_t length)
{
	uint64_t word;

	if (length != sizeof(word) || addr % sizeof(word)) {
		memcpy((void *)(uintptr_t)addr, bytes, length);
		return;
	}
	memcpy(&word, bytes, sizeof(word));
	/* R1: pairs with the acquire of whoever polls the word. */
	__atomic_store_n((uint64_t *)(uintptr_t)addr, word, __ATOMIC_RELEASE);
}

static void late_take(struct nic_qp *qp, uint32_t n)
{
	struct nic_late **at = &qp->late, *late;

	while (n--)
		at = &(*at)->next;
	late = *at;
	*at = late->next;
	qp->lates--;
	memory_write(late->addr, late->bytes, late->length);
	free(late);
}

/*
 * Any order: an RC responder with out-of-order data placement writes a packet when it arrives (mlx5dv_create_qp(3),
 * MLX5DV_QP_CREATE_OOO_DP; ibv_query_qp_data_in_order(3): without it a reader may not poll data), and so does memory
 * with relaxed ordering (ibv_reg_mr(3): write after write is not ordered, but a completion makes all earlier data
 * visible).
 */
void nic_place(struct nic_qp *qp, const struct nic_mr *mr, uint64_t addr, const uint8_t *bytes, uint32_t length)
{
	struct nic_late *late;

	if (!nic.profile->unordered && !(mr->access & IB_ACCESS_RELAXED_ORDERING)) {
		memory_write(addr, bytes, length);
		return;
	}
	late = malloc(sizeof(*late) + length);
	if (!late) { /* this order is allowed too */
		memory_write(addr, bytes, length);
		return;
	}
	late->addr = addr;
	late->length = length;
	memcpy(late->bytes, bytes, length);
	late->next = qp->late;
	qp->late = late;
	if (++qp->lates > LATE_MAX)
		late_take(qp, nic_random(qp->lates));
}

void nic_place_all(struct nic_qp *qp)
{
	while (qp->late)
		late_take(qp, nic_random(qp->lates));
}

/* The latest first, mostly: what a receiver that polls memory is least prepared for. Half of the calls do nothing. */
bool nic_place_some(struct nic_qp *qp)
{
	if (!qp->late)
		return false;
	if (nic_random(2))
		late_take(qp, nic_random(4) ? 0 : nic_random(qp->lates));
	return true;
}
