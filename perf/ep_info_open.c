/* SPDX-License-Identifier: Apache-2.0 */
/* Opens what a program here would use: NCCL or the stand-in, libnccl_ep, and the self-test that calls both. */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf/ep_info.h"
#include "perf/ep_info_check.h"

/* Beside ep_info: where it is installed, in the Python package, in a build. */
static const char *const beside_nccl[] = { "../" EP_LIBDIR "/nccl_ep_standin/libnccl.so.2",
					   "../lib/libnccl_ep_standin.so", "../plugin/libnccl.so.2", NULL };
static const char *const beside_ep[] = { "../" EP_LIBDIR "/libnccl_ep.so.0", "../lib/libnccl_ep.so.0",
					 "../plugin/libnccl_ep.so.0", NULL };
static const char *const beside_check[] = { "ep_check.so", "../" EP_LIBDIR "/nccl_ep/ep_check.so", NULL };

struct library {
	const char *name; /* for the linker */
	const char *const *beside;
	const char *remedy; /* where there is none */
};

static const struct library nccl_library = { "libnccl.so.2", beside_nccl,
					     "install ep_info with its stand-in (ninja install), or NCCL" };
static const struct library ep_library = { "libnccl_ep.so.0", beside_ep,
					   "set NCCL_EP_HOME to the folder above lib/libnccl_ep.so.0, or install it" };

static int fail(struct ep_check_rank *out, const char *remedy, const char *what)
{
	snprintf(out->error, sizeof(out->error), "%s", what);
	snprintf(out->remedy, sizeof(out->remedy), "%s", remedy);
	return -1;
}

/* Into the scope of every later library, as if the program had linked it. NULL: it is broken, and out says so. */
static void *file_open(const char *path, struct ep_check_rank *out)
{
	void *dl = dlopen(path, RTLD_NOW | RTLD_GLOBAL);

	if (!dl)
		fail(out, "reinstall that file, or take its folder out of LD_LIBRARY_PATH and NCCL_EP_HOME", dlerror());
	return dl;
}

/* 1: found and opened or broken; *dl says which. 0: no such file. */
static int path_try(const char *folder, const char *name, struct ep_check_rank *out, void **dl)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	if (access(path, F_OK))
		return 0;
	*dl = file_open(path, out);
	return 1;
}

static int home_try(struct ep_check_rank *out, void **dl)
{
	const char *home = getenv("NCCL_EP_HOME");

	return home && *home &&
	       (path_try(home, "lib/libnccl_ep.so.0", out, dl) || path_try(home, "lib64/libnccl_ep.so.0", out, dl));
}

static int listed_try(const char *name, struct ep_check_rank *out, void **dl)
{
	const char *list = getenv("LD_LIBRARY_PATH");
	char folder[PATH_MAX];

	while (list && *list) {
		size_t n = strcspn(list, ":;");

		snprintf(folder, sizeof(folder), "%.*s", (int)n, list);
		if (n && path_try(folder, name, out, dl))
			return 1;
		list += n + (list[n] != 0);
	}
	return 0;
}

static int beside_try(const char *const *names, struct ep_check_rank *out, void **dl)
{
	char folder[PATH_MAX] = "";
	ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
	char *end = n > 0 ? strrchr(folder, '/') : NULL;

	if (!end)
		return 0;
	*end = 0;
	for (; *names; names++)
		if (path_try(folder, *names, out, dl))
			return 1;
	return 0;
}

/* LD_LIBRARY_PATH, then what came with ep_info, then the linker's: the order of a program that was linked to it. */
static void *library_open(const struct library *library, struct ep_check_rank *out)
{
	void *dl = NULL;

	if (listed_try(library->name, out, &dl) || beside_try(library->beside, out, &dl))
		return dl;
	dl = dlopen(library->name, RTLD_NOW | RTLD_GLOBAL);
	if (!dl)
		fail(out, library->remedy, dlerror());
	return dl;
}

static void path_of(void *dl, char *out)
{
	struct link_map *map = NULL;
	char path[PATH_MAX];

	if (dlinfo(dl, RTLD_DI_LINKMAP, &map))
		return;
	snprintf(out, EP_CHECK_PATH, "%.*s", EP_CHECK_PATH - 1, realpath(map->l_name, path) ? path : map->l_name);
}

/* With a GPU that of a job, which is the linker's or that of Python's packages; the stand-in where there is none. */
static void *nccl_open(bool gpu, struct ep_check_rank *out)
{
	char bundled[PATH_MAX] = "";
	void *dl = gpu ? dlopen(nccl_library.name, RTLD_NOW | RTLD_GLOBAL) : NULL;

	if (gpu && !dl)
		ep_info_python_nccl(bundled, sizeof(bundled));
	if (!dl && *bundled)
		return file_open(bundled, out);
	return dl ? dl : library_open(&nccl_library, out);
}

int ep_info_open(bool gpu, struct ep_check_rank *out, ep_check_fn *run)
{
	void *nccl, *ep = NULL, *check = NULL;

	out->phase = EP_CHECK_LIBRARIES;
	nccl = nccl_open(gpu, out);
	if (!nccl)
		return -1;
	path_of(nccl, out->nccl);
	out->nccl_version = ep_info_version(nccl, "ncclGetVersion");
	if (!home_try(out, &ep))
		ep = library_open(&ep_library, out);
	if (!ep)
		return -1;
	path_of(ep, out->ep);
	out->ep_version = ep_info_version(ep, "ncclEpGetVersion");
	out->anyep_version = ep_info_version(ep, "anyEpGetVersion");
	if (!beside_try(beside_check, out, &check))
		return fail(out, "install ep_info with ep_check.so (ninja install)", "ep_check.so is not beside it");
	if (!check)
		return -1;
	*(void **)run = dlsym(check, EP_CHECK_SYMBOL);
	return *run ? 0 : fail(out, "reinstall ep_info", dlerror());
}
