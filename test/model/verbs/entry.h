/* SPDX-License-Identifier: Apache-2.0 */
/* The symbols that the model has in place of libibverbs: nic.map gives them its versions. */
#ifndef EP_MODEL_ENTRY_H
#define EP_MODEL_ENTRY_H

#include "net/verbs/api.h"

struct ib_device **ibv_get_device_list(int *count);
void ibv_free_device_list(struct ib_device **list);
struct ib_context *ibv_open_device(struct ib_device *device);
int ibv_close_device(struct ib_context *context);
int ibv_query_device(struct ib_context *context, struct ib_device_attr *attr);
int ibv_query_port(struct ib_context *context, uint8_t port, struct ib_port_attr *attr);
int ibv_query_gid(struct ib_context *context, uint8_t port, int index, union ib_gid *gid);
int _ibv_query_gid_ex(struct ib_context *context, uint32_t port, uint32_t index, struct ib_gid_entry *entry,
		      uint32_t flags, size_t size);
struct ib_pd *ibv_alloc_pd(struct ib_context *context);
int ibv_dealloc_pd(struct ib_pd *pd);
struct ib_mr *ibv_reg_mr(struct ib_pd *pd, void *addr, size_t length, int access);
struct ib_mr *ibv_reg_mr_iova2(struct ib_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access);
int ibv_dereg_mr(struct ib_mr *mr);
struct ib_cq *ibv_create_cq(struct ib_context *context, int cqe, void *own, void *channel, int vector);
int ibv_destroy_cq(struct ib_cq *cq);
struct ib_srq *ibv_create_srq(struct ib_pd *pd, struct ib_srq_attr *attr);
int ibv_destroy_srq(struct ib_srq *srq);
struct ib_qp *ibv_create_qp(struct ib_pd *pd, struct ib_qp_init *init);
int ibv_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask);
int ibv_destroy_qp(struct ib_qp *qp);
void *ibv_create_ah(struct ib_pd *pd, struct ib_ah_attr *attr);
int ibv_destroy_ah(void *ah);
int ibv_get_async_event(struct ib_context *context, struct ib_event *event);
void ibv_ack_async_event(struct ib_event *event);

#endif
