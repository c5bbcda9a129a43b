/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the net sm that all ranks of the process share: the device, its kernel (kernels/probe/nic.cu), the queues
 * of the contexts. All functions return 0 or a negative errno.
 */
#ifndef EP_TEST_NET_SM_H
#define EP_TEST_NET_SM_H

#include <pthread.h>
#include <stdbool.h>

#include "nccl_ep_net.h"

#include "kernels/args.h"
#include "kernels/dev.h"

#define SM_CONTEXTS 64u
#define SM_REGIONS 4096u
#define SM_SMS 8u /* unless the option sms says how many */

struct sm_config {
	uint64_t rate;	  /* Gb/s; 0: no limit */
	uint64_t latency; /* ns */
	uint64_t unordered, relaxed;
	uint64_t sms;
	uint64_t warps; /* per SM; 0: as many as have shared memory */
	uint64_t idle;	/* ns after which the kernel ends */
	uint64_t host;	/* 1: on the CPU device */
};

/* A context's queue. The lock is held by who posts, and by who must know what was posted (sm_drain). */
struct sm_slot {
	pthread_mutex_t lock;
	struct ep_nic_queue *queue;
	uint32_t posted;
	bool used;
	uint64_t puts, late_ns, late_max_ns; /* by the context's thread: delivered, and how late */
	uint8_t pad[64];		     /* another thread's is not in the same line */
};

/* Immediates that peers have delivered to a context. */
struct sm_inbox {
	pthread_mutex_t lock;
	uint32_t *imm;
	size_t count, room; /* count: atomic */
};

struct sm_fabric {
	struct sm_config config;
	struct ep_dev *dev;
	void *stream;
	struct ep_mem state;	 /* of the contexts, then struct ep_nic_common */
	struct ep_pinned pinned; /* struct ep_nic_board, then the queues */
	struct ep_nic_board *board;
	unsigned grid, warps;
	size_t stage;

	pthread_mutex_t lock;	       /* of all that follows */
	uint32_t launched;	       /* atomic: number of the last launch */
	uint32_t contexts, ports;      /* atomic: that it serves */
	uint32_t wanted, wanted_ports; /* that the next one will; ports: atomic */
	bool port_used[EP_NIC_PORTS];
	uint64_t region[SM_REGIONS]; /* atomic: serial of a registration, or 0 */
	uint64_t serial;
	struct sm_slot slot[SM_CONTEXTS];
};

/* The first caller's configuration counts; -EINVAL for another. */
int sm_fabric_get(const struct sm_config *config, struct sm_fabric **out);
void sm_fabric_put(struct sm_fabric *f);

int sm_port_get(struct sm_fabric *f, uint32_t *port);
void sm_port_put(struct sm_fabric *f, uint32_t port);
int sm_slot_get(struct sm_fabric *f, uint32_t *slot);
void sm_slot_put(struct sm_fabric *f, uint32_t slot);
int sm_region_get(struct sm_fabric *f, uint32_t *region, uint64_t *serial);
/* Waits for the puts that are under way, whoever made them. */
int sm_region_put(struct sm_fabric *f, uint32_t region);

int sm_inbox_add(struct sm_inbox *in, uint32_t value);
/* How many. */
int sm_inbox_take(struct sm_inbox *in, uint32_t *imms, int max);

/* Immediates of which the kernel itself told a port, for puts of that slot; how many. A new port forgets those for the
 * one that had its number. */
int sm_told_take(struct sm_fabric *f, uint32_t slot, uint32_t port, uint32_t *imms, int max);
void sm_told_forget(struct sm_fabric *f, uint32_t port);

/* Whether the last launch serves the slot and all ports there are: later ones do, until there are more. */
bool sm_serves(struct sm_fabric *f, uint32_t slot);

/*
 * Launches the kernel unless it runs and serves this slot. Called after a put, and again by progress while puts are in
 * flight: that no put is lost to a kernel that ends stands on this alone. Whatever the kernel saw when it decided to
 * end, it says so in pinned memory after its last delivery; a context with puts in flight reads that at every progress,
 * and a new launch takes all that was posted. So neither side needs a fence, and the decision needs no handshake.
 */
int sm_kick(struct sm_fabric *f, uint32_t slot);

#endif
