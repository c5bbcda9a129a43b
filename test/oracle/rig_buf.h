/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a rig. Internal to it. */
#ifndef EP_TEST_ORACLE_RIG_BUF_H
#define EP_TEST_ORACLE_RIG_BUF_H

#include "test/oracle/rig.h"

/* Collective with windows. */
int rig_bufs_open(struct rig *rig, struct rig_handle *handle);
void rig_bufs_close(struct rig *rig, struct rig_handle *handle);

/* `size` bytes from `offset` on. */
int rig_buf_put(struct rig *rig, struct buf *buf, size_t offset, const void *from, size_t size);
int rig_buf_fill(struct rig *rig, struct buf *buf, size_t offset, int byte, size_t size);
/* The tensor in host memory, of which `size` bytes from `offset` on are up to date. NULL after a failure. */
const uint8_t *rig_buf_get(struct rig *rig, struct buf *buf, size_t offset, size_t size);
/* Checks the guards. */
int rig_buf_guards(struct rig *rig, struct buf *buf, const char *name);

/* Bytes of a row of [zones][cap] tensors, of topk_idx. */
size_t rig_row_bytes(const struct rig *rig, enum rig_buf_id id);

static inline bool rig_rank_major(const struct rig *rig)
{
	return rig->cfg.shape.layout == LL_RANK_MAJOR;
}

extern const char *const rig_buf_names[RIG_BUFS];

#endif
