/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "net/table.h"
#include "util/error.h"

#define NAME_MAX_LEN 512
/* Never unloaded: its threads may outlive the last close, and ranks of one process open and close concurrently. */
#define MODE (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)

static void *library_open(const char *x)
{
	char name[NAME_MAX_LEN + 32], why[256];
	void *library = dlopen(x, MODE);
	const char *error;

	if (library)
		return library;
	error = dlerror();
	snprintf(why, sizeof(why), "%s", error ? error : "no reason given");
	snprintf(name, sizeof(name), "libnccl_ep_net-%s.so", x);
	library = dlopen(name, MODE);
	if (!library) {
		error = dlerror();
		EP_WARN(EP_NET, "NCCL_EP_NET_PLUGIN: cannot load %s (%s) or %s (%s)", x, why, name,
			error ? error : "no reason given");
	}
	return library;
}

int ep_net_load(const char *x, const ncclEpNet_v1_t **ops, void **library)
{
	const ncclEpNet_v1_t *table;
	void *opened;

	if (strlen(x) > NAME_MAX_LEN) {
		EP_WARN(EP_NET, "NCCL_EP_NET_PLUGIN: skipping a name of %zu characters", strlen(x));
		return -ENOENT;
	}
	opened = library_open(x);
	if (!opened)
		return -ENOENT;
	table = dlsym(opened, NCCL_EP_NET_SYMBOL);
	if (!table) {
		EP_WARN(EP_NET, "NCCL_EP_NET_PLUGIN: skipping %s: no symbol " NCCL_EP_NET_SYMBOL, x);
		goto close_library;
	}
	if (table->version != NCCL_EP_NET_VERSION || table->size != sizeof(*table)) {
		EP_WARN(EP_NET, "NCCL_EP_NET_PLUGIN: skipping %s: table version %u of %u bytes; expected %u of %zu", x,
			table->version, table->size, NCCL_EP_NET_VERSION, sizeof(*table));
		goto close_library;
	}
	if (!table->name || !table->name[0] || !table->hot) {
		EP_WARN(EP_NET, "NCCL_EP_NET_PLUGIN: skipping %s: its table has no name or no hot operations", x);
		goto close_library;
	}
	*ops = table;
	*library = opened;
	return 0;

close_library:
	dlclose(opened);
	return -ENOENT;
}
