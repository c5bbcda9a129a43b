/* SPDX-License-Identifier: Apache-2.0 */
/* The machine as a job finds it: limits, CPUs, kernel modules, RDMA devices as sysfs has them. */
#include <dirent.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "perf/ep_info.h"

#define PATH_BYTES 512 /* of a folder; files there have short names */

static bool line_read(const char *path, char *out, size_t size)
{
	FILE *f = fopen(path, "re");
	bool ok = f && fgets(out, (int)size, f);

	if (f)
		fclose(f);
	if (ok)
		out[strcspn(out, "\n")] = 0;
	return ok;
}

static void limit_tell(const char *name, int what, rlim_t unit, const char *unit_name)
{
	struct rlimit limit;

	if (getrlimit(what, &limit))
		return;
	if (limit.rlim_cur == RLIM_INFINITY)
		ep_info_fact("host", name, "unlimited");
	else
		ep_info_fact("host", name, "%llu%s", (unsigned long long)(limit.rlim_cur / unit), unit_name);
}

static void cpus_tell(void)
{
	cpu_set_t mine;

	if (!sched_getaffinity(0, sizeof(mine), &mine))
		ep_info_fact("host", "CPUs", "%d of %ld", CPU_COUNT(&mine), sysconf(_SC_NPROCESSORS_ONLN));
}

static void shm_tell(void)
{
	struct statvfs fs;

	if (statvfs("/dev/shm", &fs)) {
		ep_info_fact("host", "/dev/shm", "not there");
		return;
	}
	ep_info_fact("host", "/dev/shm", "%llu MiB", (unsigned long long)fs.f_blocks * fs.f_frsize >> 20);
	if ((unsigned long long)fs.f_blocks * fs.f_frsize < 64ull << 20)
		ep_info_find(EP_INFO_WARNING,
			     "give the container more shared memory (--shm-size=1g, or an emptyDir of "
			     "medium Memory at /dev/shm)",
			     "/dev/shm is smaller than 64 MiB: this library does not use it, NCCL itself does");
}

/* A NIC reaches a GPU's memory by one of the two. */
static void direct_tell(void)
{
	struct utsname name;
	unsigned major = 0, minor = 0;
	bool peermem = !access("/sys/module/nvidia_peermem", F_OK), dmabuf;

	uname(&name);
	sscanf(name.release, "%u.%u", &major, &minor);
	dmabuf = major > 5 || (major == 5 && minor >= 12);
	ep_info_fact("host", "kernel", "%s", name.release);
	ep_info_fact("host", "nvidia_peermem", "%s", peermem ? "loaded" : "not loaded");
	ep_info_fact("host", "dma-buf", "%s", dmabuf ? "the kernel has it" : "the kernel is older than 5.12");
}

void ep_info_host(void)
{
	direct_tell();
	cpus_tell();
	limit_tell("locked memory", RLIMIT_MEMLOCK, 1024, " KiB");
	limit_tell("open files", RLIMIT_NOFILE, 1, "");
	shm_tell();
}

/* ---- RDMA devices ---- */

static void link_name(const char *path, char *out, size_t size)
{
	char target[PATH_BYTES];
	ssize_t n = readlink(path, target, sizeof(target) - 1);

	target[n > 0 ? n : 0] = 0;
	snprintf(out, size, "%s", n > 0 ? strrchr(target, '/') + 1 : "?");
}

/* How many GIDs are set, and the first of RoCE v2. */
static void gids_tell(const char port[PATH_BYTES], char *out, size_t size)
{
	char path[PATH_BYTES + 64], gid[64], type[64];
	int set = 0, v2 = -1;

	for (int i = 0; i < 256; i++) {
		snprintf(path, sizeof(path), "%s/gids/%d", port, i);
		if (!line_read(path, gid, sizeof(gid)))
			break;
		if (!strcmp(gid, "0000:0000:0000:0000:0000:0000:0000:0000"))
			continue;
		set++;
		snprintf(path, sizeof(path), "%s/gid_attrs/types/%d", port, i);
		if (v2 < 0 && line_read(path, type, sizeof(type)) && !strcmp(type, "RoCE v2"))
			v2 = i;
	}
	if (v2 < 0)
		snprintf(out, size, "%d GIDs", set);
	else
		snprintf(out, size, "%d GIDs, RoCE v2 from index %d", set, v2);
}

static void port_tell(const char *device, const char *folder, const char *number, bool *active)
{
	char port[PATH_BYTES], path[PATH_BYTES + 64], state[64] = "?", rate[64] = "?", layer[32] = "?", gids[64];
	char driver[64], name[48];

	snprintf(port, sizeof(port), "%s/ports/%.16s", folder, number);
	snprintf(path, sizeof(path), "%s/state", port);
	line_read(path, state, sizeof(state));
	snprintf(path, sizeof(path), "%s/rate", port);
	line_read(path, rate, sizeof(rate));
	snprintf(path, sizeof(path), "%s/link_layer", port);
	line_read(path, layer, sizeof(layer));
	snprintf(path, sizeof(path), "%s/device/driver", folder);
	link_name(path, driver, sizeof(driver));
	gids_tell(port, gids, sizeof(gids));
	*active |= strstr(state, "ACTIVE") != NULL;
	snprintf(name, sizeof(name), "%.40s:%.4s", device, number);
	ep_info_fact("RDMA devices", name, "%s, %s, %s, driver %s, %s", state, rate, layer, driver, gids);
}

static int device_tell(const char *device, bool *active)
{
	char folder[PATH_BYTES / 2], path[PATH_BYTES];
	struct dirent *entry;
	DIR *dir;

	snprintf(folder, sizeof(folder), "/sys/class/infiniband/%.64s", device);
	snprintf(path, sizeof(path), "%s/ports", folder);
	dir = opendir(path);
	if (!dir)
		return 0;
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			port_tell(device, folder, entry->d_name, active);
	closedir(dir);
	return 1;
}

void ep_info_rdma(void)
{
	DIR *dir = opendir("/sys/class/infiniband");
	struct rlimit limit;
	struct dirent *entry;
	bool active = false;
	int n = 0;

	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			n += device_tell(entry->d_name, &active);
	if (dir)
		closedir(dir);
	if (!n) {
		ep_info_fact("RDMA devices", "none", "the kernel has no RDMA device");
		return;
	}
	if (!active)
		ep_info_find(EP_INFO_WARNING, "bring a port up: ip link, cables, or a subnet manager on InfiniBand",
			     "no RDMA port is ACTIVE");
	if (access("/dev/infiniband", R_OK | X_OK))
		ep_info_find(EP_INFO_WARNING, "pass /dev/infiniband to the container",
			     "the kernel has RDMA devices, "
			     "but /dev/infiniband is not in this container");
	if (!getrlimit(RLIMIT_MEMLOCK, &limit) && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < 64u << 20)
		ep_info_find(EP_INFO_WARNING, "ulimit -l unlimited (--ulimit memlock=-1, or LimitMEMLOCK=infinity)",
			     "locked memory is limited to %llu KiB: RDMA devices register memory",
			     (unsigned long long)limit.rlim_cur >> 10);
}
