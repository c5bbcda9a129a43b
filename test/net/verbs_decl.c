/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares net/verbs/api.h with libibverbs' own header where it is installed (EP_VERBS_HEADERS): layouts at compile
 * time, values at run time.
 */
#include <stdio.h>

#include "net/verbs/api.h"

#ifdef EP_VERBS_HEADERS
#include <infiniband/verbs.h>

#define SIZED(member, s) sizeof(((struct s *)0)->member)
/* Structs that we allocate have the same size; those that libibverbs allocates may have more members. */
#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(struct ours) == sizeof(struct theirs), #ours)
#define SAME_AS(a, ours, b, theirs)                                                                        \
	_Static_assert(offsetof(struct ours, a) == offsetof(struct theirs, b), #ours "." #a " elsewhere"); \
	_Static_assert(SIZED(a, ours) == SIZED(b, theirs), #ours "." #a " of another size")
#define SAME(a, ours, theirs) SAME_AS(a, ours, a, theirs)

/* clang-format off: a line each would be 100 */
_Static_assert(sizeof(union ib_gid) == sizeof(union ibv_gid), "ib_gid");
SAME_SIZE(ib_gid_entry, ibv_gid_entry);
SAME(gid, ib_gid_entry, ibv_gid_entry);
SAME_AS(index, ib_gid_entry, gid_index, ibv_gid_entry);
SAME_AS(port, ib_gid_entry, port_num, ibv_gid_entry);
SAME_AS(type, ib_gid_entry, gid_type, ibv_gid_entry);

SAME(node_type, ib_device, ibv_device);
SAME_AS(transport, ib_device, transport_type, ibv_device);
SAME(name, ib_device, ibv_device);
SAME(dev_name, ib_device, ibv_device);
SAME(dev_path, ib_device, ibv_device);
SAME(ibdev_path, ib_device, ibv_device);

SAME_SIZE(ib_context_ops, ibv_context_ops);
SAME(poll_cq, ib_context_ops, ibv_context_ops);
SAME(post_srq_recv, ib_context_ops, ibv_context_ops);
SAME(post_send, ib_context_ops, ibv_context_ops);
SAME(post_recv, ib_context_ops, ibv_context_ops);
SAME(device, ib_context, ibv_context);
SAME(ops, ib_context, ibv_context);
SAME(cmd_fd, ib_context, ibv_context);
SAME(async_fd, ib_context, ibv_context);

#define ATTR(a, b) SAME_AS(a, ib_device_attr, b, ibv_device_attr)
SAME_SIZE(ib_device_attr, ibv_device_attr);
ATTR(max_mr_size, max_mr_size);
ATTR(vendor, vendor_id);
ATTR(max_qp, max_qp);
ATTR(max_qp_wr, max_qp_wr);
ATTR(flags, device_cap_flags);
ATTR(max_sge, max_sge);
ATTR(max_cqe, max_cqe);
ATTR(max_qp_rd_atom, max_qp_rd_atom);
ATTR(max_qp_init_rd_atom, max_qp_init_rd_atom);
ATTR(max_ah, max_ah);
ATTR(max_srq, max_srq);
ATTR(max_srq_wr, max_srq_wr);
ATTR(max_srq_sge, max_srq_sge);
ATTR(max_pkeys, max_pkeys);
ATTR(ports, phys_port_cnt);

#define PORT(a, b) SAME_AS(a, ib_port_attr, b, ibv_port_attr)
/* The symbol version we call fills the first version of the struct only. */
_Static_assert(sizeof(struct ib_port_attr) <= sizeof(struct ibv_port_attr), "ib_port_attr");
PORT(state, state);
PORT(max_mtu, max_mtu);
PORT(active_mtu, active_mtu);
PORT(gids, gid_tbl_len);
PORT(max_msg_sz, max_msg_sz);
PORT(pkeys, pkey_tbl_len);
PORT(lid, lid);
PORT(link_layer, link_layer);
PORT(flags, flags);

SAME_SIZE(ib_pd, ibv_pd);
SAME_SIZE(ib_mr, ibv_mr);
SAME(addr, ib_mr, ibv_mr);
SAME(lkey, ib_mr, ibv_mr);
SAME(rkey, ib_mr, ibv_mr);
SAME(context, ib_cq, ibv_cq);
SAME_AS(own, ib_cq, cq_context, ibv_cq);
SAME(cqe, ib_cq, ibv_cq);
SAME(context, ib_srq, ibv_srq);
SAME_AS(own, ib_srq, srq_context, ibv_srq);
SAME(context, ib_qp, ibv_qp);
SAME_AS(own, ib_qp, qp_context, ibv_qp);
SAME(qp_num, ib_qp, ibv_qp);
SAME(state, ib_qp, ibv_qp);

SAME_SIZE(ib_route, ibv_global_route);
SAME(dgid, ib_route, ibv_global_route);
SAME(flow_label, ib_route, ibv_global_route);
SAME(sgid_index, ib_route, ibv_global_route);
SAME(hop_limit, ib_route, ibv_global_route);
SAME(traffic_class, ib_route, ibv_global_route);
SAME_SIZE(ib_ah_attr, ibv_ah_attr);
SAME(grh, ib_ah_attr, ibv_ah_attr);
SAME(dlid, ib_ah_attr, ibv_ah_attr);
SAME(sl, ib_ah_attr, ibv_ah_attr);
SAME(is_global, ib_ah_attr, ibv_ah_attr);
SAME_AS(port, ib_ah_attr, port_num, ibv_ah_attr);

SAME_SIZE(ib_srq_attr, ibv_srq_init_attr);
SAME_AS(max_wr, ib_srq_attr, attr.max_wr, ibv_srq_init_attr);
SAME_AS(max_sge, ib_srq_attr, attr.max_sge, ibv_srq_init_attr);
SAME_SIZE(ib_qp_cap, ibv_qp_cap);
SAME(max_send_wr, ib_qp_cap, ibv_qp_cap);
SAME(max_recv_wr, ib_qp_cap, ibv_qp_cap);
SAME(max_send_sge, ib_qp_cap, ibv_qp_cap);
SAME(max_recv_sge, ib_qp_cap, ibv_qp_cap);
SAME_AS(max_inline, ib_qp_cap, max_inline_data, ibv_qp_cap);
SAME_SIZE(ib_qp_init, ibv_qp_init_attr);
SAME_AS(own, ib_qp_init, qp_context, ibv_qp_init_attr);
SAME(send_cq, ib_qp_init, ibv_qp_init_attr);
SAME(recv_cq, ib_qp_init, ibv_qp_init_attr);
SAME(srq, ib_qp_init, ibv_qp_init_attr);
SAME(cap, ib_qp_init, ibv_qp_init_attr);
SAME_AS(type, ib_qp_init, qp_type, ibv_qp_init_attr);
SAME(sq_sig_all, ib_qp_init, ibv_qp_init_attr);

#define QP(a, b) SAME_AS(a, ib_qp_attr, b, ibv_qp_attr)
SAME_SIZE(ib_qp_attr, ibv_qp_attr);
QP(state, qp_state);
QP(path_mtu, path_mtu);
QP(qkey, qkey);
QP(rq_psn, rq_psn);
QP(sq_psn, sq_psn);
QP(dest_qp_num, dest_qp_num);
QP(access, qp_access_flags);
QP(cap, cap);
QP(ah, ah_attr);
QP(alt_ah, alt_ah_attr);
QP(pkey_index, pkey_index);
QP(max_rd_atomic, max_rd_atomic);
QP(max_dest_rd_atomic, max_dest_rd_atomic);
QP(min_rnr_timer, min_rnr_timer);
QP(port, port_num);
QP(timeout, timeout);
QP(retry_cnt, retry_cnt);
QP(rnr_retry, rnr_retry);

SAME_SIZE(ib_sge, ibv_sge);
SAME(addr, ib_sge, ibv_sge);
SAME(length, ib_sge, ibv_sge);
SAME(lkey, ib_sge, ibv_sge);
#define WR(a, b) SAME_AS(a, ib_send_wr, b, ibv_send_wr)
SAME_SIZE(ib_send_wr, ibv_send_wr);
WR(wr_id, wr_id);
WR(next, next);
WR(sge, sg_list);
WR(num_sge, num_sge);
WR(opcode, opcode);
WR(flags, send_flags);
WR(imm, imm_data);
WR(to, wr);
WR(to.rdma.addr, wr.rdma.remote_addr);
WR(to.rdma.rkey, wr.rdma.rkey);
WR(to.ud.ah, wr.ud.ah);
WR(to.ud.qpn, wr.ud.remote_qpn);
WR(to.ud.qkey, wr.ud.remote_qkey);
SAME_SIZE(ib_recv_wr, ibv_recv_wr);
SAME(wr_id, ib_recv_wr, ibv_recv_wr);
SAME(next, ib_recv_wr, ibv_recv_wr);
SAME_AS(sge, ib_recv_wr, sg_list, ibv_recv_wr);
SAME(num_sge, ib_recv_wr, ibv_recv_wr);

#define WC(a, b) SAME_AS(a, ib_wc, b, ibv_wc)
SAME_SIZE(ib_wc, ibv_wc);
WC(wr_id, wr_id);
WC(status, status);
WC(opcode, opcode);
WC(vendor_err, vendor_err);
WC(byte_len, byte_len);
WC(imm, imm_data);
WC(qp_num, qp_num);
WC(flags, wc_flags);

SAME_SIZE(ib_event, ibv_async_event);
SAME(element, ib_event, ibv_async_event);
SAME_AS(type, ib_event, event_type, ibv_async_event);
/* clang-format on */

static const struct {
	const char *name;
	uint64_t ours, theirs;
} constants[] = {
#define IB_CONST(name, libibverbs, value) { #name, (uint64_t)IB_##name, (uint64_t)libibverbs },
#include "net/verbs/constants.h"
#undef IB_CONST
};

int main(void)
{
	int failed = 0;

	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
		if (constants[i].ours == constants[i].theirs)
			continue;
		fprintf(stderr, "%s is %#llx, libibverbs says %#llx\n", constants[i].name,
			(unsigned long long)constants[i].ours, (unsigned long long)constants[i].theirs);
		failed = 1;
	}
	printf("%zu constants, and all layouts, compared\n", sizeof(constants) / sizeof(constants[0]));
	return failed;
}
#else
int main(void)
{
	printf("skipped: no libibverbs header\n");
	return 77;
}
#endif
