/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of libibverbs' ABI (symbol version IBVERBS_1.1) that is used here, declared by ourselves: the build needs no
 * header of it, and one binary serves hosts with and without it. Enumerations are plain unsigned, as in the ABI.
 * Objects that the library allocates are declared as far as they are read; operations that are never called are
 * IB_UNUSED.
 */
#ifndef EP_NET_VERBS_API_H
#define EP_NET_VERBS_API_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum ib_constant {
#define IB_CONST(name, theirs, value) IB_##name = value,
#include "net/verbs/constants.h"
#undef IB_CONST
};

#define IB_UNUSED(name) void (*name)(void)
#define IB_NAME 64  /* bytes of a device name */
#define IB_PATH 256 /* bytes of a sysfs path */

struct ib_context;
struct ib_send_wr;
struct ib_recv_wr;
struct ib_wc;
struct ib_cq;
struct ib_qp;
struct ib_srq;

/* Network byte order. */
union ib_gid {
	uint8_t raw[16];
	struct {
		uint64_t prefix, id;
	} part;
};

struct ib_gid_entry {
	union ib_gid gid;
	uint32_t index, port, type, ifindex;
};

struct ib_device {
	void *unused[2];
	int node_type, transport;
	char name[IB_NAME], dev_name[IB_NAME], dev_path[IB_PATH], ibdev_path[IB_PATH];
};

struct ib_context_ops {
	IB_UNUSED(unused[11]);
	int (*poll_cq)(struct ib_cq *cq, int n, struct ib_wc *wc);
	IB_UNUSED(unused2[8]);
	int (*post_srq_recv)(struct ib_srq *srq, struct ib_recv_wr *wr, struct ib_recv_wr **bad);
	IB_UNUSED(unused3[4]);
	int (*post_send)(struct ib_qp *qp, struct ib_send_wr *wr, struct ib_send_wr **bad);
	int (*post_recv)(struct ib_qp *qp, struct ib_recv_wr *wr, struct ib_recv_wr **bad);
	IB_UNUSED(unused4[5]);
};

struct ib_context {
	struct ib_device *device;
	struct ib_context_ops ops;
	int cmd_fd, async_fd, vectors;
};

struct ib_device_attr {
	char fw[64];
	uint64_t node_guid, image_guid, max_mr_size, page_sizes;
	uint32_t vendor, part, hw;
	int max_qp, max_qp_wr;
	unsigned flags;
	int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
		max_qp_init_rd_atom, max_ee_init_rd_atom;
	unsigned atomic_cap;
	int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
		max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
	uint16_t max_pkeys;
	uint8_t ack_delay, ports;
};

/* As filled by symbol version 1.1; two bytes that newer headers add are filled by another function. */
struct ib_port_attr {
	unsigned state, max_mtu, active_mtu;
	int gids;
	uint32_t caps, max_msg_sz, bad_pkeys, bad_qkeys;
	uint16_t pkeys, lid, sm_lid;
	uint8_t lmc, max_vl, sm_sl, subnet_timeout, init_type, width, speed, phys_state, link_layer, flags;
	uint16_t room;
};

struct ib_pd {
	struct ib_context *context;
	uint32_t handle;
};

struct ib_mr {
	struct ib_context *context;
	struct ib_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle, lkey, rkey;
};

struct ib_cq {
	struct ib_context *context;
	void *channel, *own;
	uint32_t handle;
	int cqe;
};

struct ib_srq {
	struct ib_context *context;
	void *own;
};

struct ib_qp {
	struct ib_context *context;
	void *own;
	struct ib_pd *pd;
	struct ib_cq *send_cq, *recv_cq;
	struct ib_srq *srq;
	uint32_t handle, qp_num;
	unsigned state, type;
};

struct ib_route {
	union ib_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
};

struct ib_ah_attr {
	struct ib_route grh;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port;
};

struct ib_srq_attr {
	void *own;
	uint32_t max_wr, max_sge, limit;
};

struct ib_qp_cap {
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline;
};

struct ib_qp_init {
	void *own;
	struct ib_cq *send_cq, *recv_cq;
	struct ib_srq *srq;
	struct ib_qp_cap cap;
	unsigned type;
	int sq_sig_all;
};

struct ib_qp_attr {
	unsigned state, cur_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
	unsigned access;
	struct ib_qp_cap cap;
	struct ib_ah_attr ah, alt_ah;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t sqd_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port, timeout, retry_cnt,
		rnr_retry, alt_port, alt_timeout;
	uint32_t rate_limit;
};

struct ib_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

struct ib_send_wr {
	uint64_t wr_id;
	struct ib_send_wr *next;
	struct ib_sge *sge;
	int num_sge;
	unsigned opcode, flags;
	uint32_t imm; /* network byte order */
	union {
		struct {
			uint64_t addr;
			uint32_t rkey;
		} rdma;
		struct {
			void *ah;
			uint32_t qpn, qkey;
		} ud;
		uint64_t room[4];
	} to;
	uint64_t unused[7];
};

struct ib_recv_wr {
	uint64_t wr_id;
	struct ib_recv_wr *next;
	struct ib_sge *sge;
	int num_sge;
};

struct ib_wc {
	uint64_t wr_id;
	unsigned status, opcode;
	uint32_t vendor_err, byte_len, imm, qp_num, src_qp;
	unsigned flags;
	uint16_t pkey_index, slid;
	uint8_t sl, path_bits;
};

struct ib_event {
	union {
		struct ib_cq *cq;
		struct ib_qp *qp;
		struct ib_srq *srq;
		int port;
	} element;
	unsigned type;
};

/* Filled by vb_api; optional ones may be NULL. Those that return int return a positive errno, or -1 with errno. */
struct ib_api {
	struct ib_device **(*get_device_list)(int *count);
	void (*free_device_list)(struct ib_device **list);
	struct ib_context *(*open_device)(struct ib_device *device);
	int (*close_device)(struct ib_context *context);
	int (*query_device)(struct ib_context *context, struct ib_device_attr *attr);
	int (*query_port)(struct ib_context *context, uint8_t port, struct ib_port_attr *attr);
	int (*query_gid)(struct ib_context *context, uint8_t port, int index, union ib_gid *gid);
	int (*query_gid_ex)(struct ib_context *context, uint32_t port, uint32_t index, struct ib_gid_entry *entry,
			    uint32_t flags, size_t size); /* optional */
	struct ib_pd *(*alloc_pd)(struct ib_context *context);
	int (*dealloc_pd)(struct ib_pd *pd);
	struct ib_mr *(*reg_mr)(struct ib_pd *pd, void *addr, size_t length, int access);
	struct ib_mr *(*reg_mr_iova2)(struct ib_pd *pd, void *addr, size_t length, uint64_t iova,
				      unsigned access); /* optional; needed for optional access flags */
	struct ib_mr *(*reg_dmabuf_mr)(struct ib_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
				       int access); /* optional */
	int (*dereg_mr)(struct ib_mr *mr);
	struct ib_cq *(*create_cq)(struct ib_context *context, int cqe, void *own, void *channel, int vector);
	int (*destroy_cq)(struct ib_cq *cq);
	struct ib_srq *(*create_srq)(struct ib_pd *pd, struct ib_srq_attr *attr);
	int (*destroy_srq)(struct ib_srq *srq);
	struct ib_qp *(*create_qp)(struct ib_pd *pd, struct ib_qp_init *init);
	int (*modify_qp)(struct ib_qp *qp, struct ib_qp_attr *attr, int mask);
	int (*destroy_qp)(struct ib_qp *qp);
	void *(*create_ah)(struct ib_pd *pd, struct ib_ah_attr *attr);
	int (*destroy_ah)(void *ah);
	int (*get_async_event)(struct ib_context *context, struct ib_event *event);
	void (*ack_async_event)(struct ib_event *event);
};

#endif
