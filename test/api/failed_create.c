/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creations that fail, many times in one process: they leave no descriptor, thread or mapping, on the rank at fault and
 * on the other, two threads. Nor does a group whose other rank, a process, dies. Only public functions. Exit
 * status 0 or 1.
 */
#include <dirent.h>
#include <time.h>

#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

enum { SETTLE_MS = 5000 };

static ncclEpGroupConfig_t config_of(ncclEpAlgorithm_t algorithm)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = algorithm;
	c.num_experts = 8;
	c.max_dispatch_tokens_per_rank = 16;
	c.max_recv_tokens_per_rank = 32;
	c.max_token_bytes = 256;
	return c;
}

static int refused(struct rank *me, const ncclEpGroupConfig_t *c, const char *word)
{
	ncclEpGroup_t group = NULL;
	int bad = 0;

	EXPECT(ncclEpCreateGroup(&group, me->comm, c) != ncclSuccess && !group);
	if (!strstr(anyEpGetLastError(), word)) {
		fprintf(stderr, "rank %d: no \"%s\" in: %s\n", me->rank, word, anyEpGetLastError());
		bad++;
	}
	return bad;
}

static int bad_config(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);

	if (me->rank == 1)
		c.magic = 0;
	return refused(me, &c, me->rank == 1 ? "magic" : "rank 1");
}

static int unlike_config(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);

	c.max_token_bytes += 16 * (unsigned)me->rank;
	return refused(me, &c, "max_token_bytes");
}

static int huge_window(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);

	c.rdma_buffer_size = 1ul << 46;
	return refused(me, &c, "window of");
}

static int huge_window_ht(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_HIGH_THROUGHPUT);

	c.max_token_bytes = 1u << 20;
	c.max_recv_tokens_per_rank = 1u << 30;
	c.num_topk = 2;
	return refused(me, &c, "window of");
}

static int no_net(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);

	return refused(me, &c, "net");
}

static int no_net_ht(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_HIGH_THROUGHPUT);

	return refused(me, &c, "net");
}

/* Rank 0 creates the group's id and waits, until the deadline of the communicator, which then is of no use. */
static int missing(struct rank *me)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);
	struct timespec nap = { .tv_nsec = 500000000 };

	if (!me->rank)
		return refused(me, &c, "rank 1");
	nanosleep(&nap, NULL);
	return 0;
}

struct count {
	int fds, threads, maps;
};

static int entries(const char *path)
{
	DIR *dir = opendir(path);
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

/* Windows only: arenas of malloc come and go with threads. */
static int windows(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:") != NULL;
	if (f)
		fclose(f);
	return n;
}

static void *nothing(void *arg)
{
	return arg;
}

/* After a thread: TSan starts one of its own with the first. */
static struct count count(void)
{
	pthread_t thread;

	if (!pthread_create(&thread, NULL, nothing, NULL))
		pthread_join(thread, NULL);
	return (struct count){ entries("/proc/self/fd"), entries("/proc/self/task"), windows() };
}

/* Service threads end a moment after the call returns; a meeting point tells latecomers for one timeout. */
static int settled(struct count before, struct count *now)
{
	struct timespec nap = { .tv_nsec = 10000000 };

	for (int i = 0; i < SETTLE_MS / 10; i++) {
		*now = count();
		if (now->fds <= before.fds && now->threads <= before.threads && now->maps <= before.maps)
			return 1;
		nanosleep(&nap, NULL);
	}
	return 0;
}

static int again(struct rank *me)
{
	int (*fn)(struct rank *) = (int (*)(struct rank *))(uintptr_t)me->arg;

	return fn(me);
}

/* Many times over one communicator; before the last, so that nothing of the next is counted. */
struct turns {
	int (*fn)(struct rank *me);
	int times;
};

static int in_turns(struct rank *me)
{
	const struct turns *turns = me->arg;
	int bad = 0;

	for (int i = 0; i < turns->times; i++)
		bad += turns->fn(me);
	return bad;
}

static const struct kind {
	const char *name;
	int (*fn)(struct rank *me);
	int times;
	int comms;		      /* a communicator each */
	const char *variable, *value; /* for this kind; may be NULL */
} kinds[] = {
	{ "bad config", bad_config, 50, 0, NULL, NULL },
	{ "unlike config", unlike_config, 50, 0, NULL, NULL },
	{ "huge window", huge_window, 50, 0, NULL, NULL },
	{ "huge window, HT", huge_window_ht, 50, 0, NULL, NULL },
	{ "no net", no_net, 50, 0, "NCCL_EP_NET", "no_such_net" },
	{ "no net, HT", no_net_ht, 50, 0, "NCCL_EP_NET", "no_such_net" },
	{ "rank missing", missing, 5, 1, "NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "300" },
};

static int kind_run(const struct kind *kind, int times)
{
	struct turns turns = { kind->fn, times };
	int bad = 0;

	if (!kind->comms)
		return ranks_threads(2, in_turns, &turns);
	for (int i = 0; i < times; i++)
		bad += ranks_threads(2, again, (void *)(uintptr_t)kind->fn);
	return bad;
}

/* In a process of its own: variables are read once. */
static int kind_child(const struct kind *kind)
{
	struct count before, after;
	int bad;

	if (kind->variable)
		setenv(kind->variable, kind->value, 1);
	if (kind->fn == no_net || kind->fn == no_net_ht)
		setenv("NCCL_EP_RANKS_PER_NODE", "1", 1);
	before = count();
	bad = kind_run(kind, kind->times);
	if (!settled(before, &after)) {
		fprintf(stderr, "%s: descriptors %d to %d, threads %d to %d, windows %d to %d\n", kind->name,
			before.fds, after.fds, before.threads, after.threads, before.maps, after.maps);
		bad++;
	}
	return bad;
}

/* The other rank is a process that ends right after its creation. */
static int deserter(int gate)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);
	struct rank me = { .rank = 1, .n = 2 };
	ncclEpGroup_t group = NULL;

	if (read(gate, &me.id, sizeof(me.id)) != (ssize_t)sizeof(me.id) ||
	    ncclCommInitRank(&me.comm, me.n, me.id, me.rank) != ncclSuccess)
		return 1;
	return ncclEpCreateGroup(&group, me.comm, &c) != ncclSuccess;
}

static int deserted(int gate)
{
	ncclEpGroupConfig_t c = config_of(NCCL_EP_ALGO_LOW_LATENCY);
	struct timespec nap = { .tv_nsec = 1000000 };
	struct rank me = { .n = 2 };
	ncclEpGroup_t group = NULL;
	int bad = 0, code = 0;

	EXPECT_OK(ncclGetUniqueId(&me.id));
	EXPECT(write(gate, &me.id, sizeof(me.id)) == (ssize_t)sizeof(me.id));
	EXPECT_OK(ncclCommInitRank(&me.comm, me.n, me.id, me.rank));
	ncclEpCreateGroup(&group, me.comm, &c);
	/* A creation that succeeded here: the group fails at once. */
	for (int i = 0; group && !code && i < SETTLE_MS; i++) {
		nanosleep(&nap, NULL);
		ncclEpGetAsyncError(group, &code);
	}
	EXPECT(!group || code);
	ncclEpGroupDestroy(group);
	ncclCommDestroy(me.comm);
	return bad;
}

static int deserters(void)
{
	enum { TIMES = 10 };
	struct count before, after;
	int gate[2], bad = 0, status;
	pid_t pid[TIMES];

	EXPECT(!pipe(gate));
	for (int i = 0; i < TIMES; i++)
		if (!(pid[i] = fork()))
			_exit(deserter(gate[0]));
	before = count();
	for (int i = 0; i < TIMES; i++)
		bad += deserted(gate[1]);
	for (int i = 0; i < TIMES; i++)
		EXPECT(waitpid(pid[i], &status, 0) == pid[i] && !status);
	if (!settled(before, &after)) {
		fprintf(stderr, "deserters: descriptors %d to %d, threads %d to %d, windows %d to %d\n", before.fds,
			after.fds, before.threads, after.threads, before.maps, after.maps);
		bad++;
	}
	return bad;
}

int main(void)
{
	int failed = 0, n = sizeof(kinds) / sizeof(kinds[0]);

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();
		int status = -1;

		if (!pid)
			_exit(kind_child(&kinds[i]) ? 1 : 0);
		waitpid(pid, &status, 0);
		printf("%s %s\n", status ? "not ok" : "ok", kinds[i].name);
		fflush(stdout);
		failed += status != 0;
	}
	if (deserters()) {
		printf("not ok rank dies\n");
		failed++;
	} else {
		printf("ok rank dies\n");
	}
	printf("%d passed, %d failed\n", n + 1 - failed, failed);
	return failed ? 1 : 0;
}
