/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs, loaded at run time with the symbol versions that api.h declares. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "net/base/lib.h"
#include "net/verbs/verbs.h"
#include "util/error.h"

/* Loaded once per process. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ep_base_lib lib = {
	.net = "verbs",
	.file = "libibverbs.so.1",
	.remedy = "install libibverbs1 and ibverbs-providers (rdma-core)",
};
static struct ib_api api;

/* IBVERBS_1.0 has different structs under the same names, so a plain dlsym is not safe. */
static const struct ep_base_symbol symbols[] = {
#define SYMBOL(name) { "ibv_" #name, "IBVERBS_1.1", offsetof(struct ib_api, name), false }
	SYMBOL(get_device_list),
	SYMBOL(free_device_list),
	SYMBOL(open_device),
	SYMBOL(close_device),
	SYMBOL(query_device),
	SYMBOL(query_port),
	SYMBOL(query_gid),
	SYMBOL(alloc_pd),
	SYMBOL(dealloc_pd),
	SYMBOL(reg_mr),
	SYMBOL(dereg_mr),
	SYMBOL(create_cq),
	SYMBOL(destroy_cq),
	SYMBOL(create_srq),
	SYMBOL(destroy_srq),
	SYMBOL(create_qp),
	SYMBOL(modify_qp),
	SYMBOL(destroy_qp),
	SYMBOL(create_ah),
	SYMBOL(destroy_ah),
	SYMBOL(get_async_event),
	SYMBOL(ack_async_event),
#undef SYMBOL
	{ "ibv_reg_mr_iova2", "IBVERBS_1.8", offsetof(struct ib_api, reg_mr_iova2), true },
	{ "_ibv_query_gid_ex", "IBVERBS_1.11", offsetof(struct ib_api, query_gid_ex), true },
	{ "ibv_reg_dmabuf_mr", "IBVERBS_1.12", offsetof(struct ib_api, reg_dmabuf_mr), true },
};

static void lib_load(void)
{
	ep_base_lib_load(&lib, symbols, sizeof(symbols) / sizeof(symbols[0]), &api);
}

const struct ib_api *vb_api(void)
{
	pthread_once(&once, lib_load);
	return ep_base_lib_check(&lib) ? &api : NULL;
}

/* ENOMEM usually means the limit of locked memory, which queues and registrations count against. */
const char *vb_reason(int error, char *text, size_t n)
{
	struct rlimit limit;

	if (error != ENOMEM)
		snprintf(text, n, "%s", strerror(error));
	else if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY)
		snprintf(text, n, "%s; locked memory is not limited: the NIC or the host is out of resources",
			 strerror(error));
	else
		snprintf(text, n, "%s; the locked memory limit (memlock) is %llu KiB; raise it by ulimit -l unlimited",
			 strerror(error), (unsigned long long)limit.rlim_cur / 1024);
	return text;
}

int vb_fail(const struct vb_dev *dev, int error, const char *what)
{
	char why[160];

	return EP_FAIL(EP_NET, error == ENOMEM ? ENOMEM : EIO, "verbs: %s on %s: %s", what, dev->name,
		       vb_reason(error, why, sizeof(why)));
}
