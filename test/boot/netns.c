/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Networks this machine does not have: loopback only, IPv6 only, link-local only, and a host that disappears. Each case
 * runs in new network namespaces, which end with their processes. Needs root and ip; else exits 77.
 */
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>

#include "util/sock.h"

static int sh(const char *fmt, int pid)
{
	char command[512];

	snprintf(command, sizeof(command), fmt, pid);
	return system(command);
}

/* The carrier of a new link shows late: the kernel batches link events for up to a second. */
static int link_up(const char *name)
{
	char command[128];

	snprintf(command, sizeof(command), "ip link show %s | grep -q 'state UP'", name);
	return UNTIL(!system(command)) ? 0 : 1;
}

static void gather_once(struct rank *me)
{
	int mine = me->rank + 1, all[MAX_RANKS];

	rank_note(me, ep_boot_allgather(me->boot, &mine, sizeof(mine), all));
	for (int i = 0; i < me->all->n; i++)
		RANK_EXPECT(me, all[i] == i + 1);
}

/* Four rank threads inside one namespace; the id's first address must be of that family. */
static int meet_here(int family)
{
	struct ranks *all = ranks_new(4, gather_once);
	int bad;

	all->timeout_ms = 10000;
	bad = ranks_threads(all);
	bad += all->id.addr[0].family != family;
	ranks_free(all);
	return bad;
}

static int loopback_only(void)
{
	return sh("ip link set lo up", 0) || meet_here(4);
}

static int ipv6_loopback_only(void)
{
	return sh("ip link set lo up && ip addr del 127.0.0.1/8 dev lo", 0) || meet_here(6);
}

static int ipv6_only(void)
{
	return sh("ip link set lo up && ip link add d0 type veth peer name d1 && ip link set d0 up && ip link set d1 "
		  "up && "
		  "ip addr add fd00:1::7/64 dev d0 nodad",
		  0) ||
	       link_up("d0") || meet_here(6);
}

static int by_family(void)
{
	setenv("NCCL_EP_SOCKET_FAMILY", "AF_INET6", 1);
	return sh("ip link set lo up && ip link add d0 type veth peer name d1 && ip link set d0 up && ip link set d1 "
		  "up && ip addr add 10.9.9.9/24 dev d0 && "
		  "ip addr add fd00:1::7/64 dev d0 nodad",
		  0) ||
	       link_up("d0") || meet_here(6);
}

static int nothing_at_all(void)
{
	struct ep_boot_id id;

	return ep_boot_id_create(&id) != -ENODEV || !strstr(ep_last_error(), "no interface");
}

/* Bridges inside the host are avoided while another interface is up. */
static int bridges_last(void)
{
	union ep_sockaddr a[4];
	char why[256];
	int n, bad;

	bad = sh("ip link set lo up && ip link add docker0 type veth peer name docker1 && ip link set docker0 up && ip "
		 "link set docker1 up && "
		 "ip addr add 172.17.0.1/16 dev docker0",
		 0);
	bad += link_up("docker0");
	n = ep_sock_pick(a, 4, why, sizeof(why));
	bad += n < 1 || !strstr(why, "docker0");
	bad += sh("ip link add d0 type veth peer name d1 && ip link set d0 up && ip link set d1 up && "
		  "ip addr add 10.9.9.9/24 dev d0",
		  0);
	bad += link_up("d0");
	n = ep_sock_pick(a, 4, why, sizeof(why));
	return bad + (n != 1 || a[0].v4.sin_addr.s_addr != htonl(0x0a090909) || !strstr(why, "d0"));
}

/* ---- two hosts ---- */

static int wait_line(int fd)
{
	char c;

	return read(fd, &c, 1) == 1 ? 0 : -1;
}

/* Two namespaces with a link between them; ranks 0 and 1 are here, 2 and 3 there. */
struct hosts {
	struct ranks *all;
	int to_there[2], to_here[2];
	pid_t there;
	bool swap; /* the first two addresses of the id */
};

static int hosts_new(struct hosts *h, const char *here, const char *there)
{
	*h = (struct hosts){ .all = ranks_new(4, NULL) };
	if (pipe(h->to_there) || pipe(h->to_here))
		return 1;
	h->there = fork();
	if (!h->there) {
		alarm(60);
		close(h->to_there[1]); /* so that the child sees end of file when the parent exits */
		if (unshare(CLONE_NEWNET))
			_exit(77);
		if (write(h->to_here[1], "x", 1) != 1)
			_exit(1);
		/* The link is there; later, the id is created. */
		if (wait_line(h->to_there[0]) || system(there) || link_up("v1") || write(h->to_here[1], "x", 1) != 1 ||
		    wait_line(h->to_there[0]))
			_exit(1);
		for (int i = 2; i < 4; i++)
			if (pthread_create(&h->all->rank[i].thread, NULL, rank_life, &h->all->rank[i]))
				_exit(1);
		for (int i = 2; i < 4; i++)
			pthread_join(h->all->rank[i].thread, NULL);
		_exit(0);
	}
	return wait_line(h->to_here[0]) ||
	       sh("ip link set lo up && ip link add v0 type veth peer name v1 && ip link set v1 netns %d", h->there) ||
	       system(here) || write(h->to_there[1], "x", 1) != 1 || wait_line(h->to_here[0]) || link_up("v0");
}

static int hosts_run(struct hosts *h, rank_fn fn)
{
	int status = -1;

	h->all->fn = fn;
	if (ep_boot_id_create(&h->all->id))
		return 1;
	if (h->swap) {
		struct ep_boot_addr first = h->all->id.addr[0];

		h->all->id.addr[0] = h->all->id.addr[1];
		h->all->id.addr[1] = first;
	}
	if (write(h->to_there[1], "x", 1) != 1)
		return 1;
	for (int i = 0; i < 2; i++)
		if (pthread_create(&h->all->rank[i].thread, NULL, rank_life, &h->all->rank[i]))
			return 1;
	for (int i = 0; i < 2; i++)
		pthread_join(h->all->rank[i].thread, NULL);
	return waitpid(h->there, &status, 0) != h->there || !WIFEXITED(status) || WEXITSTATUS(status);
}

/* Only fe80:: addresses, which need the interface, whose index differs on the other host. */
static int link_local_only(void)
{
	struct hosts h;
	int bad = hosts_new(&h, "ip link add f0 type veth peer name f1; ip link set v0 up addrgenmode eui64",
			    "ip link set lo up; ip link set v1 up addrgenmode eui64; sleep 2.5");

	bad = bad || hosts_run(&h, gather_once);
	return bad + ranks_bad(h.all);
}

static int two_hosts_v4_and_v6(void)
{
	struct hosts h;
	int bad = hosts_new(&h,
			    "ip addr add 10.1.0.1/24 dev v0; ip addr add fd00:2::1/64 dev v0 nodad; ip link set v0 up",
			    "ip link set lo up; ip addr add 10.1.0.2/24 dev v1; ip link set v1 up");

	bad = bad || hosts_run(&h, gather_once);
	return bad + ranks_bad(h.all);
}

/* The first address of the id drops packets: the next one is tried. */
static int first_address_is_a_black_hole(void)
{
	struct hosts h;
	int bad = hosts_new(&h,
			    "ip addr add 10.1.0.1/24 dev v0; ip link set v0 up; ip link add z0 type veth peer name z1; "
			    "ip link set z0 up; ip link set z1 up; ip addr add 10.66.0.1/24 dev z0",
			    "ip link set lo up; ip addr add 10.1.0.2/24 dev v1; ip link set v1 up; "
			    "ip link add z0 type veth peer name z1; ip link set z0 up; ip link set z1 up; ip addr add "
			    "10.66.0.2/24 dev z0");

	/* 10.66.0.x exists on both sides, without a route between them. */
	h.swap = true;
	bad = bad || link_up("z0") || hosts_run(&h, gather_once);
	bad += h.all->id.naddr != 2 || h.all->id.addr[0].ip[1] != 66;
	return bad + ranks_bad(h.all);
}

/* Only once all have left the barrier: then the blocks of those that left first have arrived. */
static void cut_cable(struct rank *me)
{
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	me->all->stage++;
	RANK_EXPECT(me, UNTIL(me->all->stage == me->all->n));
	if (me->rank == 0)
		RANK_EXPECT(me, sh("ip link set v0 down", 0) == 0);
}

/* The link is cut while all are idle: the ranks of the other host are declared dead. */
static void cut(struct rank *me)
{
	uint64_t start;
	int who = -1;
	char why[256];

	cut_cable(me);
	start = ep_now_ns();
	RANK_EXPECT(me, UNTIL(ep_boot_failed(me->boot, &who, why, sizeof(why)) == 0));
	RANK_EXPECT(me, (who >= 2) != (me->rank >= 2));
	RANK_EXPECT(me, ep_now_ns() - start > 2000000000ull && ep_now_ns() - start < 10000000000ull);
}

/* The same with data in flight, where keepalive probes are not sent. */
static void cut_busy(struct rank *me)
{
	static char block[4 << 20], all[2][4 * sizeof(block)];
	int rc;

	cut_cable(me);
	rc = ep_boot_allgather(me->boot, block, sizeof(block), all[me->rank % 2]);
	RANK_EXPECT(me, rc == -EP_EREMOTE);
	RANK_EXPECT(me, strstr(ep_last_error(), "died"));
}

static int cable(rank_fn fn)
{
	struct hosts h;
	int bad;

	setenv("NCCL_EP_PEER_LOST_MS", "3000", 1);
	bad = hosts_new(&h, "ip addr add 10.1.0.1/24 dev v0; ip link set v0 up",
			"ip link set lo up; ip addr add 10.1.0.2/24 dev v1; ip link set v1 up");
	bad = bad || hosts_run(&h, fn);
	return bad + ranks_bad(h.all);
}

static int cut_while_idle(void)
{
	return cable(cut);
}

static int cut_while_busy(void)
{
	return cable(cut_busy);
}

static const struct {
	const char *name;
	int (*fn)(void);
} cases[] = {
	{ "loopback only", loopback_only },
	{ "IPv6 loopback only", ipv6_loopback_only },
	{ "IPv6 only", ipv6_only },
	{ "IPv6 by variable", by_family },
	{ "no interface at all", nothing_at_all },
	{ "bridges last", bridges_last },
	{ "link-local addresses only", link_local_only },
	{ "two hosts, one without IPv6", two_hosts_v4_and_v6 },
	{ "first address is a black hole", first_address_is_a_black_hole },
	{ "cable cut while idle", cut_while_idle },
	{ "cable cut while busy", cut_while_busy },
};

int main(int argc, char **argv)
{
	int failed = 0;

	if (system("ip -V >/dev/null 2>&1")) {
		fprintf(stderr, "no ip command\n");
		return 77;
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t start = ep_now_ns();
		int status = -1;
		pid_t pid;

		if (argc > 1 && !strstr(cases[i].name, argv[1]))
			continue;
		pid = fork();
		if (!pid) {
			if (unshare(CLONE_NEWNET))
				_exit(77);
			alarm(60);
			_exit(cases[i].fn() ? 1 : 0);
		}
		waitpid(pid, &status, 0);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
			fprintf(stderr, "no permission to make network namespaces\n");
			return 77;
		}
		printf("%s: %s (%.1f s)\n", cases[i].name, status ? "FAILED" : "ok",
		       (double)(ep_now_ns() - start) / 1e9);
		fflush(stdout);
		failed += status != 0;
	}
	return failed ? 1 : 0;
}
