/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_scale SPEC RANKS...: what one rank has when it is connected to all others, counted by the models of test/model
 * and test/efa, which are loaded in place of the libraries. Rank 0 is a process, all others are another one, and each
 * of them is connected to rank 0 only. Memory and time are those of rank 0's process and include the model's queues.
 * 77: the library is not a model.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/net.h"
#include "proxy/port_api.h"
#include "test/efa/seen.h"
#include "test/model/verbs/nic.h"
#include "util/clock.h"
#include "util/error.h"

#define WAIT_MS 300000
#define CONTEXTS 4
#define MRS 5	    /* at most, of a context */
#define WINDOW 512u /* puts of a channel, as in plugin/link/link.c */

/* Shared by the two processes. */
struct board {
	int here, gone; /* atomic: processes that have listened, that may end */
	uint8_t handle[][NCCL_EP_NET_HANDLE_SIZE];
};

/* The numbers of either model. */
struct counts {
	unsigned qps, uds, endpoints, addresses, srqs, cqs, sends, receives, completions, mrs;
	unsigned long long mr_bytes;
};

static const char *spec;
static struct board *board;

static void *model(const char *library, const char *symbol)
{
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	return lib ? dlsym(lib, symbol) : NULL;
}

static bool counts_read(struct counts *out)
{
	bool verbs = !strncmp(spec, "verbs", 5);
	const struct nic_stats *stats = verbs ? model("libibverbs.so.1", "ep_model_nic") : NULL;
	const struct model_seen *efa = verbs ? NULL : model("libfabric.so.1", "ep_model_seen");

	if (stats)
		*out = (struct counts){ .qps = stats->qps,
					.uds = stats->uds,
					.addresses = stats->ahs,
					.srqs = stats->srqs,
					.cqs = stats->cqs,
					.sends = stats->sends,
					.receives = stats->receives,
					.completions = stats->completions,
					.mrs = stats->mrs,
					.mr_bytes = stats->mr_bytes };
	if (efa)
		*out = (struct counts){ .endpoints = efa->endpoints,
					.addresses = efa->addresses,
					.cqs = efa->cqs,
					.receives = efa->posted,
					.completions = efa->completions,
					.mrs = efa->mrs,
					.mr_bytes = efa->mr_bytes };
	return stats || efa;
}

static void counts_sub(struct counts *from, const struct counts *c)
{
	from->qps -= c->qps;
	from->uds -= c->uds;
	from->endpoints -= c->endpoints;
	from->cqs -= c->cqs;
	from->completions -= c->completions;
	from->mrs -= c->mrs;
	from->mr_bytes -= c->mr_bytes;
}

static int fail(const char *what, int rank)
{
	fprintf(stderr, "net_scale: %s: rank %d: %s: %s\n", spec, rank, what, ep_last_error());
	return 1;
}

static void meet(int *count)
{
	__atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(count, __ATOMIC_SEQ_CST) < 2)
		usleep(100);
}

static double resident_mib(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long pages = 0;

	if (!f || fscanf(f, "%*d %ld", &pages) != 1)
		pages = 0;
	if (f)
		fclose(f);
	return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

/* ---- the others ---- */

struct other {
	void *listener, *comm, *ctx[CONTEXTS];
};

static int other_open(struct ep_net *net, struct other *other, uint32_t contexts)
{
	int rc = 0;

	for (uint32_t i = 0; other->comm && i < contexts && !rc; i++)
		rc = net->ops.createContext(other->comm, (int)i, &other->ctx[i]);
	return rc;
}

/* Connects, or answers: rank 0 may have missed a datagram. */
static int other_step(struct ep_net *net, struct other *other, const uint8_t *handles, int ranks, int rank)
{
	ncclEpNetProperties_v1_t props;
	int rc = net->ops.getProperties(net->net, 0, &props), n;

	if (!other->comm && !rc) {
		rc = net->ops.connect(other->listener, handles, ranks, rank, &other->comm);
		return rc ? rc : other_open(net, other, props.maxContexts);
	}
	for (uint32_t i = 0; i < props.maxContexts && !rc; i++)
		rc = net->hot.progress(other->ctx[i], NULL, 0, &n);
	return rc;
}

/* Each in turn, until rank 0 has connected to all. A blank handle: not connected. */
static int others_connect(struct ep_net *net, struct other *other, int ranks)
{
	uint8_t *handles = calloc((size_t)ranks, NCCL_EP_NET_HANDLE_SIZE);
	uint64_t end = ep_deadline_ms(WAIT_MS);
	int left = ranks - 1;

	memcpy(handles, board->handle[0], NCCL_EP_NET_HANDLE_SIZE);
	while (left || !__atomic_load_n(&board->gone, __ATOMIC_SEQ_CST)) {
		left = ranks - 1;
		for (int r = 1; r < ranks; r++) {
			uint8_t *mine = handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE;
			int rc;

			memcpy(mine, board->handle[r], NCCL_EP_NET_HANDLE_SIZE);
			rc = other_step(net, &other[r], handles, ranks, r);
			memset(mine, 0, NCCL_EP_NET_HANDLE_SIZE);
			left -= other[r].comm != NULL;
			if (rc || ep_now_ns() > end)
				return fail("connect", r);
		}
	}
	free(handles);
	return 0;
}

static int others_main(int ranks)
{
	struct other *other = calloc((size_t)ranks, sizeof(*other));
	char few[64];
	struct ep_net *net;
	int rc = 0;

	/* What a queue of receives takes is not counted here, and there are many. */
	snprintf(few, sizeof(few), "%s%s", spec, strncmp(spec, "verbs", 5) ? "" : ",srq=16");
	if (ep_net_open(few, &net))
		return fail("open", 1);
	for (int r = 1; r < ranks && !rc; r++)
		rc = net->ops.listen(net->net, 0, ranks, board->handle[r], &other[r].listener);
	if (rc)
		return fail("listen", 1);
	meet(&board->here);
	rc = others_connect(net, other, ranks);
	meet(&board->gone);
	return rc;
}

/* ---- rank 0 ---- */

struct rank {
	struct ep_net *net;
	ncclEpNetProperties_v1_t props;
	void *comm, *ctx[CONTEXTS];
	size_t ports; /* bytes */
};

/* Receives are posted, and peers that missed a datagram are answered, when a context is polled. */
static int rank_poll(const struct rank *me)
{
	int rc = 0, n;

	for (uint32_t i = 0; i < me->props.maxContexts && !rc; i++)
		rc = me->net->hot.progress(me->ctx[i], NULL, 0, &n);
	return rc;
}

/* What the ports of a group add: one for each context, with mail from every peer where the net is unordered. */
static int port_add(struct rank *me, uint32_t index, int ranks)
{
	static struct ep_regions regions;
	struct ep_port_peer *peer = calloc((size_t)ranks, sizeof(*peer));
	uint32_t seats = (uint32_t)ranks - 1, window = ep_port_window(seats, WINDOW);
	size_t mail = ep_port_mail_size(seats, window);
	ncclEpNetMem_v1_t mem = {
		.ptr = aligned_alloc(4096, mail), .size = mail, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1
	};
	uint8_t key[NCCL_EP_NET_KEY_SIZE];
	struct ep_port_opts opts = { .hot = &me->net->hot,
				     .ordered = me->props.ordered != 0,
				     .max_inline = me->props.maxInline,
				     .max_put = me->props.maxPutSize,
				     .nranks = ranks,
				     .peer = peer,
				     .peers = seats,
				     .seats = seats,
				     .window = window,
				     .regions = &regions };
	struct ep_port *port;
	int rc = me->net->ops.createContext(me->comm, (int)index, &me->ctx[index]);

	opts.ctx = me->ctx[index];
	rc = rc ? rc : me->net->ops.regMr(me->comm, &mem, key, &regions.region[0].mr);
	regions.region[0].host = mem.ptr;
	regions.region[0].size = mail;
	regions.count = 1;
	for (uint32_t i = 0; i < seats; i++)
		peer[i] = (struct ep_port_peer){ .rank = (int)i + 1 };
	rc = rc ? rc : ep_port_open(&opts, &port);
	if (!rc)
		me->ports += ep_port_bytes(port);
	return rc;
}

static void row_print(int ranks, const struct counts *c, size_t ports, double ms, double mib)
{
	printf("%6d %6u %4u %4u %6u %5u %4u %8u %9u %11u %6u %10.2f %9.2f %9.1f %9.0f\n", ranks, c->qps, c->uds,
	       c->endpoints, c->addresses, c->srqs, c->cqs, c->sends, c->receives, c->completions, c->mrs,
	       (double)c->mr_bytes / (1 << 20), (double)ports / (1 << 20), mib, ms);
	fflush(stdout);
}

/* A rank must have a connection for every other, and no queue or registration for each but the queue pairs. */
static int counts_check(const struct counts *c, int ranks, unsigned contexts)
{
	unsigned peers = (unsigned)ranks * contexts; /* with itself */
	bool verbs = c->qps != 0;

	if ((verbs ? c->qps : c->addresses) != peers || c->cqs != contexts || c->srqs > contexts ||
	    (verbs ? c->uds : c->endpoints) != contexts || c->mrs > 1 + MRS * contexts) {
		fprintf(stderr, "net_scale: %s: %d ranks, %u contexts: the counts of objects are wrong\n", spec, ranks,
			contexts);
		return 1;
	}
	return 0;
}

/* Nanoseconds without the wait for the other process to start; 0: failed. */
static uint64_t rank_connect(struct rank *me, int ranks)
{
	uint64_t start = ep_now_ns(), end = ep_deadline_ms(WAIT_MS), ns;
	void *listener;

	if (me->net->ops.listen(me->net->net, 0, ranks, board->handle[0], &listener))
		return 0;
	ns = ep_now_ns() - start;
	meet(&board->here);
	start = ep_now_ns();
	while (!me->comm && ep_now_ns() < end)
		if (me->net->ops.connect(listener, board->handle, ranks, 0, &me->comm))
			return 0;
	return me->comm ? ns + ep_now_ns() - start : 0;
}

static int rank_main(int ranks)
{
	double before = resident_mib();
	struct counts counts, opened;
	struct rank me = { 0 };
	uint64_t ns;

	if (ep_net_open(spec, &me.net) || me.net->ops.getProperties(me.net->net, 0, &me.props) ||
	    me.props.maxContexts > CONTEXTS)
		return fail("open", 0);
	counts_read(&opened); /* objects by which the device was examined, and closed again */
	ns = rank_connect(&me, ranks);
	if (!ns)
		return fail("connect", 0);
	for (uint32_t i = 0; i < me.props.maxContexts; i++)
		if (port_add(&me, i, ranks))
			return fail("a port", 0);
	for (int i = 0; i < 1000; i++)
		if (rank_poll(&me))
			return fail("a poll", 0);
	counts_read(&counts);
	counts_sub(&counts, &opened);
	row_print(ranks, &counts, me.ports, (double)ns / 1e6, resident_mib() - before);
	__atomic_fetch_add(&board->gone, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&board->gone, __ATOMIC_SEQ_CST) < 2)
		if (rank_poll(&me))
			return fail("a poll", 0);
	return counts_check(&counts, ranks, me.props.maxContexts);
}

static int run(int ranks)
{
	size_t size = sizeof(*board) + (size_t)ranks * NCCL_EP_NET_HANDLE_SIZE;
	int status = 0, failed = 0;
	pid_t pid[2];

	board = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		return 1;
	for (int i = 0; i < 2; i++) {
		pid[i] = fork();
		if (!pid[i])
			_exit(i ? others_main(ranks) : rank_main(ranks));
	}
	/* One that fails leaves the other waiting. */
	for (int i = 0; i < 2; i++) {
		pid_t ended = wait(&status);

		if (status && !failed)
			kill(pid[ended == pid[0]], SIGKILL);
		failed |= status;
	}
	munmap(board, size);
	return failed != 0;
}

int main(int argc, char **argv)
{
	struct counts counts;
	int failed = 0;

	if (argc < 3)
		return 2;
	spec = argv[1];
	if (!counts_read(&counts))
		return 77;
	printf("# %s\n", spec);
	printf("#%5s %6s %4s %4s %6s %5s %4s %8s %9s %11s %6s %10s %9s %9s %9s\n", "ranks", "RC QPs", "UD", "EPs",
	       "addrs", "SRQs", "CQs", "sends", "receives", "completions", "MRs", "registered", "ports", "resident",
	       "connect");
	printf("#%5s %6s %4s %4s %6s %5s %4s %8s %9s %11s %6s %10s %9s %9s %9s\n", "", "", "", "", "", "", "", "", "",
	       "", "", "(MiB)", "(MiB)", "(MiB)", "(ms)");
	fflush(stdout);
	for (int i = 2; i < argc; i++)
		failed |= run(atoi(argv[i]));
	return failed;
}
