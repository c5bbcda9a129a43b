/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_cut SPEC: two hosts (network namespaces) with two ranks each, and a link that starts to drop all packets: no
 * reset, no refusal. Every rank detects which peers are lost, and keeps the one on its own host. Needs root and ip; 77
 * without, or when the net has no device.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/rig/net_rig.h"

enum { RANKS = 4, EACH = 2, BYTES = 8192, LOST_MS = 3000 };

static pid_t there; /* holds the other host's namespace */

static int sh(const char *format)
{
	char command[512];

	snprintf(command, sizeof(command), format, (int)there, (int)there);
	return system(command);
}

/* A static ARP entry that nobody owns: packets to the other host are dropped silently. */
#define CUT "ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:99 dev v0 nud permanent"

static int host_enter(int first)
{
	char path[64];
	int fd;

	if (first == 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)there);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 || setns(fd, CLONE_NEWNET);
}

static void cut(struct net_rank *me)
{
	int neighbour = me->rank ^ 1, far = me->rank < EACH ? EACH : 0;
	uint64_t start;

	for (int r = 0; r < RANKS; r++)
		EXPECT(me, net_put_to(me, r) == 0);
	net_meet(me);
	if (me->rank == 0)
		EXPECT(me, sh(CUT) == 0);
	net_meet(me);
	start = ep_now_ns();
	for (int r = far; r < far + EACH; r++)
		net_see_loss(me, r, neighbour);
	/* Two peers in sequence, and as much again for a loaded machine. */
	EXPECT(me, ep_now_ns() - start < 4 * (uint64_t)LOST_MS * 1000000);
}

static pid_t host_fork(void)
{
	int ready[2];
	char c;
	pid_t pid;

	if (pipe(ready))
		return -1;
	pid = fork();
	if (pid == 0) {
		close(ready[0]);
		if (unshare(CLONE_NEWNET))
			_exit(1);
		close(ready[1]);
		alarm(120);
		pause();
		_exit(0);
	}
	close(ready[1]);
	(void)!read(ready[0], &c, 1);
	close(ready[0]);
	return pid;
}

static int hosts_make(void)
{
	if (unshare(CLONE_NEWNET) || system("ip link show >/dev/null 2>&1"))
		return -1;
	there = host_fork();
	return sh("ip link set lo up && ip link add v0 type veth peer name v1 netns %d && ip link set v0 up && "
		  "ip addr add 10.77.0.1/24 dev v0") ||
	       sh("nsenter -t %d -n sh -c 'ip link set lo up && ip link set v1 up && ip addr add 10.77.0.2/24 dev "
		  "v1'") ||
	       sh("for i in 1 2 3 4 5 6 7 8 9 10; do ip link show v0 | grep -q 'state UP' && exit 0; sleep 0.3; done; "
		  "exit 1");
}

int main(int argc, char **argv)
{
	struct net_case test = { .ranks = RANKS, .each = EACH, .bytes = BYTES, .enter = host_enter, .run = cut };
	char lost[16];
	int errors;

	if (argc != 2)
		return 1;
	if (net_absent(argv[1]))
		return 77;
	test.spec = argv[1];
	snprintf(lost, sizeof(lost), "%d", LOST_MS);
	setenv("NCCL_EP_PEER_LOST_MS", lost, 1);
	setenv("NCCL_EP_SOCKET_IFNAME", "v", 1);
	if (hosts_make()) {
		fprintf(stderr, "skipped: network namespaces need root, ip and nsenter\n");
		return 77;
	}
	errors = net_run(&test);
	kill(there, SIGKILL);
	waitpid(there, NULL, 0);
	return errors != 0;
}
