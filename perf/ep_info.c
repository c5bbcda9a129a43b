/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the version, what the library finds on this machine, and its parameters; comment lines start with #. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/dev.h"
#include "nccl_ep.h"
#include "perf/ep_info.h"
#include "plugin/boot/boot.h"
#include "util/error.h"
#include "util/param.h"
#include "util/sock.h"

static const char *const type_names[] = { [EP_T_INT] = "int", [EP_T_BOOL] = "bool", [EP_T_STR] = "string" };

static void print_version(void)
{
	int code = 0;

	ncclEpGetVersion(&code);
	printf("# ep_info " EP_VERSION ": libnccl_ep version code %d, API version %d\n", code, NCCL_EP_API_VERSION);
}

static void print_devices(void)
{
	printf("#\n# %-8s %5s  %s\n", "device", "count", "why not");
	for (int k = 0; k < EP_DEV_KINDS; k++) {
		const struct ep_dev_ops *row = ep_dev_row((enum ep_dev_kind)k);
		int count = 0, rc = row->count(&count);

		printf("  %-8s %5d  %s\n", row->name, rc ? 0 : count, rc ? ep_last_error() : "-");
	}
}

/* What tells GPUs apart between processes, and how much of each this one may use. */
static void print_gpus(enum ep_dev_kind kind)
{
	const struct ep_dev_ops *row = ep_dev_row(kind);
	struct ep_dev *dev;
	int count = 0;

	if (kind == EP_DEV_HOST || row->count(&count) || !count)
		return;
	printf("#\n# %-8s %-32s %-14s %8s %8s\n", row->name, "UUID", "PCI address", "SMs seen", "of");
	for (int i = 0; i < count; i++) {
		const char *bus;

		if (row->open(i, &dev)) {
			printf("  %-8d %s\n", i, ep_last_error());
			continue;
		}
		bus = strrchr(dev->pci, '/');
		printf("  %-8d ", i);
		for (size_t b = 0; b < sizeof(dev->uuid); b++)
			printf("%02x", dev->uuid[b]);
		printf(" %-14s %8u %8u\n", bus ? bus + 1 : "?", dev->sms, dev->sms_all);
		row->close(dev);
	}
}

/* The address at which other processes would reach the bootstrap of this one. */
static void print_addresses(void)
{
	union ep_sockaddr addr[EP_BOOT_ADDRS];
	char why[256] = "", text[EP_SOCK_TEXT];
	int n = ep_sock_pick(addr, EP_BOOT_ADDRS, why, sizeof(why));

	printf("#\n# bootstrap address (%s)\n", n > 0 ? why : ep_last_error());
	for (int i = 0; i < n; i++)
		printf("  %.*s\n", (int)strlen(ep_sock_text(&addr[i], text, sizeof(text))) - 2, text); /* not ":0" */
}

static const char *or_empty(const char *value)
{
	return *value ? value : "\"\"";
}

static void print_param(enum ep_param_id id, bool help)
{
	const struct ep_param *p = ep_param_info(id);
	const char *source = ep_param_source(id);

	printf("  %-30s %-7s %-10s %-20s %s\n", p->name, type_names[p->type], or_empty(p->def),
	       or_empty(ep_param_str(id)), source ? source : "default");
	if (!help)
		return;
	printf("#     %s\n", p->text);
	if (p->type == EP_T_INT)
		printf("#     From %lld to %lld.\n", (long long)p->min, (long long)p->max);
	if (*p->fallbacks)
		printf("#     Where it is not set: %s\n", p->fallbacks);
}

/* Not the library's: by it the Python package and TransformerEngine find the library. */
static const char home[] = "NCCL_EP_HOME";

static bool is_known(const char *name, size_t n)
{
	for (int i = 0; i < EP_PARAMS; i++) {
		const char *known = ep_param_info((enum ep_param_id)i)->name;

		if (strlen(known) == n && !memcmp(known, name, n))
			return true;
	}
	return strlen(home) == n && !memcmp(home, name, n);
}

/* All parameters with descriptions, or only those that are set; then unknown NCCL_EP_ names. */
static void print_params(bool all)
{
	printf("#\n# %-30s %-7s %-10s %-20s %s\n", all ? "parameter" : "parameter that is set", "type", "default",
	       "value", "set by");
	for (int i = 0; i < EP_PARAMS; i++)
		if (all || ep_param_source((enum ep_param_id)i))
			print_param((enum ep_param_id)i, all);
	for (char **e = environ; *e; e++) {
		size_t n = strcspn(*e, "=");

		if (!strncmp(*e, "NCCL_EP_", 8) && !is_known(*e, n))
			printf("# %.*s is set, but no parameter has that name\n", (int)n, *e);
	}
}

static int usage(FILE *out, int status)
{
	fprintf(out, "usage: ep_info [-e] [-n] [-p] [-h] [--json] [--sys FOLDER]\n"
		     "       ep_info --check [-t N | -g N] [-D DEVICE] [--json]\n"
		     "       ep_info --dump FOLDER\n"
		     "  version, devices, how GPUs and NICs are joined, bootstrap addresses, the parameters that are "
		     "set, limits\n"
		     "  of this host, RDMA devices, libraries; whether EP can run here (the exit status), and what to "
		     "do first (the last "
		     "line)\n"
		     "  -e  every parameter: type, default, value, source, description\n"
		     "  -n  every transport: its devices, or why it has none, and what a rank here would use\n"
		     "  -p  NIC profiles of the verbs transport\n"
		     "  -h  this text\n"
		     "  --json  parameters, host, RDMA devices, libraries, links and the verdict, as JSON\n"
		     "  --sys FOLDER  GPUs, NICs and their links from a copy of another host's /sys\n"
		     "  --check  a self-test between ranks: those of a launcher (mpirun, torchrun, srun, RANK and "
		     "WORLD_SIZE),\n"
		     "           or -t N threads, -g N processes of this host; -D host or cuda\n"
		     "  --dump FOLDER  joins what the ranks of a job that hangs wrote to NCCL_EP_DUMP_DIR\n");
	return status;
}

static void print_profiles(void)
{
	if (ep_info_profiles)
		ep_info_profiles();
	else
		printf("#\n# this library was built without the verbs transport\n");
}

static void look_around(void)
{
	ep_info_host();
	ep_info_rdma();
	ep_info_libraries();
	ep_info_transports();
}

/* A number of ranks; 0: none. */
static int ranks_read(const char *text)
{
	char *end;
	long n = strtol(text, &end, 10);

	return *end || n < 1 || n > 512 ? 0 : (int)n;
}

/* What the command line asks for. */
struct wanted {
	bool all, nets, profiles, json, check;
	const char *sys;
	struct ep_info_check_opts ranks;
};

/* 0, or -1 for a bad option. */
static int option_take(struct wanted *w, int c)
{
	w->json |= c == 'j';
	w->all |= c == 'e';
	w->nets |= c == 'n';
	w->profiles |= c == 'p';
	w->check |= c == 'c';
	if (c == 'D')
		w->ranks.device = optarg;
	if (c == 's')
		w->sys = optarg;
	if (c != 't' && c != 'g')
		return c == '?' ? -1 : 0;
	w->ranks.processes = c == 'g';
	w->ranks.ranks = ranks_read(optarg);
	return w->ranks.ranks ? 0 : -1;
}

static int report(const struct wanted *w)
{
	ep_info_listen();
	ep_info_topo_read(w->sys ? w->sys : "/sys");
	if (w->json) {
		look_around();
		return ep_info_json(EP_VERSION);
	}
	print_version();
	print_devices();
	for (int k = 0; k < EP_DEV_KINDS; k++)
		print_gpus((enum ep_dev_kind)k);
	ep_info_topo_print();
	print_addresses();
	print_params(w->all);
	if (w->nets)
		ep_info_nets();
	if (w->profiles)
		print_profiles();
	look_around();
	return ep_info_verdict();
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "check", no_argument, NULL, 'c' },	 { "dump", required_argument, NULL, 'd' },
		{ "json", no_argument, NULL, 'j' },	 { "help", no_argument, NULL, 'h' },
		{ "sys", required_argument, NULL, 's' }, { 0 }
	};
	struct wanted w = { 0 };
	int c;

	while ((c = getopt_long(argc, argv, "ehnpt:g:D:", options, NULL)) != -1) {
		if (c == 'd')
			return ep_info_dump(optarg);
		if (c == 'h')
			return usage(stdout, 0);
		if (option_take(&w, c))
			return usage(stderr, 2);
	}
	if (optind != argc || (w.check ? w.sys != NULL : w.ranks.ranks || w.ranks.device))
		return usage(stderr, 2);
	w.ranks.json = w.json;
	return w.check ? ep_info_check(&w.ranks) : report(&w);
}
