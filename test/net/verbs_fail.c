/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs_fail [CASE...]: failures of NICs and their messages. rkey: a put with a wrong remote key; bye: a peer that has
 * closed; cq: a completion queue overrun; memlock: the locked memory limit; cut:
 * packets are dropped (tc, and a second device); down: no active port. 77: no device, or the case is not possible here.
 */
#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/verbs/verbs.h"
#include "test/rig/net_rig.h"
#include "util/error.h"

enum { BYTES = 8192, LOST_MS = 3000, MEMLOCK_KIB = 64 };

static void says(struct net_rank *me, int peer, const char *words)
{
	const char *why = "";

	EXPECT(me, me->net->ops.queryLastError(me->comm, peer, &why) == -EREMOTEIO);
	if (!strstr(why, words)) {
		EXPECT(me, !"the message has the words");
		fprintf(stderr, "\"%s\" has no \"%s\"\n", why, words);
	}
}

/* Rank 0 uses a wrong key for rank 1. */
static void rkey(struct net_rank *me)
{
	ncclEpNetMem_v1_t mem = { .ptr = me->mem, .size = BYTES, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
	ncclEpNetPut_v1_t put = { .peer = 1, .srcMr = me->mr, .size = 64 };
	uint8_t keys[3][NCCL_EP_NET_KEY_SIZE];
	struct vb_key key;
	const char *why;

	if (me->rank == 0) {
		EXPECT(me, me->net->ops.regMr(me->comm, &mem, keys[0], &put.dstMr) == 0);
		memcpy(&key, keys[0], sizeof(key));
		key.rkey ^= 0x5500;
		memcpy(keys[1], &key, sizeof(key));
		memcpy(keys[2], &key, sizeof(key));
		EXPECT(me, me->net->ops.shareMr(me->comm, put.dstMr, keys) == 0);
		EXPECT(me, net_put_to(me, 1) == 0 && net_put_to(me, 2) == 0);
		EXPECT(me, net_put(me, &put, NULL, NULL) == -EREMOTEIO);
		says(me, 1, "bad rkey");
		EXPECT(me, net_put_to(me, 1) == -EREMOTEIO && net_put_to(me, 2) == 0);
		EXPECT(me, me->net->ops.deregMr(me->comm, put.dstMr) == 0);
	}
	net_meet(me);
	if (me->rank == 2)
		EXPECT(me, net_put_to(me, 1) == 0 && net_put_to(me, 0) == 0 &&
				   me->net->ops.queryLastError(me->comm, 1, &why) == 0);
}

/* Rank 1 does not poll while rank 0 sends more immediates than its queue holds. */
static void cq(struct net_rank *me)
{
	ncclEpNetPut_v1_t put = { .flags = NCCL_EP_NET_IMM, .peer = 1, .srcMr = me->mr, .dstMr = me->mr, .size = 8 };
	uint64_t end = ep_deadline_ms(NET_WAIT_MS);
	uint32_t imms[8];
	int rc = 0, n;

	if (me->rank == 0) {
		EXPECT(me, net_put_to(me, 1) == 0);
		net_meet(me);
		for (int i = 0; i < 1000 && !rc; i++)
			rc = net_put(me, &put, NULL, NULL);
		net_leave(me);
		_exit(me->errors);
	}
	net_meet(me);
	usleep(1500000);
	while (!rc && ep_now_ns() < end)
		rc = me->hot->progress(me->ctx, imms, 8, &n);
	EXPECT(me, rc == -EIO && strstr(ep_last_error(), "overrun"));
	net_leave(me);
	_exit(me->errors ? 1 : 0);
}

/* Rank 1 has closed with nothing in flight: only its bye reports it, long before retries or the timeout. */
static void bye(struct net_rank *me)
{
	uint64_t start;

	EXPECT(me, net_put_to(me, 1) == 0);
	net_meet(me);
	if (me->rank == 1) {
		EXPECT(me, me->net->ops.deregMr(me->comm, me->mr) == 0 && me->net->ops.destroyContext(me->ctx) == 0);
		EXPECT(me, me->net->ops.closeComm(me->comm) == 0);
		me->ctx = NULL;
	}
	net_meet(me);
	start = ep_now_ns();
	if (me->rank != 1) {
		EXPECT(me, net_put_to(me, 1) == -EREMOTEIO);
		EXPECT(me, ep_now_ns() - start < 100000000);
		says(me, 1, "has closed its comm");
	}
	net_meet(me);
	if (me->rank != 1)
		return;
	net_leave(me);
	_exit(me->errors != 0);
}

static int netem(const char *verb)
{
	char command[256];

	snprintf(command, sizeof(command),
		 "for d in $(cat /sys/class/infiniband/*/ports/1/gid_attrs/ndevs/0 | sort -u); do "
		 "tc qdisc %s dev $d root netem loss 100%% || exit 1; done",
		 verb);
	return system(command);
}

/* Ranks 0 and 2 are on one device, 1 on the other. */
static void cut(struct net_rank *me)
{
	int far = me->rank == 1 ? 0 : 1;

	for (int r = 0; r < me->nranks; r++)
		EXPECT(me, net_put_to(me, r) == 0);
	net_meet(me);
	if (me->rank == 0)
		EXPECT(me, netem("replace") == 0);
	net_meet(me);
	net_see_loss(me, far, me->rank == 1 ? 1 : 2 - me->rank);
	says(me, far, "does not acknowledge");
	net_meet(me);
	if (me->rank == 0)
		netem("del");
}

static int caps_drop(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { { 0 } };

	return (int)syscall(SYS_capset, &header, data);
}

static int memlock_child(void)
{
	struct rlimit limit = { MEMLOCK_KIB << 10, MEMLOCK_KIB << 10 };
	ncclEpNetMem_v1_t mem = { .size = 1 << 20, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
	uint8_t handle[NCCL_EP_NET_HANDLE_SIZE], key[NCCL_EP_NET_KEY_SIZE];
	void *listener = NULL, *comm = NULL, *mr = NULL;
	struct ep_net *net;
	int rc;

	mem.ptr = mmap(NULL, mem.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (setrlimit(RLIMIT_MEMLOCK, &limit) || caps_drop() || ep_net_open("verbs:contexts=1", &net))
		return 77;
	rc = net->ops.listen(net->net, 0, 1, handle, &listener);
	rc = rc ? rc : net->ops.connect(listener, handle, 1, 0, &comm);
	rc = rc ? rc : net->ops.regMr(comm, &mem, key, &mr);
	printf("memlock: %d, \"%s\"\n", rc, ep_last_error());
	return rc != -ENOMEM || !strstr(ep_last_error(), "memlock") || !strstr(ep_last_error(), "64 KiB") ||
	       !strstr(ep_last_error(), "ulimit -l unlimited");
}

static int memlock(void)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0)
		_exit(memlock_child());
	return pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) ? 1 : WEXITSTATUS(status);
}

/* test/vm took all ports down before. */
static int down(void)
{
	struct ep_net *net;
	int rc = ep_net_open("verbs", &net);

	if (!rc) {
		ep_net_close(net);
		fprintf(stderr, "skipped: a port is up\n");
		return 77;
	}
	printf("down: %d, \"%s\"\n", rc, ep_last_error());
	return rc != -ENODEV || !strstr(ep_last_error(), "the port is DOWN") || !strstr(ep_last_error(), "ip link");
}

static int rig_run(const struct net_case *test)
{
	return net_run(test) ? 1 : 0;
}

static int cut_run(const struct net_case *test)
{
	struct ep_net *net;
	int count = 0;

	if (!ep_net_open("verbs", &net)) {
		net->ops.devices(net->net, &count);
		ep_net_close(net);
	}
	if (count < 2 || netem("replace") || netem("del")) {
		fprintf(stderr, "skipped: needs two devices and tc\n");
		return 77;
	}
	setenv("NET_SPREAD", "1", 1);
	return rig_run(test);
}

static const struct {
	const char *name;
	struct net_case test;
	int (*rig)(const struct net_case *test);
	int (*alone)(void);
} cases[] = {
	{ "rkey", { .spec = "verbs", .ranks = 3, .bytes = BYTES, .run = rkey }, rig_run, NULL },
	{ "cq", { .spec = "verbs:cq=64", .ranks = 2, .each = 1, .bytes = BYTES, .run = cq }, rig_run, NULL },
	{ "bye", { .spec = "verbs", .ranks = 3, .each = 1, .bytes = BYTES, .run = bye }, rig_run, NULL },
	{ "memlock", { .spec = NULL }, NULL, memlock },
	{ "cut", { .spec = "verbs", .ranks = 3, .each = 1, .bytes = BYTES, .run = cut }, cut_run, NULL },
	{ "down", { .spec = NULL }, NULL, down },
};
#define CASES ((int)(sizeof(cases) / sizeof(cases[0])))

static int case_run(int i)
{
	int rc = cases[i].alone ? cases[i].alone() : cases[i].rig(&cases[i].test);

	printf("%s: %s\n", cases[i].name, rc == 77 ? "skipped" : rc ? "FAILED" : "ok");
	return rc;
}

int main(int argc, char **argv)
{
	bool named = argc > 1, any = false;
	int failed = 0;
	char lost[16];

	snprintf(lost, sizeof(lost), "%d", LOST_MS);
	setenv("NCCL_EP_PEER_LOST_MS", lost, 1);
	setenv("NCCL_EP_IB_TIMEOUT", "12", 1); /* 17 ms, four times; soft-RoCE retries without limit with 7 */
	setenv("NCCL_EP_IB_RETRY_CNT", "3", 1);
	if (net_absent("verbs") && !(argc == 2 && !strcmp(argv[1], "down")))
		return 77;
	for (int i = 0; i < CASES; i++) {
		bool asked = !named;
		int rc;

		for (int k = 1; k < argc; k++)
			asked |= !strcmp(argv[k], cases[i].name);
		rc = asked ? case_run(i) : 77;
		any |= rc != 77;
		failed |= rc != 77 && rc;
	}
	return failed ? 1 : any ? 0 : 77;
}
