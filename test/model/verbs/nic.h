/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of RDMA NICs, loaded in place of libibverbs.so.1: ranks of one host, as threads or processes, exchange RC
 * writes, reads and UD datagrams over UNIX datagram sockets. EP_MODEL_NIC names the rules that it keeps (nic_profiles
 * in device.c). device.c: objects; queue.c: work queues and completions; wire.c: packets; place.c: writes into memory.
 *
 * A test may take a port down, give it another address, and raise events (ep_model_port, ep_model_event).
 *
 * Not modelled: time (no retransmission: a peer that is gone fails at once), congestion, limits of the number of
 * objects, atomics, SEND on RC, multicast, completion channels.
 *
 * One lock for the process, nic.lock: a model need not be fast, and a data race in it would be blamed on the library.
 */
#ifndef EP_MODEL_NIC_H
#define EP_MODEL_NIC_H

#include <pthread.h>
#include <stdbool.h>

#include "net/verbs/api.h"

#define NIC_EXPORT __attribute__((visibility("default")))
#define NIC_QPS 16384u	 /* per process; a queue pair number is the process's slot and an index */
#define NIC_SLOTS 1024u	 /* processes */
#define NIC_MRS 16384u	 /* registrations; the index in a key */
#define NIC_CHUNK 16384u /* bytes of a packet */
#define NIC_UNACKED 32u	 /* messages of a queue pair */
#define NIC_HEARD 64

struct nic_profile {
	const char *name;
	int max_qp_wr, max_srq, max_srq_wr, max_cqe;
	uint32_t max_inline;
	bool srq_sge;	 /* a receive of an SRQ without an SGE fails when it is consumed */
	bool recv_again; /* ibv_post_recv is refused now and then */
	bool infiniband; /* the port has a LID */
	bool unordered;	 /* writes become visible in any order, all before the next receive completes */
};

/* What tests ask about, read by dlsym. Counters since the process began. */
struct nic_stats {
	uint32_t qps, ahs;		       /* created: of type RC */
	uint32_t uds, cqs, srqs;	       /* the same */
	uint32_t sends, receives, completions; /* entries of all queues that were created */
	uint32_t mrs;			       /* registered, and */
	uint64_t mr_bytes;		       /* bytes of them */
	uint32_t relaxed;		       /* registrations with relaxed ordering */
	uint32_t bare;			       /* posted receives without an SGE */
	uint32_t traffic_class, service_level; /* of the last address vector */
	uint32_t timeout;		       /* of the last queue pair */
	uint32_t port_reads;
};

/* The port of this process's NIC, changed by tests: nothing is sent or received unless it is active. */
struct nic_port {
	unsigned state;
	uint16_t lid;
	uint8_t host; /* last byte of the GIDs */
};

struct nic_recv {
	uint64_t wr_id, addr;
	uint32_t length, lkey;
	int sges;
};

struct nic_rq {
	struct nic_recv *ring;
	uint32_t max, head, tail;
	uint64_t until; /* receives are refused */
	bool shared;
};

struct nic_srq {
	struct ib_srq srq;
	struct nic_rq rq;
};

struct nic_cq {
	struct ib_cq cq;
	struct ib_wc *ring;
	uint32_t max, head;
	uint32_t tail; /* atomic for a poll without the lock */
	bool overrun;
};

/* A posted work request; its bytes are read when they are sent, as a NIC does. */
struct nic_send {
	uint64_t wr_id, remote;
	unsigned opcode, flags;
	uint32_t imm, rkey, length, lkey, qpn, qkey;
	uint8_t *bytes, *copy; /* copy: inline data */
};

/* A write that has arrived and is not yet visible. */
struct nic_late {
	struct nic_late *next;
	uint64_t addr;
	uint32_t length;
	uint8_t bytes[];
};

enum nic_kind { NIC_WRITE = 1, NIC_READ, NIC_READ_REPLY, NIC_ACK, NIC_UD, NIC_PING };

struct nic_packet {
	uint32_t magic;
	uint8_t kind, last, imm_valid, status;
	uint32_t to, from; /* queue pair numbers */
	uint32_t seq;	   /* RC: of this packet */
	uint32_t done;	   /* ACK: messages received in all */
	uint32_t imm, rkey, qkey, length;
	uint64_t addr;
};

/* A packet that has arrived and waits for a receive. */
struct nic_held {
	struct nic_held *next;
	struct nic_packet head;
	uint8_t bytes[];
};

struct nic_qp {
	struct ib_qp qp;
	struct nic_rq own, *rq;
	struct nic_send *ring;
	uint32_t max, head, next, tail; /* head: oldest not acknowledged; next: to be sent */
	uint32_t offset;		/* bytes of `next` that were sent */
	uint32_t max_inline, qkey, dest;
	uint32_t tx_seq, rx_seq, rx_done;
	uint64_t pinged;
	bool owes, sig_all; /* owes: an acknowledgement that could not be sent */
	uint8_t owed;	    /* its status */
	struct {
		uint32_t from, count;
	} heard[NIC_HEARD]; /* UD: datagrams from others */
	struct nic_held *held, **held_end;
	struct nic_late *late;
	uint32_t lates;
};

struct nic_mr {
	struct ib_mr mr;
	int access;
	struct nic_mr *next;
};

struct nic_context {
	struct ib_context context;
	int events; /* the end of the pipe that is written */
	struct nic_context *next;
};

struct nic_state {
	pthread_mutex_t lock;
	pthread_mutex_t gate; /* of opening and closing the device, before lock */
	const struct nic_profile *profile;
	int users; /* open contexts: the agent runs while there are any */
	struct nic_context *contexts;
	struct nic_port port;
	int socket, bell;
	uint32_t slot, turn, salt;
	uint32_t loss, loss_end; /* EP_MODEL_LOSS=2-5: these datagrams from a UD queue pair to another are lost */
	uint64_t random;
	pthread_t agent;
	bool stop;
	int asleep; /* atomic */
	struct nic_qp *qps[NIC_QPS];
	uint32_t qps_top;
	struct nic_mr *mrs[NIC_MRS];
};

extern struct nic_state nic;
extern struct nic_stats ep_model_nic;
/* For tests, by dlsym. */
struct nic_port ep_model_port(const struct nic_port *change); /* NULL: none */
void ep_model_event(unsigned type, void *element);	      /* to every context; element NULL: the port */

uint32_t nic_random(uint32_t below);
uint64_t nic_now(void);

/* wire.c; start and stop without the lock, the others with it. */
int nic_wire_start(void);
void nic_wire_stop(void);
bool nic_step(void);
void nic_wake(void);

/* queue.c */
int nic_post_send(struct ib_qp *qp, struct ib_send_wr *wr, struct ib_send_wr **bad);
int nic_post_recv(struct ib_qp *qp, struct ib_recv_wr *wr, struct ib_recv_wr **bad);
int nic_post_srq_recv(struct ib_srq *srq, struct ib_recv_wr *wr, struct ib_recv_wr **bad);
int nic_poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc);
void nic_complete(struct nic_qp *qp, struct ib_cq *cq, const struct ib_wc *wc);
void nic_event(struct ib_context *context, unsigned type, void *element);
/* Completes the oldest sends up to number `done`; a status fails the next one, and the queue pair. */
void nic_sends_end(struct nic_qp *qp, uint32_t done, unsigned status);
void nic_qp_error(struct nic_qp *qp);

/* place.c */
struct nic_mr *nic_mr_of(uint32_t key, uint64_t addr, uint64_t length, int access);
void nic_place(struct nic_qp *qp, const struct nic_mr *mr, uint64_t addr, const uint8_t *bytes, uint32_t length);
void nic_place_all(struct nic_qp *qp);
bool nic_place_some(struct nic_qp *qp);

#endif
