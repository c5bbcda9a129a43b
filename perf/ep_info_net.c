/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/dev.h"
#include "net/net.h"
#include "perf/ep_info.h"
#include "plugin/link/nic.h"
#include "util/error.h"
#include "util/param.h"

/* The log, in memory, and how much of it was printed. */
static int log_fd = -1;
static off_t log_at;

void ep_info_listen(void)
{
	static const char *const names[] = { "NCCL_EP_DEBUG", "NCCL_EP_DEBUG_FILE", "NCCL_EP_DEBUG_SUBSYS" };
	const char *saved[3];
	char path[32];

	log_fd = memfd_create("ep_info", MFD_CLOEXEC);
	if (log_fd < 0)
		return;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", log_fd);
	for (int i = 0; i < 3; i++)
		saved[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
	setenv(names[0], "INFO", 1);
	setenv(names[1], path, 1);
	setenv(names[2], "NET", 1);
	ep_log_on(EP_LOG_INFO, EP_NET); /* reads them, once; they are restored below */
	for (int i = 0; i < 3; i++) {
		if (saved[i])
			setenv(names[i], saved[i], 1);
		else
			unsetenv(names[i]);
		free((void *)saved[i]);
	}
}

/* Without the prefix up to " NET " and the source location at the end. */
static void line_print(char *line)
{
	char *text = strstr(line, " NET "), *end = strrchr(line, '(');

	if (!text || !strncmp(text + 5, "transport ", 10))
		return; /* the registry's own lines: the table has them */
	if (end && end > line && end[-1] == ' ')
		end[-1] = 0;
	printf("#     %s\n", text + 5);
}

static void log_print(void)
{
	static char text[65536];
	ssize_t n = log_fd < 0 ? 0 : pread(log_fd, text, sizeof(text) - 1, log_at);
	char *save = NULL;

	if (n <= 0)
		return;
	log_at += n;
	text[n] = 0;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		line_print(line);
}

static void device_print(const struct ep_net *net, int dev)
{
	ncclEpNetProperties_v1_t p;
	char flow[32] = "-", speed[16] = "-";

	if (net->ops.getProperties(net->net, dev, &p)) {
		printf("#     device %d: %s\n", dev, ep_last_error());
		return;
	}
	if (p.lowLatency.maxBytes || p.lowLatency.maxPuts)
		snprintf(flow, sizeof(flow), "%llu/%u", (unsigned long long)p.lowLatency.maxBytes >> 10,
			 p.lowLatency.maxPuts);
	if (p.speed)
		snprintf(speed, sizeof(speed), "%u", p.speed / 1000);
	printf("  %-20s %-10s %-5s %7u %11s %6s %-10s  %s\n", p.name, p.ordered ? "ordered" : "unordered",
	       p.memKinds & ~NCCL_EP_NET_MEM_HOST ? "GPUs" : "host", p.maxInline, flow, speed,
	       p.linkLayer ? ep_nic_layer(p.linkLayer) : "-", p.pciPath ? p.pciPath : "-");
}

static void net_print(const char *spec)
{
	struct ep_net *net;
	int count = 0, rc = ep_net_try(spec, &net, NULL);

	printf("# %s%s%s\n", spec, rc ? ": " : "", rc ? ep_last_error() : "");
	if (!rc) {
		net->ops.devices(net->net, &count);
		for (int i = 0; i < count; i++)
			device_print(net, i);
		ep_net_close(net);
	}
	log_print();
}

/* Each device, and why a rank at this place would take it or not. */
static void verdicts_print(const struct ep_net *net, const struct ep_spot *place)
{
	struct ep_nic_dev *devs;
	int count;

	if (ep_nic_devs(net, &devs, &count))
		return;
	ep_nics_judge(place, devs, count);
	for (int i = 0; i < count && count > 1; i++)
		printf("#     %s %s: %s\n", devs[i].taken ? "+" : "-", devs[i].place.name, devs[i].why);
	free(devs);
}

/* The first candidate that opens, for one rank on this host; remote: with ranks on other hosts. */
static void choice_print(const struct ep_spot *place, bool remote)
{
	char list[EP_NET_SPEC_MAX], spec[EP_NET_SPEC_MAX];
	const char *rest = list, *where = remote ? "ranks on several hosts" : "all ranks on this host";
	ncclEpNetProperties_v1_t p;
	struct ep_nic_pick pick;
	struct ep_nics nics;
	struct ep_net *net;

	printf("  %-10s %-24s ", place->name, where);
	if (ep_net_list(NULL, list)) {
		printf("none: %s\n", ep_last_error());
		return;
	}
	while (ep_net_next(&rest, spec)) {
		if ((remote && ep_net_is_local(spec)) || ep_net_try(spec, &net, NULL))
			continue;
		if (!ep_nics_find(net, place, &nics)) {
			ep_nic_choose(&nics.card, 1, 0, &pick);
			printf("%s:", spec);
			for (int k = 0; k < pick.count; k++)
				if (!net->ops.getProperties(net->net, nics.dev[pick.at[k]], &p))
					printf("%s%s", k ? "+" : " ", p.name);
			printf(" (%s)\n", nics.why);
			if (remote)
				verdicts_print(net, place);
			ep_net_close(net);
			return;
		}
		ep_net_close(net);
	}
	printf("none\n");
}

static void kind_print(enum ep_dev_kind kind)
{
	const struct ep_dev_ops *row = ep_dev_row(kind);
	struct ep_spot place;
	struct ep_dev *dev;
	char name[24];
	int count = 0;

	if (row->count(&count))
		return;
	for (int i = 0; i < count; i++) {
		if (row->open(i, &dev))
			continue;
		snprintf(name, sizeof(name), "%s %d", row->name, i);
		if (kind == EP_DEV_HOST)
			ep_spot_cpus("the CPU", &place);
		else
			ep_spot_read(name, dev->pci, -1, &place);
		row->close(dev);
		choice_print(&place, false);
		choice_print(&place, true);
	}
}

void ep_info_nets(void)
{
	char list[EP_NET_SPEC_MAX] = "", spec[EP_NET_SPEC_MAX];
	const char *rest = list;

	printf("#\n# %-20s %-10s %-5s %7s %11s %6s %-10s  %s\n", "transport, devices", "order", "mem", "inline",
	       "in flight", "speed", "layer", "PCI path");
	printf("# %-20s %-10s %-5s %7s %11s %6s\n", "", "", "", "(B)", "LL (KiB/n)", "(Gb/s)");
	log_print();
	if (ep_net_list("", list))
		printf("# %s\n", ep_last_error());
	while (ep_net_next(&rest, spec))
		net_print(spec);
	rest = ep_param_str(EP_P_NET);
	for (rest += *rest == '^' ? strlen(rest) : 0; ep_net_next(&rest, spec);)
		net_print(spec);
	printf("#\n# %-10s %-24s %s\n", "a rank on", "with", "would use");
	for (int k = 0; k < EP_DEV_KINDS; k++)
		kind_print((enum ep_dev_kind)k);
}

/* ---- for the verdict ---- */

#define PROBE_BYTES (16u << 20)
#define PROBE_MS 5000

/* A group of this rank alone: connect is asked until it has a comm. */
static int probe_connect(const struct ep_net *net, int dev, void **comm)
{
	static char handle[NCCL_EP_NET_HANDLE_SIZE];
	void *listener = NULL;
	int rc = net->ops.listen(net->net, dev, 1, handle, &listener);

	if (rc)
		return rc;
	for (int i = 0; !rc && !*comm && i < PROBE_MS; i++) {
		rc = net->ops.connect(listener, handle, 1, 0, comm);
		if (!rc && !*comm)
			usleep(1000);
	}
	net->ops.closeListen(listener);
	return rc || *comm ? rc : -ETIMEDOUT;
}

/* Memory of a group is registered with the device: a limit of locked memory shows here, and nowhere before. */
static int device_probe(const struct ep_net *net, int dev)
{
	static char key[NCCL_EP_NET_KEY_SIZE];
	ncclEpNetMem_v1_t mem = { .ptr = MAP_FAILED, .size = PROBE_BYTES, .kind = NCCL_EP_NET_MEM_HOST };
	void *comm = NULL, *mr = NULL;
	int rc = probe_connect(net, dev, &comm);

	mem.fd = memfd_create("ep_info", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (mem.fd >= 0 && !ftruncate(mem.fd, PROBE_BYTES) && !fcntl(mem.fd, F_ADD_SEALS, F_SEAL_SHRINK))
		mem.ptr = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, mem.fd, 0);
	if (!rc && mem.ptr == MAP_FAILED)
		rc = -ENOMEM;
	if (!rc && !(rc = net->ops.regMr(comm, &mem, key, &mr)))
		net->ops.deregMr(comm, mr);
	if (comm)
		net->ops.closeComm(comm);
	if (mem.ptr != MAP_FAILED)
		munmap(mem.ptr, PROBE_BYTES);
	if (mem.fd >= 0)
		close(mem.fd);
	return rc;
}

/* The first candidate that has a device and cannot be used. */
struct vain {
	int rc;
	char spec[EP_NET_SPEC_MAX], why[512];
};

/* Whether a job would use this candidate. One that fails a job's first steps is passed over, as a job does. */
static bool candidate_try(const char *spec, struct vain *vain)
{
	struct ep_net *net;
	int rc;

	if (ep_net_try(spec, &net, NULL))
		return false;
	rc = device_probe(net, 0);
	if (rc && !vain->rc) {
		vain->rc = rc;
		snprintf(vain->spec, sizeof(vain->spec), "%s", spec);
		snprintf(vain->why, sizeof(vain->why), "%s", *ep_last_error() ? ep_last_error() : strerror(-rc));
	}
	ep_net_close(net);
	return !rc;
}

/* used: what jobs fall back to; NULL: nothing. */
static void vain_find(const struct vain *vain, const char *used)
{
	char then[80] = "fail";

	if (used)
		snprintf(then, sizeof(then), "use %.64s", used);
	ep_info_find(used ? EP_INFO_WARNING : EP_INFO_ERROR,
		     vain->rc == -ENOMEM ? "raise the limit of locked memory: ulimit -l unlimited (--ulimit memlock=-1)"
					 : "see the message of the transport, or leave it out: NCCL_EP_NET=^NAME",
		     "%.64s has a device, but cannot register 16 MiB: jobs across hosts %s: %s", vain->spec, then,
		     vain->why);
}

/* Inside a host ranks map each other's memory and need none. */
void ep_info_transports(void)
{
	char list[EP_NET_SPEC_MAX], spec[EP_NET_SPEC_MAX];
	const char *rest = list;
	struct vain vain = { 0 };
	bool local = false, found = false;

	if (ep_net_list(NULL, list)) {
		ep_info_find(EP_INFO_ERROR, "unset NCCL_EP_NET, or name a transport that ep_info -n shows",
			     "NCCL_EP_NET=%s: %s", ep_param_str(EP_P_NET), ep_last_error());
		return;
	}
	while (!found && ep_net_next(&rest, spec)) {
		local |= ep_net_is_local(spec);
		found = !ep_net_is_local(spec) && candidate_try(spec, &vain);
	}
	ep_info_fact("transports", "ranks of several hosts", "%s%s",
		     found     ? spec
		     : vain.rc ? vain.spec
			       : "none",
		     !found && vain.rc ? ", in vain" : "");
	if (vain.rc)
		vain_find(&vain, found ? spec : NULL);
	else if (!found)
		ep_info_find(local ? EP_INFO_WARNING : EP_INFO_ERROR,
			     "for several hosts install libibverbs and an RDMA NIC, or libfabric",
			     "none of %s reaches other hosts%s", list, local ? ": jobs of one host run" : "");
}
