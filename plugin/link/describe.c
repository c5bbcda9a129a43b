/* SPDX-License-Identifier: Apache-2.0 */
/* The link in words, for a dump: its transport, the NIC's ports as the kernel sees them, and its engines. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "plugin/link/link.h"
#include "util/lines.h"
#include "util/text.h"

#define NAME_MAX_BYTES 64

/* A line of a file of sysfs, or "?". */
static void sysfs_read(const char *folder, const char *name, char *out, size_t size)
{
	char path[512], text[128] = "";
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "re");
	if (f && !fgets(text, sizeof(text), f))
		text[0] = 0;
	if (f)
		fclose(f);
	text[strcspn(text, "\n")] = 0;
	ep_text_take(out, size, text[0] ? text : "?", sizeof(text));
}

/* Whatever the transport: a device that is not there is not described. */
static void nic_tell(const char *device, struct ep_lines *out)
{
	char ports[256], folder[600], state[64], rate[64];
	struct dirent *entry;
	DIR *dir;

	snprintf(ports, sizeof(ports), "/sys/class/infiniband/%s/ports", device);
	dir = opendir(ports);
	while (dir && (entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(folder, sizeof(folder), "%s/%s", ports, entry->d_name);
		sysfs_read(folder, "state", state, sizeof(state));
		sysfs_read(folder, "rate", rate, sizeof(rate));
		ep_lines_add(out, "nic %s port %.16s state %s rate %s\n", device, entry->d_name, state, rate);
	}
	if (dir)
		closedir(dir);
}

/* Several rails have one name: "mlx5_0+mlx5_1"; a port follows a colon. */
static void nics_tell(const char *names, struct ep_lines *out)
{
	char name[NAME_MAX_BYTES];

	while (*names) {
		size_t n = strcspn(names, "+,:/ ");

		if (n && n < sizeof(name)) {
			memcpy(name, names, n);
			name[n] = 0;
			nic_tell(name, out);
		}
		names += n + (names[n] != 0);
	}
}

void ep_link_describe(const struct ep_link *link, uint64_t deadline, struct ep_lines *out)
{
	const char *state;
	char name[256];

	ep_text_take(name, sizeof(name), link->props.name, strlen(link->props.name));
	ep_lines_add(out, "net %s device %s ordered %d direct %d engines %d peers %u\n", link->net->name, name,
		     link->props.ordered != 0, link->direct, link->ports, link->peers);
	nics_tell(name, out);
	for (int i = 0; i < link->ports; i++) {
		int rc = ep_port_describe(link->port[i].port, deadline, &state);

		ep_lines_add(out, "engine %d%s\n%s", i, rc ? " does_not_answer" : "", rc ? "" : state);
	}
}
