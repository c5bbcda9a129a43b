/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the interface: as the user says, else the best class of address that is up. */
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "util/error.h"
#include "util/param.h"
#include "util/sock.h"

#define MAX_FOUND 64

/* Classes of addresses, best first; only those of the best class present are used. */
enum { GOOD, GOOD_LINK_LOCAL, INNER, INNER_LINK_LOCAL, LOOPBACK };

static const char *const class_text[] = {
	[GOOD] = "up and connected to a network",
	[GOOD_LINK_LOCAL] = "up, link-local addresses only",
	[INNER] = "a bridge or tunnel inside this host, but nothing better is up",
	[INNER_LINK_LOCAL] = "a bridge or tunnel inside this host, but nothing better is up",
	[LOOPBACK] = "loopback, nothing else is up: ranks on other hosts cannot connect",
};

/* Interfaces of virtual machines and containers, which other hosts cannot reach. */
static const char *const inner_names[] = { "docker", "virbr", "veth", "br-", "cni", "cali", "flannel", "lxc", "vnet" };

struct found {
	union ep_sockaddr addr;
	char name[IF_NAMESIZE];
	int class;
};

bool ep_sock_if_match(const char *list, const char *name)
{
	bool except = *list == '^', exact, hit = false;

	list += except;
	exact = *list == '=';
	list += exact;
	while (*list) {
		size_t n = strcspn(list, ",");

		if (n && !strncmp(name, list, n) && (!exact || !name[n]))
			hit = true;
		list += n + (list[n] == ',');
	}
	return hit != except;
}

static bool is_link_local(const union ep_sockaddr *addr)
{
	if (addr->any.sa_family == AF_INET)
		return (ntohl(addr->v4.sin_addr.s_addr) >> 16) == 0xa9fe;
	return IN6_IS_ADDR_LINKLOCAL(&addr->v6.sin6_addr);
}

static int class_of(const struct ifaddrs *ifa, const union ep_sockaddr *addr, bool named)
{
	int class = is_link_local(addr) ? GOOD_LINK_LOCAL : GOOD;

	if (named)
		return class; /* chosen by the user */
	if (ifa->ifa_flags & IFF_LOOPBACK)
		return LOOPBACK;
	for (size_t i = 0; i < sizeof(inner_names) / sizeof(inner_names[0]); i++)
		if (!strncmp(ifa->ifa_name, inner_names[i], strlen(inner_names[i])))
			return class + INNER;
	return class;
}

static bool family_wanted(int family, const char *want)
{
	if (family != AF_INET && family != AF_INET6)
		return false;
	if (!strcmp(want, "AF_INET"))
		return family == AF_INET;
	if (!strcmp(want, "AF_INET6"))
		return family == AF_INET6;
	return true;
}

static int collect(const struct ifaddrs *list, const char *want, struct found *found)
{
	const char *family = ep_param_str(EP_P_SOCKET_FAMILY);
	bool named = *want && *want != '^';
	int n = 0;

	for (const struct ifaddrs *ifa = list; ifa && n < MAX_FOUND; ifa = ifa->ifa_next) {
		struct found *f = &found[n];

		if (!ifa->ifa_addr || !family_wanted(ifa->ifa_addr->sa_family, family))
			continue;
		if ((ifa->ifa_flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING))
			continue;
		if (*want && !ep_sock_if_match(want, ifa->ifa_name))
			continue;
		memset(f, 0, sizeof(*f));
		memcpy(&f->addr, ifa->ifa_addr,
		       ifa->ifa_addr->sa_family == AF_INET ? sizeof(f->addr.v4) : sizeof(f->addr.v6));
		snprintf(f->name, sizeof(f->name), "%s", ifa->ifa_name);
		f->class = class_of(ifa, &f->addr, named);
		n++;
	}
	return n;
}

/* "eth0, lo" for the error message. */
static void names_of(const struct ifaddrs *list, char *buf, size_t size)
{
	size_t at = 0;

	buf[0] = '\0';
	for (const struct ifaddrs *ifa = list; ifa && at < size; ifa = ifa->ifa_next)
		if (ifa->ifa_addr && ifa->ifa_addr->sa_family == AF_PACKET && (ifa->ifa_flags & IFF_UP))
			at += (size_t)snprintf(buf + at, size - at, "%s%s", at ? ", " : "", ifa->ifa_name);
}

static int fail_none(const struct ifaddrs *list, const char *want)
{
	const char *source = ep_param_source(EP_P_SOCKET_IFNAME), *family = ep_param_str(EP_P_SOCKET_FAMILY);
	char names[256];

	names_of(list, names, sizeof(names));
	if (*want)
		return EP_FAIL(EP_BOOT, ENODEV,
			       "%s=%s matches no interface that is up and has an address%s%s; interfaces up: %s",
			       source, want, *family ? " of family " : "", family, names);
	return EP_FAIL(EP_BOOT, ENODEV, "no interface is up and has an address%s%s, not even lo; interfaces up: %s",
		       *family ? " of family " : "", family, names);
}

int ep_sock_pick(union ep_sockaddr *out, int max, char *why, size_t size)
{
	const char *want = ep_param_str(EP_P_SOCKET_IFNAME), *source = ep_param_source(EP_P_SOCKET_IFNAME);
	struct found found[MAX_FOUND];
	struct ifaddrs *list;
	int n, best = LOOPBACK, used = 0, rc;
	const char *name = "";

	if (getifaddrs(&list))
		return EP_FAIL(EP_BOOT, errno, "cannot list the network interfaces: %s", strerror(errno));
	n = collect(list, want, found);
	rc = n ? 0 : fail_none(list, want);
	freeifaddrs(list);
	if (rc)
		return rc;
	for (int i = 0; i < n; i++)
		best = found[i].class < best ? found[i].class : best;
	/* v4 first, as getifaddrs lists them: most clusters route v4. */
	for (int i = 0; i < n && used < max; i++) {
		if (found[i].class != best)
			continue;
		if (!used)
			name = found[i].name;
		out[used++] = found[i].addr;
	}
	if (*want)
		snprintf(why, size, "%s, by %s=%s", name, source, want);
	else
		snprintf(why, size, "%s, %s", name, class_text[best]);
	return used;
}
