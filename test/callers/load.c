/* SPDX-License-Identifier: Apache-2.0 */
#include "test/callers/load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_ep_ext.h"

struct ep_calls ep;

static struct {
	pthread_mutex_t lock;
	bool tried;
	int rc;
	void *lib;
} loaded = { .lock = PTHREAD_MUTEX_INITIALIZER };

#define X(name) { #name, offsetof(struct ep_calls, name) },
static const struct function {
	const char *name;
	size_t at;
} nine[] = { LOAD_NINE(X) }, others[] = { LOAD_OTHERS(X) };
#undef X

static int find(void *lib, const struct function *list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		void *at = dlsym(lib, list[i].name);

		if (!at) {
			fprintf(stderr, "%s is not found\n", list[i].name);
			return -1;
		}
		memcpy((char *)&ep + list[i].at, &at, sizeof(at));
	}
	return 0;
}

static void *open_te(void)
{
	static const char *const names[] = { "libnccl_ep.so", "libnccl_ep.so.0" };
	const char *home = getenv("NCCL_EP_HOME");
	void *lib = NULL;
	char path[4096];

	for (size_t i = 0; home && !lib && i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/lib/%s", home, names[i]);
		lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	}
	if (!lib)
		fprintf(stderr, "NCCL_EP_HOME is %s: %s\n", home ? home : "not set", home ? dlerror() : "no library");
	return lib;
}

static int use_te(void)
{
	int version = -1;

	loaded.lib = open_te();
	if (!loaded.lib || find(loaded.lib, nine, sizeof(nine) / sizeof(nine[0])))
		return -1;
	if (dlsym(RTLD_DEFAULT, "ncclEpDispatch")) {
		fprintf(stderr, "RTLD_LOCAL, but ncclEpDispatch is in the global scope\n");
		return -1;
	}
	if (ep.ncclEpGetVersion(&version) != ncclSuccess || version < 0 || version / 10000 != 0) {
		fprintf(stderr, "ncclEpGetVersion gives %d\n", version);
		return -1;
	}
	return 0;
}

static int use_python(const char *file)
{
	loaded.lib = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
	if (!loaded.lib) {
		fprintf(stderr, "%s\n", dlerror());
		return -1;
	}
	if (find(loaded.lib, nine, sizeof(nine) / sizeof(nine[0])))
		return -1;
	return find(RTLD_DEFAULT, others, sizeof(others) / sizeof(others[0]));
}

/* Once in a process; file NULL: TransformerEngine's way. */
static int load_once(const char *file)
{
	pthread_mutex_lock(&loaded.lock);
	if (!loaded.tried)
		loaded.rc = file ? use_python(file) : use_te();
	loaded.tried = true;
	pthread_mutex_unlock(&loaded.lock);
	return loaded.rc;
}

int load_te(void)
{
	return load_once(NULL);
}

int load_python(const char *file)
{
	return load_once(file);
}

/* ---- what the tests' own shim needs of the library, from the same copy ---- */

static void *extension(const char *name)
{
	return loaded.lib ? dlsym(loaded.lib, name) : NULL;
}

const char *load_error(void)
{
	const char *(*get)(void);

	*(void **)(void *)&get = extension("anyEpGetLastError");
	return get ? get() : "";
}

const char *anyEpGetLastError(void)
{
	return load_error();
}

ncclResult_t anyEpHostStreamCreate(cudaStream_t *stream)
{
	ncclResult_t (*call)(cudaStream_t *);

	*(void **)(void *)&call = extension("anyEpHostStreamCreate");
	return call ? call(stream) : ncclInvalidUsage;
}

ncclResult_t anyEpHostStreamSynchronize(cudaStream_t stream)
{
	ncclResult_t (*call)(cudaStream_t);

	*(void **)(void *)&call = extension("anyEpHostStreamSynchronize");
	return call ? call(stream) : ncclInvalidUsage;
}

ncclResult_t anyEpHostStreamDestroy(cudaStream_t stream)
{
	ncclResult_t (*call)(cudaStream_t);

	*(void **)(void *)&call = extension("anyEpHostStreamDestroy");
	return call ? call(stream) : ncclInvalidUsage;
}
