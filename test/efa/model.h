/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of libfabric with the efa provider, loaded in place of libfabric.so.1. It moves bytes between threads and
 * processes of one host and keeps the documented rules of the provider; it proves nothing about speed or timing.
 * EP_MODEL_FABRIC selects what is modelled:
 *
 *   efa-direct    a device with RDMA write and without unsolicited write receive (the default): fabrics efa-direct, efa
 *   efa           the same device under a libfabric older than 2.0: fabric efa only
 *   efa-emulated  a device without RDMA write (p4d): fabric efa only, its writes are emulated by messages
 *
 * ",calm" behind it leaves the misfortunes out (no bursts of EAGAIN, no failing receives), for measurements.
 *
 * Rules, each marked where it is kept, with its source in libfabric 2.4 (prov/efa and man pages) or the kernel driver:
 *   R1  efa-direct: an immediate consumes a posted receive (mode FI_RX_CQ_DATA); without one it waits: RNR is retried
 *       for ever by default. docs/efa_fabric_comparison.md, efa_user_info.c, efa_base_ep.h (EFA_RNR_INFINITE_RETRY)
 *   R2  4 bytes of CQ data: efa_io_defs.h (EFA_IO_TX_DESC_IMM_DATA_SIZE), efa_rma.c
 *   R3  no order, neither of writes nor of completions; packets of one write land in any order: fi_efa.7 (SRD)
 *   R4  a full queue answers -FI_EAGAIN until completions are read: fi_efa.7 (FI_EFA_TX_SIZE, FI_EFA_RX_SIZE)
 *   R5  a receive may fail: fi_cq_read answers -FI_EAVAIL, and the error entry has the context of the receive, which is
 *       no longer posted: fi_cq.3, efa_cq.c
 *   R6  efa-direct requires FI_CONTEXT2: the 64 bytes at an operation's context are the provider's until it completes:
 *       fi_efa.7 (Modes), fi_getinfo.3 (FI_CONTEXT2)
 *   R7  efa-direct requires FI_MR_LOCAL: every buffer has a descriptor: docs/efa_fabric_comparison.md
 *   R8  efa-direct: the target must have inserted the initiator's address before an RMA operation, otherwise it fails
 *       with status 14, unknown peer: fi_efa.7 (Limitations), efa_io_defs.h
 *   R9  a receive posted with FI_MORE is not seen by the device before the next one without it: efa_msg.c
 *   R10 emulated writes: FI_OPT_EFA_EMULATED_WRITE says so, and the target moves the bytes when it polls: fi_efa.7
 *   R11 endpoint options are set before the endpoint is enabled: fi_endpoint.3
 *   R12 efa-direct has no delivery completion: efa_prov_info.c (EFA_TX_OP_FLAGS is FI_TRANSMIT_COMPLETE)
 *   R13 a peer whose endpoint is closed or whose process ended: the operation fails (statuses 9, 13): efa_io_defs.h
 */
#ifndef EP_TEST_EFA_MODEL_H
#define EP_TEST_EFA_MODEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "net/fabric/api.h"
#include "test/efa/seen.h"

#define M_TX 256u     /* operations in flight; powers of two */
#define M_RX 256u     /* posted receives */
#define M_MRS 1024u   /* registrations of a domain */
#define M_KNOWN 4096u /* addresses in a domain's vectors */
#define M_PACKET 2048 /* bytes */

/* Statuses of efa_io_defs.h. */
enum { M_BAD_LKEY = 5, M_BAD_ADDRESS = 7, M_BAD_QPN = 9, M_UNRESPONSIVE = 13, M_UNKNOWN_PEER = 14 };

struct m_region {
	uint64_t key, base, size; /* key 0: free */
};

struct m_arrival {
	uint64_t context, from; /* of the receive it consumed, or 0; the sender's nonce */
	uint32_t data;
};

/* What peers reach of a domain, in a memfd that they open by /proc/PID/fd. All of it under the lock. */
struct m_area {
	pthread_mutex_t lock; /* shared and robust: its owner may be killed */
	uint64_t nonce;
	int pid;
	bool open; /* an endpoint is enabled */
	bool direct;
	uint32_t polls;		 /* of the completion queue, R10 */
	uint64_t known[M_KNOWN]; /* nonces by hash, R8 */
	struct m_region regions[M_MRS];
	uint64_t receives[M_RX];
	uint32_t receive_head, receive_tail;
	struct m_arrival arrivals[M_RX];
	uint32_t arrival_head, arrival_tail;
};

/* An area as mapped in this process; one mapping for all, so that a race detector sees one lock. */
struct m_seat {
	struct m_seat *next;
	struct m_area *area; /* NULL: its process had ended */
	uint64_t nonce;
	int refs, fd; /* fd: of an own area, or -1 */
};

/* The name of an endpoint: 32 bytes, as efa's. */
struct m_name {
	uint64_t magic, nonce;
	int32_t pid, fd;
	uint64_t pad;
};

struct m_domain {
	struct ofi_domain pub;
	struct m_seat *seat;
};

struct m_av {
	struct ofi_av pub;
	struct m_domain *domain;
	struct m_seat **peers;
	size_t count;
};

struct m_mr {
	struct ofi_mr pub;
	struct m_domain *domain;
	struct m_region *region;
};

struct m_op {
	void *context;
	uint8_t *local;
	uint64_t remote, key, flags;
	size_t size, packets, landed, first;
	struct m_seat *peer;
	uint32_t data, polls;
	bool read;
};

struct m_done {
	struct ofi_cq_data_entry entry;
	uint64_t from;
	int status; /* 0: no error */
};

struct m_cq {
	struct ofi_cq pub;
	struct m_ep *ep;
};

struct m_ep {
	struct ofi_ep pub;
	struct m_domain *domain;
	struct m_av *av;
	struct m_cq *cq;
	bool direct, emulated, shared, enabled; /* shared: memory of the provider is permitted */
	bool calm;
	uint64_t random;
	struct m_op ops[M_TX];
	uint32_t op_count;
	struct m_done done[M_TX + 2 * M_RX], failed;
	uint32_t done_count;
	bool has_failed;
	void *unrung[M_RX]; /* receives posted with FI_MORE, R9 */
	uint32_t unrung_count, posted;
	uint32_t refusing; /* reads of the queue until posting works again, R4 */
};

struct m_profile {
	const char *name;
	bool direct, emulated;
};

extern struct model_seen ep_model_seen;

const struct m_profile *m_profile(void);
bool m_calm(void);
uint64_t m_random(struct m_ep *ep);
bool m_chance(struct m_ep *ep, unsigned of);

/* area.c */
struct m_seat *m_seat_make(void);
struct m_seat *m_seat_find(const struct m_name *name);
void m_seat_drop(struct m_seat *seat);
void m_lock(struct m_area *area);
void m_unlock(struct m_area *area);
void m_know(struct m_area *area, uint64_t nonce);
bool m_knows(const struct m_area *area, uint64_t nonce);

/* objects.c */
int m_fabric_open(struct ofi_fabric_attr *attr, struct ofi_fabric **out, void *context);
/* ep.c */
int m_ep_open(struct ofi_domain *domain, struct ofi_info *info, struct ofi_ep **out, void *context);
/* nic.c */
ssize_t m_write(struct ofi_ep *ep, const struct ofi_msg_rma *msg, uint64_t flags);
ssize_t m_read(struct ofi_ep *ep, const struct ofi_msg_rma *msg, uint64_t flags);
ssize_t m_receive(struct ofi_ep *ep, const struct ofi_msg *msg, uint64_t flags);
void m_nic_run(struct m_ep *ep);
/* cq.c */
int m_cq_open(struct ofi_domain *domain, struct ofi_cq_attr *attr, struct ofi_cq **out, void *context);

#endif
