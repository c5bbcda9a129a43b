/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of libfabric's 1.x ABI that is used here, declared by ourselves: the build needs no header of it, and one
 * binary serves hosts with and without it. Enumerations are plain unsigned or int, as in the ABI; functions that are
 * never called are OFI_UNUSED. Structs passed to libfabric that grew at the end in later versions end in zeroed
 * padding; structs that libfabric allocates are only read, so their growth does not matter.
 */
#ifndef EP_NET_FABRIC_API_H
#define EP_NET_FABRIC_API_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

enum ofi_constant {
#define OFI_CONST(name, theirs, value, since) OFI_##name = value,
#include "net/fabric/constants.h"
#undef OFI_CONST
};

#define OFI_VERSION(major, minor) ((uint32_t)(major) << 16 | (uint32_t)(minor))
#define OFI_ADDR_NONE UINT64_MAX
#define OFI_UNUSED(name) void (*name)(void)

struct ofi_fid;
struct ofi_fabric;
struct ofi_domain;
struct ofi_av;
struct ofi_cq;
struct ofi_ep;
struct ofi_mr;

/* ---- fi_getinfo ---- */

struct ofi_tx_attr {
	uint64_t caps, mode, op_flags, msg_order, comp_order;
	size_t inject_size, size, iov_limit, rma_iov_limit;
	uint32_t tclass;
};

struct ofi_rx_attr {
	uint64_t caps, mode, op_flags, msg_order, comp_order;
	size_t total_buffered_recv, size, iov_limit;
};

struct ofi_ep_attr {
	unsigned type;
	uint32_t protocol, protocol_version;
	size_t max_msg_size, msg_prefix_size, max_order_raw_size, max_order_war_size, max_order_waw_size;
	uint64_t mem_tag_format;
	size_t tx_ctx_cnt, rx_ctx_cnt, auth_key_size;
	uint8_t *auth_key;
};

struct ofi_domain_attr {
	struct ofi_domain *domain;
	char *name;
	unsigned threading, control_progress, data_progress, resource_mgmt, av_type;
	int mr_mode;
	size_t mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx, max_ep_rx_ctx,
		max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit;
	uint64_t caps, mode;
	uint8_t *auth_key;
	size_t auth_key_size, max_err_data, mr_cnt;
	uint32_t tclass;
};

struct ofi_fabric_attr {
	struct ofi_fabric *fabric;
	char *name, *prov_name;
	uint32_t prov_version, api_version;
};

struct ofi_info {
	struct ofi_info *next;
	uint64_t caps, mode;
	uint32_t addr_format;
	size_t src_addrlen, dest_addrlen;
	void *src_addr, *dest_addr;
	struct ofi_fid *handle;
	struct ofi_tx_attr *tx_attr;
	struct ofi_rx_attr *rx_attr;
	struct ofi_ep_attr *ep_attr;
	struct ofi_domain_attr *domain_attr;
	struct ofi_fabric_attr *fabric_attr;
	struct ofi_nic *nic;
};

struct ofi_link_attr {
	char *address;
	size_t mtu, speed; /* bits per second */
};

struct ofi_bus_attr {
	unsigned bus_type;
	struct {
		uint16_t domain_id;
		uint8_t bus_id, device_id, function_id;
	} pci;
};

/* ---- objects: each begins with a fid and a table of operations ---- */

struct ofi_ops {
	size_t size;
	int (*close)(struct ofi_fid *fid);
	int (*bind)(struct ofi_fid *fid, struct ofi_fid *to, uint64_t flags);
	int (*control)(struct ofi_fid *fid, int command, void *arg);
};

struct ofi_fid {
	size_t fclass;
	void *context;
	struct ofi_ops *ops;
};

struct ofi_nic {
	struct ofi_fid fid;
	void *device_attr;
	struct ofi_bus_attr *bus_attr;
	struct ofi_link_attr *link_attr;
};

struct ofi_ops_fabric {
	size_t size;
	int (*domain)(struct ofi_fabric *fabric, struct ofi_info *info, struct ofi_domain **out, void *context);
};

struct ofi_fabric {
	struct ofi_fid fid;
	struct ofi_ops_fabric *ops;
};

struct ofi_av_attr {
	unsigned type;
	int rx_ctx_bits;
	size_t count, ep_per_node;
	const char *name;
	void *map_addr;
	uint64_t flags;
};

struct ofi_cq_attr {
	size_t size;
	uint64_t flags;
	unsigned format, wait_obj;
	int signaling_vector;
	unsigned wait_cond;
	void *wait_set;
};

struct ofi_ops_domain {
	size_t size;
	int (*av_open)(struct ofi_domain *domain, struct ofi_av_attr *attr, struct ofi_av **out, void *context);
	int (*cq_open)(struct ofi_domain *domain, struct ofi_cq_attr *attr, struct ofi_cq **out, void *context);
	int (*endpoint)(struct ofi_domain *domain, struct ofi_info *info, struct ofi_ep **out, void *context);
};

struct ofi_mr_dmabuf { /* since 1.20 */
	int fd;
	uint64_t offset;
	size_t len;
	void *base_addr;
};

struct ofi_mr_attr {
	const void *mr_iov; /* struct iovec; with OFI_MR_DMABUF struct ofi_mr_dmabuf */
	size_t iov_count;
	uint64_t access, offset, requested_key;
	void *context;
	size_t auth_key_size;
	uint8_t *auth_key;
	unsigned iface;
	uint64_t device;
	uint64_t later[8];
};

struct ofi_ops_mr {
	size_t size;
	OFI_UNUSED(reg);
	OFI_UNUSED(regv);
	int (*regattr)(struct ofi_fid *fid, const struct ofi_mr_attr *attr, uint64_t flags, struct ofi_mr **out);
};

struct ofi_domain {
	struct ofi_fid fid;
	struct ofi_ops_domain *ops;
	struct ofi_ops_mr *mr;
};

struct ofi_mr {
	struct ofi_fid fid;
	void *mem_desc;
	uint64_t key;
};

struct ofi_ops_av {
	size_t size;
	int (*insert)(struct ofi_av *av, const void *addr, size_t count, uint64_t *out, uint64_t flags, void *context);
};

struct ofi_av {
	struct ofi_fid fid;
	struct ofi_ops_av *ops;
};

struct ofi_cq_data_entry {
	void *op_context;
	uint64_t flags;
	size_t len;
	void *buf;
	uint64_t data;
};

struct ofi_cq_err_entry {
	void *op_context;
	uint64_t flags;
	size_t len;
	void *buf;
	uint64_t data, tag;
	size_t olen;
	int err, prov_errno;
	void *err_data;
	size_t err_data_size;
	uint64_t later[4];
};

struct ofi_ops_cq {
	size_t size;
	ssize_t (*read)(struct ofi_cq *cq, void *entries, size_t count);
	ssize_t (*readfrom)(struct ofi_cq *cq, void *entries, size_t count, uint64_t *from);
	ssize_t (*readerr)(struct ofi_cq *cq, struct ofi_cq_err_entry *entry, uint64_t flags);
	OFI_UNUSED(sread);
	OFI_UNUSED(sreadfrom);
	OFI_UNUSED(signal);
	const char *(*strerror)(struct ofi_cq *cq, int prov_errno, const void *err_data, char *buf, size_t len);
};

struct ofi_cq {
	struct ofi_fid fid;
	struct ofi_ops_cq *ops;
};

struct ofi_ops_ep {
	size_t size;
	OFI_UNUSED(cancel);
	int (*getopt)(struct ofi_fid *fid, int level, int name, void *value, size_t *size);
	int (*setopt)(struct ofi_fid *fid, int level, int name, const void *value, size_t size);
};

struct ofi_ops_cm {
	size_t size;
	OFI_UNUSED(setname);
	int (*getname)(struct ofi_fid *fid, void *addr, size_t *size);
};

struct ofi_msg {
	const struct iovec *msg_iov;
	void **desc;
	size_t iov_count;
	uint64_t addr;
	void *context;
	uint64_t data;
};

struct ofi_ops_msg {
	size_t size;
	OFI_UNUSED(recv);
	OFI_UNUSED(recvv);
	ssize_t (*recvmsg)(struct ofi_ep *ep, const struct ofi_msg *msg, uint64_t flags);
};

struct ofi_rma_iov {
	uint64_t addr;
	size_t len;
	uint64_t key;
};

struct ofi_msg_rma {
	const struct iovec *msg_iov;
	void **desc;
	size_t iov_count;
	uint64_t addr;
	const struct ofi_rma_iov *rma_iov;
	size_t rma_iov_count;
	void *context;
	uint64_t data;
};

struct ofi_ops_rma {
	size_t size;
	OFI_UNUSED(read);
	OFI_UNUSED(readv);
	ssize_t (*readmsg)(struct ofi_ep *ep, const struct ofi_msg_rma *msg, uint64_t flags);
	OFI_UNUSED(write);
	OFI_UNUSED(writev);
	ssize_t (*writemsg)(struct ofi_ep *ep, const struct ofi_msg_rma *msg, uint64_t flags);
};

struct ofi_ep {
	struct ofi_fid fid;
	struct ofi_ops_ep *ops;
	struct ofi_ops_cm *cm;
	struct ofi_ops_msg *msg;
	struct ofi_ops_rma *rma;
};

struct ofi_context2 { /* used by the provider while an operation is in flight */
	void *internal[8];
};

/* ---- exported functions ---- */

struct ofi_api {
	uint32_t (*fi_version)(void);
	int (*fi_getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
			  const struct ofi_info *hints, struct ofi_info **out);
	void (*fi_freeinfo)(struct ofi_info *info);
	struct ofi_info *(*fi_dupinfo)(const struct ofi_info *info);
	int (*fi_fabric)(struct ofi_fabric_attr *attr, struct ofi_fabric **out, void *context);
	const char *(*fi_strerror)(int error);
};

#endif
