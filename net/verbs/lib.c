/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs itself: opened once, by the versions of its symbols that net/verbs/api.h describes. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "net/verbs/verbs.h"
#include "util/error.h"

/* Never closed: its providers keep state that outlives our last use. */
static struct {
	pthread_once_t once;
	bool loaded;
	struct ib_api api;
	char why[256];
} lib = { .once = PTHREAD_ONCE_INIT };

/* Version 1.0 of most of these has other structs under the same name, so a plain dlsym would be luck. */
static const struct {
	const char *name, *version;
	size_t slot;
	bool optional;
} symbols[] = {
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
	{ "_ibv_query_gid_ex", "IBVERBS_1.11", offsetof(struct ib_api, query_gid_ex), true },
	{ "ibv_reg_dmabuf_mr", "IBVERBS_1.12", offsetof(struct ib_api, reg_dmabuf_mr), true },
};

static void lib_load(void)
{
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	const char *why;

	if (!handle) {
		why = dlerror();
		snprintf(lib.why, sizeof(lib.why),
			 "no libibverbs: %s; install libibverbs1 and ibverbs-providers (rdma-core) to use it",
			 why ? why : "libibverbs.so.1 cannot be opened");
		return;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlvsym(handle, symbols[i].name, symbols[i].version);

		if (!symbol && !symbols[i].optional) {
			snprintf(lib.why, sizeof(lib.why),
				 "libibverbs.so.1 has no %s of version %s; install rdma-core's", symbols[i].name,
				 symbols[i].version);
			return;
		}
		memcpy((char *)&lib.api + symbols[i].slot, &symbol, sizeof(symbol));
	}
	lib.loaded = true;
}

void vb_note(const char *fmt, ...)
{
	char text[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	EP_INFO(EP_NET, "verbs: %s", text);
	ep_last_error_set(text);
}

const struct ib_api *vb_api(void)
{
	pthread_once(&lib.once, lib_load);
	if (lib.loaded)
		return &lib.api;
	vb_note("%s", lib.why);
	return NULL;
}

/* Locked memory, as the kernel counts it: queues of most devices, and everything registered. */
const char *vb_reason(int error, char *text, size_t n)
{
	struct rlimit limit;

	if (error != ENOMEM)
		snprintf(text, n, "%s", strerror(error));
	else if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY)
		snprintf(text, n, "%s; locked memory is not limited here, so NIC or machine have no more",
			 strerror(error));
	else
		snprintf(text, n,
			 "%s; the limit of locked memory (memlock) is %llu KiB: raise it by ulimit -l unlimited",
			 strerror(error), (unsigned long long)limit.rlim_cur / 1024);
	return text;
}

int vb_fail(const struct vb_dev *dev, int error, const char *what)
{
	char why[160];

	return EP_FAIL(EP_NET, error == ENOMEM ? ENOMEM : EIO, "verbs: %s on %s: %s", what, dev->name,
		       vb_reason(error, why, sizeof(why)));
}
