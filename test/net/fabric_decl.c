/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares net/fabric/api.h with libfabric's own headers where they are installed (EP_FABRIC_HEADERS): layouts at
 * compile time, values at run time.
 */
#include <stdio.h>

#include "net/fabric/api.h"

#ifdef EP_FABRIC_HEADERS
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define SIZED(member, s) sizeof(((struct s *)0)->member)
/* Structs that we allocate have the same size; those that libfabric allocates may have more members. */
#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(struct ours) == sizeof(struct theirs), #ours)
#define AS_LARGE(ours, theirs) _Static_assert(sizeof(struct ours) >= sizeof(struct theirs), #ours)
#define SAME_AS(a, ours, b, theirs)                                                                        \
	_Static_assert(offsetof(struct ours, a) == offsetof(struct theirs, b), #ours "." #a " elsewhere"); \
	_Static_assert(SIZED(a, ours) == SIZED(b, theirs), #ours "." #a " of another size")
#define SAME(a, ours, theirs) SAME_AS(a, ours, a, theirs)

/* clang-format off: a line each would be 150 */
#define TX(a) SAME(a, ofi_tx_attr, fi_tx_attr)
TX(caps);
TX(mode);
TX(op_flags);
TX(msg_order);
TX(comp_order);
TX(inject_size);
TX(size);
TX(iov_limit);
TX(rma_iov_limit);
TX(tclass);

#define RX(a) SAME(a, ofi_rx_attr, fi_rx_attr)
RX(caps);
RX(mode);
RX(op_flags);
RX(msg_order);
RX(comp_order);
RX(total_buffered_recv);
RX(size);
RX(iov_limit);

#define EP(a) SAME(a, ofi_ep_attr, fi_ep_attr)
EP(type);
EP(protocol);
EP(protocol_version);
EP(max_msg_size);
EP(msg_prefix_size);
EP(max_order_raw_size);
EP(max_order_war_size);
EP(max_order_waw_size);
EP(mem_tag_format);
EP(tx_ctx_cnt);
EP(rx_ctx_cnt);
EP(auth_key_size);
EP(auth_key);

#define DOM(a) SAME(a, ofi_domain_attr, fi_domain_attr)
DOM(domain);
DOM(name);
DOM(threading);
DOM(control_progress);
DOM(data_progress);
DOM(resource_mgmt);
DOM(av_type);
DOM(mr_mode);
DOM(mr_key_size);
DOM(cq_data_size);
DOM(cq_cnt);
DOM(ep_cnt);
DOM(tx_ctx_cnt);
DOM(rx_ctx_cnt);
DOM(max_ep_tx_ctx);
DOM(max_ep_rx_ctx);
DOM(max_ep_stx_ctx);
DOM(max_ep_srx_ctx);
DOM(cntr_cnt);
DOM(mr_iov_limit);
DOM(caps);
DOM(mode);
DOM(auth_key);
DOM(auth_key_size);
DOM(max_err_data);
DOM(mr_cnt);
DOM(tclass);

#define FAB(a) SAME(a, ofi_fabric_attr, fi_fabric_attr)
FAB(fabric);
FAB(name);
FAB(prov_name);
FAB(prov_version);
FAB(api_version);

#define INFO(a) SAME(a, ofi_info, fi_info)
INFO(next);
INFO(caps);
INFO(mode);
INFO(addr_format);
INFO(src_addrlen);
INFO(dest_addrlen);
INFO(src_addr);
INFO(dest_addr);
INFO(handle);
INFO(tx_attr);
INFO(rx_attr);
INFO(ep_attr);
INFO(domain_attr);
INFO(fabric_attr);
INFO(nic);

SAME(bus_type, ofi_bus_attr, fi_bus_attr);
SAME_AS(pci.domain_id, ofi_bus_attr, attr.pci.domain_id, fi_bus_attr);
SAME_AS(pci.bus_id, ofi_bus_attr, attr.pci.bus_id, fi_bus_attr);
SAME_AS(pci.device_id, ofi_bus_attr, attr.pci.device_id, fi_bus_attr);
SAME_AS(pci.function_id, ofi_bus_attr, attr.pci.function_id, fi_bus_attr);
SAME(fid, ofi_nic, fid_nic);
SAME(bus_attr, ofi_nic, fid_nic);
SAME(link_attr, ofi_nic, fid_nic);
SAME(speed, ofi_link_attr, fi_link_attr);

SAME_SIZE(ofi_fid, fid);
SAME(ops, ofi_fid, fid);
SAME(close, ofi_ops, fi_ops);
SAME(bind, ofi_ops, fi_ops);
SAME(control, ofi_ops, fi_ops);
SAME(ops, ofi_fabric, fid_fabric);
SAME(domain, ofi_ops_fabric, fi_ops_fabric);
SAME(ops, ofi_domain, fid_domain);
SAME(mr, ofi_domain, fid_domain);
SAME(av_open, ofi_ops_domain, fi_ops_domain);
SAME(cq_open, ofi_ops_domain, fi_ops_domain);
SAME(endpoint, ofi_ops_domain, fi_ops_domain);
SAME(regattr, ofi_ops_mr, fi_ops_mr);
SAME(mem_desc, ofi_mr, fid_mr);
SAME(key, ofi_mr, fid_mr);
SAME(ops, ofi_av, fid_av);
SAME(insert, ofi_ops_av, fi_ops_av);
SAME(ops, ofi_cq, fid_cq);
SAME(read, ofi_ops_cq, fi_ops_cq);
SAME(readfrom, ofi_ops_cq, fi_ops_cq);
SAME(readerr, ofi_ops_cq, fi_ops_cq);
SAME(strerror, ofi_ops_cq, fi_ops_cq);
SAME(ops, ofi_ep, fid_ep);
SAME(cm, ofi_ep, fid_ep);
SAME(msg, ofi_ep, fid_ep);
SAME(rma, ofi_ep, fid_ep);
SAME(getopt, ofi_ops_ep, fi_ops_ep);
SAME(setopt, ofi_ops_ep, fi_ops_ep);
SAME(getname, ofi_ops_cm, fi_ops_cm);
SAME(recvmsg, ofi_ops_msg, fi_ops_msg);
SAME(readmsg, ofi_ops_rma, fi_ops_rma);
SAME(writemsg, ofi_ops_rma, fi_ops_rma);

#define AV(a) SAME(a, ofi_av_attr, fi_av_attr)
SAME_SIZE(ofi_av_attr, fi_av_attr);
AV(type);
AV(rx_ctx_bits);
AV(count);
AV(ep_per_node);
AV(name);
AV(map_addr);
AV(flags);

#define CQ(a) SAME(a, ofi_cq_attr, fi_cq_attr)
SAME_SIZE(ofi_cq_attr, fi_cq_attr);
CQ(size);
CQ(flags);
CQ(format);
CQ(wait_obj);
CQ(signaling_vector);
CQ(wait_cond);
CQ(wait_set);

#define MR(a) SAME(a, ofi_mr_attr, fi_mr_attr)
AS_LARGE(ofi_mr_attr, fi_mr_attr);
MR(mr_iov);
MR(iov_count);
MR(access);
MR(offset);
MR(requested_key);
MR(context);
MR(auth_key_size);
MR(auth_key);
MR(iface);
MR(device);

#define ENTRY(a) SAME(a, ofi_cq_data_entry, fi_cq_data_entry)
SAME_SIZE(ofi_cq_data_entry, fi_cq_data_entry);
ENTRY(op_context);
ENTRY(flags);
ENTRY(len);
ENTRY(buf);
ENTRY(data);

#define ERR(a) SAME(a, ofi_cq_err_entry, fi_cq_err_entry)
AS_LARGE(ofi_cq_err_entry, fi_cq_err_entry);
ERR(op_context);
ERR(flags);
ERR(len);
ERR(buf);
ERR(data);
ERR(tag);
ERR(olen);
ERR(err);
ERR(prov_errno);
ERR(err_data);
ERR(err_data_size);

#define IOV(a) SAME(a, ofi_rma_iov, fi_rma_iov)
SAME_SIZE(ofi_rma_iov, fi_rma_iov);
IOV(addr);
IOV(len);
IOV(key);

#define MSG(a) SAME(a, ofi_msg_rma, fi_msg_rma)
SAME_SIZE(ofi_msg_rma, fi_msg_rma);
MSG(msg_iov);
MSG(desc);
MSG(iov_count);
MSG(addr);
MSG(rma_iov);
MSG(rma_iov_count);
MSG(context);
MSG(data);

#define RECV(a) SAME(a, ofi_msg, fi_msg)
SAME_SIZE(ofi_msg, fi_msg);
RECV(msg_iov);
RECV(desc);
RECV(iov_count);
RECV(addr);
RECV(context);
RECV(data);

SAME_SIZE(ofi_context2, fi_context2);
/* clang-format on */

/* Constants newer than the headers are compared with our own value. */
#define MINOR (FI_MAJOR_VERSION > 1 ? 1000 : FI_MINOR_VERSION)
#if FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION < 18
#define FI_OPT_CUDA_API_PERMITTED OFI_OPT_CUDA_API_PERMITTED
#define FI_OPT_EFA_EMULATED_WRITE OFI_OPT_EFA_EMULATED_WRITE
#endif
#if FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION < 19
#define FI_OPT_SHARED_MEMORY_PERMITTED OFI_OPT_SHARED_MEMORY_PERMITTED
#endif
#if FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION < 20
#define FI_MR_DMABUF OFI_MR_DMABUF
#else
SAME_SIZE(ofi_mr_dmabuf, fi_mr_dmabuf);
SAME(fd, ofi_mr_dmabuf, fi_mr_dmabuf);
SAME(offset, ofi_mr_dmabuf, fi_mr_dmabuf);
SAME(len, ofi_mr_dmabuf, fi_mr_dmabuf);
SAME(base_addr, ofi_mr_dmabuf, fi_mr_dmabuf);
#endif

static const struct {
	const char *name;
	uint64_t ours, theirs;
	int since;
} constants[] = {
#define OFI_CONST(name, libfabric, value, since) { #name, (uint64_t)OFI_##name, (uint64_t)libfabric, since },
#include "net/fabric/constants.h"
#undef OFI_CONST
};

int main(void)
{
	int failed = 0, compared = 0;

	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
		compared += constants[i].since <= MINOR;
		if (constants[i].ours == constants[i].theirs)
			continue;
		fprintf(stderr, "%s is %#llx, libfabric says %#llx\n", constants[i].name,
			(unsigned long long)constants[i].ours, (unsigned long long)constants[i].theirs);
		failed = 1;
	}
	if (OFI_VERSION(1, 17) != FI_VERSION(1, 17) || OFI_ADDR_NONE != FI_ADDR_UNSPEC)
		failed = 1;
	printf("%d of %zu constants, and all layouts, compared with libfabric %d.%d\n", compared,
	       sizeof(constants) / sizeof(constants[0]), FI_MAJOR_VERSION, FI_MINOR_VERSION);
	return failed;
}
#else
int main(void)
{
	printf("skipped: no libfabric headers\n");
	return 77;
}
#endif
