/* SPDX-License-Identifier: Apache-2.0 */
/* Rings on a device: the ring_push kernel produces, the caller consumes. */
#ifndef EP_TEST_RING_RIG_H
#define EP_TEST_RING_RIG_H

#include <pthread.h>

#include "kernels/args.h"
#include "kernels/dev.h"
#include "proxy/ring.h"

#define RIG_RINGS 64
#define RIG_JOBS 8

struct ring_rig {
	struct ep_dev *dev;
	uint32_t rings, entries;
	struct ep_ring ring[RIG_RINGS];
	struct ep_pinned memory[RIG_RINGS];
	struct ep_mem device;	  /* struct rig_device */
	struct ep_pinned page;	  /* struct rig_page */
	struct ep_pinned payload; /* host NULL: none */
};

struct rig_device {
	struct ep_cmd_head head[RIG_RINGS];
	struct ep_cmd_ring ring[RIG_RINGS];
	struct ep_ring_push_state state[RIG_JOBS];
};

struct rig_page {
	struct ep_ring_push_report report[RIG_JOBS];
	uint64_t abort;
};

/* A launch, by a thread of its own: on the CPU device a launch returns when the kernel has ended. */
struct rig_job {
	struct ring_rig *rig;
	int index; /* below RIG_JOBS, unique among running jobs */
	unsigned grid, warps;
	struct ep_ring_push_args args; /* filled by rig_start, except what its comment names */
	uint64_t wall_ns;
	int rc;
	int ended; /* atomic */
	pthread_t thread;
};

/* payload: words, or 0. Failures set the last error (util/error.h). */
int rig_open(struct ring_rig *rig, enum ep_dev_kind kind, uint32_t rings, uint32_t entries, uint64_t start,
	     size_t payload);
void rig_close(struct ring_rig *rig);

/* The caller has set mode, first, items, count, batch and timeout_ns of args. */
int rig_start(struct rig_job *job);
/* The launch's result; *failed is the kernel's (enum gx_wait_result, 0: all pushed). */
int rig_join(struct rig_job *job, uint64_t *failed);
int rig_ended(const struct rig_job *job);

static inline struct rig_page *rig_page(const struct ring_rig *rig)
{
	return rig->page.host;
}

/* The head of a ring as it is now; not while a kernel runs. */
int rig_head(struct ring_rig *rig, uint32_t ring, struct ep_cmd_head *out);

#endif
