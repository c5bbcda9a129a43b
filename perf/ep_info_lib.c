/* SPDX-License-Identifier: Apache-2.0 */
/* Which libraries this library, TransformerEngine, torch and Python's nccl.ep would load here. */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "perf/ep_info.h"

/* What one library is, as a process of its own finds it: two libnccl in this one would be what it warns of. */
struct found {
	bool there;
	char path[PATH_MAX];
	int version; /* or 0 */
};

/* By the type that they have: UBSan ends a program that calls them by another one, int for an enum. */
int ep_info_version(void *dl, const char *name)
{
	ncclResult_t (*get)(int *);
	int version = 0;

	*(void **)&get = dlsym(dl, name);
	return get && get(&version) == ncclSuccess ? version : 0;
}

static void library_open(const char *name, const char *version_fn, struct found *out)
{
	void *dl = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
	struct link_map *map = NULL;

	if (!dl)
		return;
	out->there = true;
	if (!dlinfo(dl, RTLD_DI_LINKMAP, &map) && !realpath(map->l_name, out->path))
		snprintf(out->path, sizeof(out->path), "%s", map->l_name);
	if (version_fn)
		out->version = ep_info_version(dl, version_fn);
}

/* In a child: a library may print, start threads, or crash in its constructors. */
static void library_find(const char *name, const char *version_fn, struct found *out)
{
	int fd[2], status;
	pid_t child;

	memset(out, 0, sizeof(*out));
	if (pipe(fd))
		return;
	fflush(NULL); /* or the child may print it again */
	child = fork();
	if (!child) {
		library_open(name, version_fn, out);
		_exit(write(fd[1], out, sizeof(*out)) != sizeof(*out));
	}
	close(fd[1]);
	if (child < 0 || read(fd[0], out, sizeof(*out)) != sizeof(*out))
		memset(out, 0, sizeof(*out));
	close(fd[0]);
	if (child > 0)
		waitpid(child, &status, 0);
}

/* As NCCL and NCCL EP write theirs. */
static void version_text(int code, char *out, size_t size)
{
	if (code >= 10000)
		snprintf(out, size, "%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
	else
		snprintf(out, size, code ? "0.%d.%d" : "version not known", code / 100, code % 100);
}

static void library_tell(const char *label, const char *name, const char *version_fn, struct found *f)
{
	char version[32];

	library_find(name, version_fn, f);
	version_text(f->version, version, sizeof(version));
	if (!f->there)
		ep_info_fact("libraries", label, "not found");
	else if (version_fn)
		ep_info_fact("libraries", label, "%s, %s", version, f->path);
	else
		ep_info_fact("libraries", label, "%s", f->path);
}

/* Which files Python's packages bring, without importing them: torch takes seconds. */
static const char python[] = "import importlib.util as u, importlib.metadata as m, os\n"
			     "def where(n):\n"
			     "    try:\n"
			     "        s = u.find_spec(n)\n"
			     "    except Exception:\n"
			     "        s = None\n"
			     "    return list(s.submodule_search_locations or []) if s else []\n"
			     "for p in where('nvidia.nccl'):\n"
			     "    f = os.path.join(p, 'lib', 'libnccl.so.2')\n"
			     "    print('nccl', f) if os.path.exists(f) else None\n"
			     "for p in where('torch'):\n"
			     "    f = os.path.join(p, 'lib', 'libnccl.so.2')\n"
			     "    print('nccl', f) if os.path.exists(f) else None\n"
			     "    print('torch', p)\n"
			     "for p in where('nccl_ep'):\n"
			     "    print('nccl_ep', p)\n"
			     "for n in ('torch', 'nccl-extensions', 'transformer-engine'):\n"
			     "    try:\n"
			     "        print('version', n, m.version(n))\n"
			     "        [print('requires', n, r) for r in m.requires(n) or [] if 'nccl' in r]\n"
			     "    except Exception:\n"
			     "        pass\n";

static void python_line(char *line, char *nccl, size_t size)
{
	char *space = strchr(line, ' ');

	line[strcspn(line, "\n")] = 0;
	if (!space)
		return;
	*space = 0;
	ep_info_fact("Python", line, "%s", space + 1);
	if (!strcmp(line, "nccl") && !realpath(space + 1, nccl))
		snprintf(nccl, size, "%s", space + 1);
}

void ep_info_python_nccl(char *nccl, size_t size)
{
	char line[PATH_MAX + 64], *command;
	FILE *f;

	nccl[0] = 0;
	if (asprintf(&command, "python3 -c \"%s\" 2>/dev/null", python) < 0)
		return;
	f = popen(command, "re");
	free(command);
	while (f && fgets(line, sizeof(line), f))
		python_line(line, nccl, size);
	if (f && pclose(f))
		ep_info_fact("Python", "none", "no python3");
}

static void home_tell(void)
{
	const char *home = getenv("NCCL_EP_HOME");
	char path[PATH_MAX];
	struct found f;

	library_tell("libnccl_ep, linker's", "libnccl_ep.so.0", "ncclEpGetVersion", &f);
	if (!home || !*home)
		return;
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s/libnccl_ep.so.0", home, i ? "lib64" : "lib");
		if (access(path, R_OK))
			continue;
		library_tell("libnccl_ep, NCCL_EP_HOME", path, "ncclEpGetVersion", &f);
		return;
	}
	ep_info_find(EP_INFO_ERROR, "set NCCL_EP_HOME to the folder above lib/libnccl_ep.so.0, or unset it",
		     "NCCL_EP_HOME is %s, where there is no lib/libnccl_ep.so.0: TransformerEngine and Python find "
		     "none",
		     home);
}

void ep_info_libraries(void)
{
	struct found nccl, f;
	char bundled[PATH_MAX];

	library_tell("libcuda", "libcuda.so.1", NULL, &f);
	library_tell("libibverbs", "libibverbs.so.1", NULL, &f);
	library_tell("libfabric", "libfabric.so.1", NULL, &f);
	library_tell("libnccl, linker's", "libnccl.so.2", "ncclGetVersion", &nccl);
	home_tell();
	ep_info_python_nccl(bundled, sizeof(bundled));
	if (nccl.there && *bundled && strcmp(bundled, nccl.path))
		ep_info_find(EP_INFO_WARNING,
			     "take one libnccl.so.2 out of LD_LIBRARY_PATH or ld.so.conf, so that torch's is the only "
			     "one",
			     "two libnccl: torch loads %.150s, a program that links NCCL %.150s; both in one process, "
			     "and "
			     "a communicator of one is given to the other",
			     bundled, nccl.path);
}
