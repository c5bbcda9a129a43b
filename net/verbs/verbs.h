/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the verbs net: verbs.c (tables), lib.c (libibverbs), dev.c, gid.c and profile.c (devices), meet.c (listen,
 * connect, close), ctx.c (queues of a context), recv.c (receives), conn.c (queue pairs to a peer), ud.c (datagrams that
 * connect them), mr.c (registrations), put.c (send side of the hot path), cq.c (completion side), peer.c (lost peers),
 * event.c (device events, the port's state).
 *
 * Every comm opens the device itself. Its contexts share only the protection domain, so that memory is registered once:
 * each has its own completion queue, receives, UD queue pair, and RC queue pairs to peers.
 */
#ifndef EP_NET_VERBS_H
#define EP_NET_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_ep_net.h"
#include "net/base/base.h"
#include "net/verbs/api.h"
#include "net/verbs/profile.h"
#include "net/watch.h"

#define VB_CONTEXTS 4	 /* a handle has that many UD queue pair numbers */
#define VB_QPS 8	 /* per peer */
#define VB_INLINE 64u	 /* bytes */
#define VB_PUTS 2048u	 /* in flight on a context */
#define VB_CHAIN 32u	 /* work requests per doorbell */
#define VB_SRQ 16384u	 /* receives: an immediate consumes one */
#define VB_RQ 512u	 /* of a queue pair, where there is no shared queue */
#define VB_BATCH 32	 /* completions per poll */
#define VB_NOTES_OUT 64u /* datagrams in flight */

/* Upper half of a wr_id; every other value is the index of a queue pair in its context. */
#define VB_ID_RECV 0xfffffffdu
#define VB_ID_NOTE_IN 0xfffffffeu
#define VB_ID_NOTE_OUT 0xffffffffu
#define VB_ID(high, low) ((uint64_t)(high) << 32 | (low))

struct vb_gid_choice {
	union ib_gid gid;
	int index;
	uint32_t type;
	char why[96];
};

struct vb_dev {
	char name[IB_NAME + 8]; /* NAME:port */
	char ib_name[IB_NAME], pci[IB_PATH];
	uint8_t port;
	bool roce, dmabuf;
	uint32_t speed; /* Mb/s; 0: unknown */
	uint32_t kinds; /* memory kinds */
	const struct ep_verbs_profile *profile;
	struct ib_device_attr attr;
	struct ib_port_attr link;
	struct vb_gid_choice gid;
};

struct vb_net {
	struct ep_base_net base;
	struct vb_dev *devs;
	uint64_t ordered, qps, inlines, srq, cq, contexts, gid;
	char hca[64], profile[32];
};

struct vb_handle {
	uint32_t magic, nranks;
	uint64_t nonce, host; /* host: see ep_watch_host */
	union ib_gid gid;
	int32_t pid;
	uint32_t qkey, ud_qpn[VB_CONTEXTS];
	uint16_t lid;
	uint8_t roce, mtu, contexts, qps, reads, reserved;
};
_Static_assert(sizeof(struct vb_handle) <= NCCL_EP_NET_HANDLE_SIZE, "a handle holds it");

struct vb_key {
	uint64_t size, addr;
	uint32_t rkey, reserved;
};
_Static_assert(sizeof(struct vb_key) <= NCCL_EP_NET_KEY_SIZE, "a key holds it");

struct vb_far {
	uint64_t addr;
	uint32_t rkey;
};

struct vb_mr {
	struct ep_base_mr base;
	struct ib_mr *mr;
	struct vb_far far[]; /* by rank, after shareMr */
};

/* The request of a put that is not quiet. */
struct vb_slot {
	struct vb_slot *next; /* free list */
	int peer, rc;
	bool done;
	bool orphan; /* reported as failed; freed when its completion arrives */
};

/* A queue of receives: the shared one, or that of a queue pair. */
struct vb_rq {
	struct ib_qp *qp;	   /* NULL: shared */
	uint32_t id;		   /* of the queue pair in its context; lower half of wr_id */
	uint32_t spent, give_back; /* consumed, and reposted when that many are */
};

/* Arrived and not yet returned. */
struct vb_imm {
	uint32_t imm;
	struct vb_rq *rq;
};

struct vb_qp {
	struct ib_qp *qp;
	struct vb_rq rq;
	struct vb_conn *conn;
	uint32_t index, psn, depth;
	uint32_t posted, completed; /* counters; the difference is posted to the NIC */
	uint32_t dark;		    /* posted since the last signaled one */
	struct vb_slot **slots;	    /* [depth]: the request of each work request, NULL for quiet ones */
	uint8_t *bytes;		    /* [depth][VB_INLINE], if the queue pair has no inline data */
};

/* The state of one peer in one context. */
struct vb_conn {
	struct vb_ctx *ctx;
	int peer;
	bool have;    /* the peer's queue pair numbers are known, and its packets are accepted */
	bool ready;   /* the peer knows ours: puts may be posted */
	bool asking;  /* in ctx->asking: the hello is repeated */
	bool dropped; /* the peer is lost, and the queue pairs are in the error state */
	uint8_t count, turn;
	uint32_t max_inline;
	uint32_t open; /* work requests posted and not completed */
	struct vb_qp *qp;
	void *ah;
	uint64_t since;		  /* ctx->clock of the last progress */
	uint64_t asked, ask_next; /* ctx->clock */
	uint64_t ask_gap;
	struct vb_conn *next_asking;
};

/* Work requests of one queue pair that wait for the doorbell. */
struct vb_chain {
	struct vb_qp *qp;
	uint32_t count;
	struct ib_send_wr wr[VB_CHAIN];
	struct ib_sge sge[VB_CHAIN];
	uint8_t bytes[VB_CHAIN][VB_INLINE];
};

/* The UD queue pair and its buffers, receive buffers first. */
struct vb_ud {
	struct ib_qp *qp;
	struct ib_mr *mr;
	uint8_t *bytes;
	uint32_t receives, sent, gone; /* gone: completed sends */
	bool *missing;		       /* [receives]: it could not be reposted */
};

struct vb_ctx {
	struct vb_comm *comm;
	const struct ib_context_ops *ops;
	int index;
	struct ib_cq *cq;
	struct ib_srq *srq;   /* NULL: every queue pair has its own receives */
	struct vb_rq rq;      /* of srq */
	bool again;	      /* receives were refused for the moment */
	uint32_t open, limit; /* work requests posted */
	uint32_t calls;
	uint64_t clock, looked, swept; /* ns; the clock stops while progress is not called */
	struct vb_ud ud;
	struct vb_conn *conns, *asking;
	struct vb_qp **qps; /* by index; qps_count of qps_room are used */
	uint32_t qps_count, qps_room;
	struct ib_mr *bytes; /* all vb_qp.bytes; NULL until a queue pair has no inline data */
	uint32_t bytes_used, bytes_room;
	struct vb_slot *free;
	void **slabs;
	uint32_t slabs_count;
	struct vb_chain chain;
	struct vb_imm *imms; /* [comm->receives] ring */
	uint32_t head, tail, waiting;
};

struct vb_peer {
	struct vb_handle handle;
	bool left; /* it said bye; atomic */
};

/* From the parameters, read once. */
struct vb_path {
	uint8_t tc, sl, timeout, retries;
	uint16_t pkey;
};

struct vb_comm {
	struct ep_base_comm base;
	const struct vb_dev *dev;
	struct vb_path path;
	struct ib_context *context;
	struct ib_pd *pd;
	struct vb_mr *page; /* destination of flush reads */
	void *page_bytes;
	uint32_t qps, max_inline;
	uint64_t nonce, lost_ns;
	uint32_t qkey;
	bool per_qp;	       /* receives are of queue pairs, not shared */
	uint32_t rq, receives; /* of one queue, of all queues of a context */
	uint32_t cq, notes;    /* entries, and receives for datagrams */
	int looking;	       /* atomic: one context at a time reads device events and the port's state */
	int stalled;	       /* atomic: a context waits for an acknowledgement; the port's state is read */
	uint64_t port_next;    /* ns: its state is not read before */
	uint64_t port_until;   /* ns: it is read repeatedly until then */
	int broken;	       /* atomic: errno, after a failure of the device or of a queue */
	char why[200];
	struct ep_watch watch;
	struct vb_peer *peers;
	struct vb_ctx *ctx[VB_CONTEXTS];
};

/* libibverbs, loaded once per process; NULL after a note when it cannot be used. */
const struct ib_api *vb_api(void);
/* strerror, with a remedy where there is one. Returns text. */
const char *vb_reason(int error, char *text, size_t n);
/* EP_FAIL for a failed call of libibverbs; error is positive. */
int vb_fail(const struct vb_dev *dev, int error, const char *what);

/* Devices that the filter allows. Finding none is no error; an invalid setting is. */
int vb_devices_find(struct vb_net *net);
/* NULL with errno: it cannot be opened. */
struct ib_context *vb_device_open(const struct vb_dev *dev);
/* NCCL_IB_HCA's syntax: prefixes separated by commas, NAME:port, leading = for exact names, leading ^ to exclude. */
bool vb_name_allowed(const char *filter, const char *name, int port);

/* The state of a port as text. */
const char *vb_port_state(unsigned state);
/*
 * A port in ACTIVE_DEFER keeps its LID and its queue pairs: the link recovers from an error, and the port is ACTIVE
 * again soon, or DOWN. Retransmissions cover the gap, so no peer is lost for it.
 */
bool vb_port_is_up(unsigned state);

/* Which GIDs are acceptable. family: AF_INET, AF_INET6 or 0; index -1: the best one. */
struct vb_gid_wish {
	bool roce, v2_only;
	int family, index;
};

/* -ENOENT: no entry is usable; -EP_EARG: the requested one is not. out->why says why it was chosen. */
int vb_gid_pick(const struct ib_gid_entry *table, int n, const struct vb_gid_wish *wish, struct vb_gid_choice *out);
int vb_gid_find(struct ib_context *context, struct vb_dev *dev, int index);
/* Returns text, which holds INET6_ADDRSTRLEN bytes. */
const char *vb_gid_text(const union ib_gid *gid, char *text);

int vb_ctx_open(struct vb_comm *comm, int index, struct vb_ctx **out);
void vb_ctx_close(struct vb_ctx *ctx);
struct vb_slot *vb_slot_take(struct vb_ctx *ctx);
void vb_slot_give(struct vb_ctx *ctx, struct vb_slot *slot);

/* Posts a queue's receives; qp NULL: the shared one. */
int vb_rq_open(struct vb_ctx *ctx, struct vb_rq *rq, struct ib_qp *qp, uint32_t id);
/* Reposts consumed receives. */
int vb_rq_post(struct vb_ctx *ctx, struct vb_rq *rq);
int vb_rq_again(struct vb_ctx *ctx);
void vb_recv_take(struct vb_ctx *ctx, const struct ib_wc *wc);
/* Returns immediates to the caller, and reposts their receives. */
int vb_imms_give(struct vb_ctx *ctx, uint32_t *imms, int max, int *count);

/* Creates the queue pairs, not yet connected. */
int vb_conn_open(struct vb_conn *conn);
void vb_conn_close(struct vb_conn *conn);
/* Connects them to the peer's queue pairs. */
int vb_conn_aim(struct vb_conn *conn, const uint32_t *qpn, const uint32_t *psn);
void vb_conn_drop(struct vb_conn *conn);
struct ib_ah_attr vb_route(const struct vb_comm *comm, int peer);

int vb_ud_open(struct vb_ctx *ctx);
void vb_ud_close(struct vb_ctx *ctx);
/* Creates the queue pairs and sends the peer a hello, repeated until it answers. */
int vb_conn_want(struct vb_conn *conn);
int vb_hello_send(struct vb_conn *conn);
void vb_bye_send(struct vb_conn *conn);
void vb_note_take(struct vb_ctx *ctx, uint32_t index, uint32_t bytes);
void vb_notes_again(struct vb_ctx *ctx);

int vb_mr_open(struct vb_comm *comm, const ncclEpNetMem_v1_t *mem, bool dmabuf, void *key, void **out);
void vb_mr_close(struct vb_mr *mr);
int vb_regMr(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr);
int vb_regMrDmaBuf(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr);
int vb_shareMr(void *comm, void *mr, const void *keys);
int vb_deregMr(void *comm, void *mr);
bool vb_dmabuf_probe(struct ib_pd *pd);
uint32_t vb_kinds_probe(bool dmabuf);

int vb_listen(void *net, int dev, int nranks, void *handle, void **listener);
int vb_connect(void *listener, const void *handles, int nranks, int rank, void **comm);
int vb_closeListen(void *listener);
int vb_closeComm(void *comm);

/* The status of a completion as text, with what to check. */
const char *vb_status_text(unsigned status);
/* ep_base_peer_lost, with the port and both addresses before the reason. */
int vb_peer_lost(struct vb_comm *comm, int peer, const char *fmt, ...) __attribute__((cold, format(printf, 3, 4)));
/* Reads device events, and the port's state where it is in doubt; by one context at a time. */
void vb_events_look(struct vb_comm *comm);
/* Before a put's error is reported: if the port is down, that is the reason, and all peers are lost. */
void vb_port_blame(struct vb_comm *comm) __attribute__((cold));
/* Checks for lost peers and device events; called by progress now and then. An error is final for the comm. */
int vb_look(struct vb_ctx *ctx);

void vb_chain_post(struct vb_ctx *ctx);
int vb_iput(void *ctx, const ncclEpNetPut_v1_t *put, void **request);
int vb_iflush(void *ctx, void *mr, void **request);
int vb_test(void *ctx, void *request, int *done);
int vb_progress(void *ctx, uint32_t *imms, int max, int *count);

#endif
