/* SPDX-License-Identifier: Apache-2.0 */
/* libfabric itself, loaded at run time. */
#include <pthread.h>
#include <stdio.h>

#include "net/base/lib.h"
#include "net/fabric/fabric.h"
#include "util/error.h"

#define API_OLDEST OFI_VERSION(1, 9)  /* device memory */
#define API_NEWEST OFI_VERSION(1, 20) /* dma-bufs; newer libraries provide this version on request */
/* Loaded once per process. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ep_base_lib lib = { .net = "fabric", .file = "libfabric.so.1", .remedy = "install libfabric1" };
static struct ofi_api api;

static const struct ep_base_symbol symbols[] = {
#define SYMBOL(name) { #name, NULL, offsetof(struct ofi_api, name), false }
	SYMBOL(fi_version), SYMBOL(fi_getinfo), SYMBOL(fi_freeinfo),
	SYMBOL(fi_dupinfo), SYMBOL(fi_fabric),	SYMBOL(fi_strerror),
#undef SYMBOL
};

static void lib_load(void)
{
	uint32_t version;

	ep_base_lib_load(&lib, symbols, sizeof(symbols) / sizeof(symbols[0]), &api);
	if (!lib.loaded)
		return;
	version = api.fi_version();
	lib.loaded = version >= API_OLDEST;
	if (!lib.loaded)
		snprintf(lib.why, sizeof(lib.why), "libfabric %u.%u is too old; 1.9 is needed", version >> 16,
			 version & 0xffff);
}

const struct ofi_api *fab_api(void)
{
	pthread_once(&once, lib_load);
	return ep_base_lib_check(&lib) ? &api : NULL;
}

uint32_t fab_version(void)
{
	uint32_t version = api.fi_version();

	return version < API_NEWEST ? version : API_NEWEST;
}

int fab_fail(const struct fab_dev *dev, ssize_t rc, const char *what)
{
	const struct ofi_info *info = dev->info;
	int error = rc == -ENOMEM ? ENOMEM : EIO;

	return EP_FAIL(EP_NET, error, "fabric: %s on %s of provider %s: %s%s", what, info->domain_attr->name,
		       info->fabric_attr->prov_name, api.fi_strerror((int)-rc),
		       error == ENOMEM ? "; raise the locked memory limit (ulimit -l)" : "");
}
