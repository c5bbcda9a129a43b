/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/boot/topo.h"

#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "util/error.h"
#include "util/fsize.h"
#include "util/param.h"

#define PROBE_KEY UINT64_MAX /* windows count up from 1 */
#define PROBE_SIZE 16
#define NODES_TEXT 48
#define NODE_RANKS 1048576 /* at most, by NCCL_EP_RANKS_PER_NODE */

/* Exchanged as bytes: all ranks run the same build (checked at CreateGroup). */
struct card {
	uint8_t boot_id[16];
	uint8_t process[16]; /* random: pids repeat between containers */
	uint8_t probe[PROBE_SIZE];
	struct ep_fd_token fds;
	int32_t pid;
	struct ep_topo_dev dev;
	char nodes[NODES_TEXT]; /* NCCL_EP_RANKS_PER_NODE */
	int32_t alone;
	int32_t local; /* set by the receiver: the rank is in its process, */
	int32_t slice; /* and the node that `nodes` puts it into */
};

static uint8_t process_cookie[16];
static pthread_once_t process_once = PTHREAD_ONCE_INIT;

static void process_init(void)
{
	if (getrandom(process_cookie, sizeof(process_cookie), 0) < 0)
		memset(process_cookie, 0, sizeof(process_cookie)); /* the pid still tells processes apart */
}

/* Zeros where /proc has none; the probe then still tells hosts apart. */
static void read_boot_id(uint8_t out[16])
{
	char text[64] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	size_t n = 0;

	memset(out, 0, 16);
	if (fd < 0)
		return;
	if (read(fd, text, sizeof(text) - 1) > 0)
		for (const char *c = text; *c && n < 16; c++) {
			unsigned byte;

			if (*c != '-' && sscanf(c, "%2x", &byte) == 1) {
				out[n++] = (uint8_t)byte;
				c++;
			}
		}
	close(fd);
}

/* A random word in shared memory: a rank that can read it shares this node's memory. */
static int probe_offer(struct ep_boot *boot, uint8_t word[PROBE_SIZE])
{
	int rc, fd = memfd_create("nccl_ep_probe", MFD_CLOEXEC);
	struct ep_fsize fsize;
	ssize_t n = -1;
	char why[128];

	if (fd < 0)
		return EP_FAIL(EP_COMM, errno, "topology: memfd_create: %s", strerror(errno));
	errno = EIO;
	ep_fsize_begin(&fsize);
	if (getrandom(word, PROBE_SIZE, 0) == PROBE_SIZE)
		n = write(fd, word, PROBE_SIZE);
	ep_fsize_end(&fsize);
	if (n != PROBE_SIZE) /* short: at the limit */
		rc = EP_FAIL(EP_COMM, n < 0 ? errno : EFBIG, "topology: cannot write the probe: %s",
			     ep_fsize_why(n < 0 ? errno : EFBIG, why, sizeof(why)));
	else
		rc = ep_boot_fd_offer(boot, PROBE_KEY, fd);
	close(fd);
	return rc;
}

static bool probe_reaches(struct ep_boot *boot, const struct card *peer)
{
	uint8_t word[PROBE_SIZE] = { 0 };
	int fd;
	bool same;

	if (ep_boot_fd_fetch(boot, &peer->fds, PROBE_KEY, &fd))
		return false;
	same = pread(fd, word, sizeof(word), 0) == (ssize_t)sizeof(word) && !memcmp(word, peer->probe, sizeof(word));
	close(fd);
	return same;
}

static bool same_process(const struct card *a, const struct card *b)
{
	return a->pid == b->pid && !memcmp(a->process, b->process, 16) && !memcmp(a->boot_id, b->boot_id, 16);
}

/* A home is the leader of a round, which is its own home, and the lowest of its ranks. */
static int check_homes(const int *home, int nranks)
{
	for (int r = 0; r < nranks; r++) {
		int leader = home[r] >= 0 && home[r] <= r ? home[r] : r;

		if (home[r] < -1 || home[r] > r || (home[r] >= 0 && home[leader] >= 0 && home[leader] != leader))
			return EP_FAIL(EP_COMM, EP_EREMOTE, "topology: rank %d names rank %d as the first of its node",
				       r, home[r]);
	}
	return 0;
}

/* Every rank without a home probes the lowest such rank of its boot id; those that reach it share its home. Each round
 * settles at least that rank, so the loop ends. One round is enough, unless containers of a host have separate network
 * namespaces. */
static int find_homes(struct ep_boot *boot, const struct card *card, int rank, int nranks, int *home)
{
	for (int r = 0; r < nranks; r++)
		home[r] = -1;
	for (int round = 0; round < nranks; round++) {
		int open = 0, leader = -1, mine = home[rank], rc;

		for (int r = 0; r < nranks && mine < 0 && leader < 0; r++)
			if (home[r] < 0 && !memcmp(card[r].boot_id, card[rank].boot_id, 16))
				leader = r;
		if (leader >= 0 && (leader == rank || card[leader].local || probe_reaches(boot, &card[leader])))
			mine = leader;
		rc = ep_boot_allgather(boot, &mine, sizeof(mine), home);
		if (rc || (rc = check_homes(home, nranks)))
			return rc;
		for (int r = 0; r < nranks; r++)
			open += home[r] < 0;
		if (!open)
			return 0;
	}
	return EP_FAIL(EP_COMM, EP_EREMOTE, "topology: a rank died while nodes were being detected");
}

static int check_alike(const struct card *card, int nranks)
{
	for (int r = 1; r < nranks; r++)
		if (memcmp(card[r].nodes, card[0].nodes, NODES_TEXT) != 0 || card[r].alone != card[0].alone)
			return EP_FAIL(EP_COMM, EP_EARG,
				       "NCCL_EP_RANKS_PER_NODE and NCCL_EP_P2P_DISABLE differ between rank 0 (%.*s, "
				       "%d) and rank %d (%.*s, %d)",
				       NODES_TEXT - 1, card[0].nodes, card[0].alone, r, NODES_TEXT - 1, card[r].nodes,
				       card[r].alone);
	return 0;
}

/* The node of a rank by a list of nodes' sizes, of which the last repeats; -1: it is no such list. */
static int slice_of(const char *text, int rank)
{
	long first = 0, size;
	int node = 0, found = -1;
	char *end = NULL;

	if (!*text || !strcmp(text, "0"))
		return 0;
	do {
		size = isdigit((unsigned char)*text) ? strtol(text, &end, 10) : 0;
		if (size < 1 || size > NODE_RANKS || (*end && *end != ','))
			return -1;
		if (found < 0 && rank < first + size)
			found = node;
		first += size;
		node++;
		text = end + 1;
	} while (*end);
	return found < 0 ? node + (int)((rank - first) / size) : found;
}

/* After check_alike: all have the text of this rank. */
static int slices_make(struct card *card, int rank, int nranks)
{
	for (int r = 0; r < nranks; r++) {
		card[r].slice = slice_of(card[rank].nodes, r);
		if (card[r].slice < 0)
			return EP_FAIL(EP_COMM, EP_EARG,
				       "rank %d: NCCL_EP_RANKS_PER_NODE=%s is neither a number of ranks nor a list of "
				       "them such as 2,1,4",
				       rank, card[rank].nodes);
	}
	return 0;
}

static bool same_node(const struct card *card, const int *home, int a, int b)
{
	return home[a] == home[b] && (!card[0].alone || a == b) && card[a].slice == card[b].slice;
}

/* The lowest rank of r's process. Of this process's ranks we know; what others say of theirs only they depend on. */
static int process_of(const struct card *card, int r)
{
	int first = 0;

	while (card[first].local != card[r].local || (!card[r].local && !same_process(&card[first], &card[r])))
		first++;
	return first;
}

/* Nodes are numbered by their lowest rank. */
static void number(const struct card *card, const int *home, int rank, struct ep_topo *topo)
{
	for (int r = 0; r < topo->nranks; r++) {
		struct ep_topo_rank *me = &topo->rank[r];
		int first = 0;

		while (!same_node(card, home, first, r))
			first++;
		me->node = first == r ? topo->nodes++ : topo->rank[first].node;
		me->home = home[r];
		me->pid_rank = process_of(card, r);
		me->dev = card[r].dev;
		me->fds = card[r].fds;
		for (int q = 0; q < r; q++)
			me->local += topo->rank[q].node == me->node;
	}
	topo->alone = card[0].alone;
	topo->node = topo->rank[rank].node;
	topo->local = topo->rank[rank].local;
	for (int r = 0; r < topo->nranks; r++)
		topo->locals += topo->rank[r].node == topo->node;
}

int ep_topo_build(struct ep_boot *boot, int rank, int nranks, const struct ep_topo_dev *dev, struct ep_topo *out)
{
	struct ep_topo topo = { .nranks = nranks };
	struct card mine = { .pid = (int32_t)getpid(), .dev = *dev };
	struct card *card = EP_CALLOC(EP_COMM, (size_t)nranks, sizeof(*card), "the topology");
	int *home = EP_CALLOC(EP_COMM, (size_t)nranks, sizeof(*home), "the topology");
	int rc = -ENOMEM;

	topo.rank = EP_CALLOC(EP_COMM, (size_t)nranks, sizeof(*topo.rank), "the topology");
	if (!card || !home || !topo.rank)
		goto out;
	pthread_once(&process_once, process_init);
	memcpy(mine.process, process_cookie, sizeof(mine.process));
	read_boot_id(mine.boot_id);
	snprintf(mine.nodes, sizeof(mine.nodes), "%s", ep_param_str(EP_P_RANKS_PER_NODE));
	mine.alone = ep_param_bool(EP_P_P2P_DISABLE);
	ep_boot_fd_token(boot, &mine.fds);
	if ((rc = probe_offer(boot, mine.probe)))
		goto out;
	if ((rc = ep_boot_allgather(boot, &mine, sizeof(mine), card)) || (rc = check_alike(card, nranks)) ||
	    (rc = slices_make(card, rank, nranks)))
		goto withdraw;
	/* Before the next collective: after it another rank may be done and close its endpoint. */
	for (int r = 0; r < nranks; r++)
		card[r].local = ep_boot_is_local(boot, r, &card[r].fds);
	if ((rc = find_homes(boot, card, rank, nranks, home)))
		goto withdraw;
	number(card, home, rank, &topo);
	EP_INFO(EP_COMM, "rank %d: node %d of %d, local rank %d of %d", rank, topo.node, topo.nodes, topo.local,
		topo.locals);
withdraw:
	ep_boot_fd_withdraw(boot, PROBE_KEY);
out:
	free(card);
	free(home);
	if (rc)
		free(topo.rank);
	else
		*out = topo;
	return rc;
}

void ep_topo_free(struct ep_topo *topo)
{
	free(topo->rank);
	topo->rank = NULL;
}

bool ep_topo_near(const struct ep_topo *topo, int a, int b)
{
	const struct ep_topo_rank *one = &topo->rank[a], *other = &topo->rank[b];

	/* Of one process: there the ordinal names the device. */
	return one->node == other->node && one->pid_rank == other->pid_rank && one->dev.kind == other->dev.kind &&
	       one->dev.ordinal == other->dev.ordinal;
}

/* Of a field that is zero where nothing is known. */
static bool known(const void *field, size_t size)
{
	static const uint8_t none[32];

	return memcmp(field, none, size) != 0;
}

bool ep_topo_shares(const struct ep_topo *topo, int a, int b)
{
	const struct ep_topo_rank *one = &topo->rank[a], *other = &topo->rank[b];
	const struct ep_topo_dev *x = &one->dev, *y = &other->dev;

	if (x->kind != y->kind)
		return false;
	/* Unique in the world, so it also joins containers of a host that cannot reach each other. */
	if (known(x->uuid, sizeof(x->uuid)) && known(y->uuid, sizeof(y->uuid)))
		return !memcmp(x->uuid, y->uuid, sizeof(x->uuid));
	if (one->home != other->home)
		return false;
	if (known(x->pci, sizeof(x->pci)) && known(y->pci, sizeof(y->pci)))
		return !memcmp(x->pci, y->pci, sizeof(x->pci));
	/* Nothing tells them apart: blocks that wait for each other must be resident, so they count as sharers. */
	return one->pid_rank != other->pid_rank || x->ordinal == y->ordinal;
}

/*
 * A percentage of MPS limits a process but reserves nothing for it. Where the limits add up to the GPU, MPS gives some
 * SMs to two processes, and their blocks share them although others are idle: on an H200 6 of 66 at 50 %, up to 12 of
 * 32 at 25 %, and HT took 3 to 11 % longer (doc/performance.md). None are shared if a tenth of the GPU is left free,
 * by each process half of that, or a fifth of its part where that is less.
 */
static uint64_t unshared(uint64_t seen, uint64_t sum, uint64_t all)
{
	uint64_t spare = all / 10, own = spare / 2 < seen / 5 ? spare / 2 : seen / 5, n;

	n = (all - spare) * seen / sum;
	return n < seen - own ? n : seen - own;
}

unsigned ep_topo_blocks(const struct ep_topo *topo, int rank)
{
	uint64_t seen = topo->rank[rank].dev.sms, sum = 0, all = 0, n;
	bool apart = false;

	for (int r = 0; r < topo->nranks; r++) {
		const struct ep_topo_dev *dev = &topo->rank[r].dev;
		uint32_t has = dev->sms_all > dev->sms ? dev->sms_all : dev->sms;

		if (!ep_topo_shares(topo, rank, r))
			continue;
		sum += dev->sms;
		all = has > all ? has : all;
		apart |= topo->rank[r].pid_rank != topo->rank[rank].pid_rank;
	}
	n = sum ? all * seen / sum : 0;
	n = n < seen ? n : seen;
	if (apart && seen < all && sum > all - all / 10)
		n = unshared(seen, sum, all);
	return n ? (unsigned)n : 1;
}
