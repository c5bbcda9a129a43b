/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Under `ulimit -f` the memory files of a group and the log file cannot grow: an error that names the limit, on the
 * rank that met it, not the end of the process by SIGXFSZ. Its disposition and the mask of the caller's thread stay as
 * they were, and nothing is left pending. Two ranks as threads in a child process each. Exit status 0 or 1.
 */
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "test/standin/ranks.h"

#include "nccl_ep.h"
#include "nccl_ep_ext.h"

static atomic_int named; /* messages with the limit, of either rank */

static int signals_as_before(void)
{
	struct sigaction act;
	sigset_t set;
	int bad = 0;

	EXPECT(!sigaction(SIGXFSZ, NULL, &act) && act.sa_handler == SIG_DFL);
	EXPECT(!pthread_sigmask(SIG_SETMASK, NULL, &set) && !sigismember(&set, SIGXFSZ));
	EXPECT(!sigpending(&set) && !sigismember(&set, SIGXFSZ));
	return bad;
}

static void group_make(struct rank *me, ncclEpAlgorithm_t algorithm, ncclEpGroup_t *group)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = algorithm;
	c.num_experts = 8;
	c.max_dispatch_tokens_per_rank = 16;
	c.max_recv_tokens_per_rank = 32;
	c.max_token_bytes = 256;
	c.num_topk = 2;
	c.rdma_buffer_size = algorithm == NCCL_EP_ALGO_LOW_LATENCY ? 1 << 20 : NCCL_EP_AUTO;
	ncclEpCreateGroup(group, me->comm, &c);
}

/* HT's payload is small: with an argument LL only. */
static int no_window(struct rank *me)
{
	int bad = 0;

	for (int i = 0; i < (me->arg ? 1 : 2); i++) {
		ncclEpGroup_t group = NULL;

		group_make(me, i ? NCCL_EP_ALGO_HIGH_THROUGHPUT : NCCL_EP_ALGO_LOW_LATENCY, &group);
		EXPECT(!group);
		/* The other rank's message may have been first, where the mesh told it. */
		if (!strstr(anyEpGetLastError(), "ulimit -f") && !strstr(anyEpGetLastError(), "rank")) {
			fprintf(stderr, "rank %d: %s\n", me->rank, anyEpGetLastError());
			bad++;
		}
		atomic_fetch_add(&named, strstr(anyEpGetLastError(), "ulimit -f") != NULL);
	}
	return bad + signals_as_before();
}

static int works(struct rank *me)
{
	ncclEpGroup_t group = NULL;
	int bad = 0;

	group_make(me, NCCL_EP_ALGO_LOW_LATENCY, &group);
	EXPECT(group);
	EXPECT_OK(ncclEpGroupDestroy(group));
	return bad + signals_as_before();
}

static void *init_only(void *arg)
{
	struct rank *me = arg;
	int bad = 0;

	EXPECT(ncclCommInitRank(&me->comm, me->n, me->id, me->rank) != ncclSuccess);
	EXPECT(strstr(ncclGetLastError(NULL), "ulimit -f") || strstr(ncclGetLastError(NULL), "rank"));
	atomic_fetch_add(&named, strstr(ncclGetLastError(NULL), "ulimit -f") != NULL);
	me->bad = bad + signals_as_before();
	return NULL;
}

/* Not even the 16 bytes of the topology's probe. */
static int no_file(void)
{
	static struct rank ranks[2];
	ncclUniqueId id;
	int bad = 0;

	EXPECT_OK(ncclGetUniqueId(&id));
	for (int i = 0; i < 2; i++) {
		ranks[i] = (struct rank){ .id = id, .rank = i, .n = 2 };
		EXPECT(!pthread_create(&ranks[i].thread, NULL, init_only, &ranks[i]));
	}
	for (int i = 0; i < 2; i++) {
		pthread_join(ranks[i].thread, NULL);
		bad += ranks[i].bad;
	}
	return bad;
}

static int log_full(void)
{
	char name[] = "/tmp/file_limit.XXXXXX";
	struct stat st = { 0 };
	int fd = mkstemp(name), bad = 0;

	EXPECT(fd >= 0);
	setenv("NCCL_EP_DEBUG", "TRACE", 1);
	setenv("NCCL_EP_DEBUG_FILE", name, 1);
	bad += ranks_threads(2, no_window, NULL);
	EXPECT(!fstat(fd, &st) && st.st_size > 0 && st.st_size <= 512);
	close(fd);
	unlink(name);
	return bad;
}

static int windows(void)
{
	return ranks_threads(2, no_window, NULL);
}

static int payload(void)
{
	int ll = 1;

	return ranks_threads(2, no_window, &ll);
}

static int loop_net(void)
{
	setenv("NCCL_EP_RANKS_PER_NODE", "1", 1);
	setenv("NCCL_EP_NET", "loop", 1);
	return ranks_threads(2, no_window, NULL);
}

static int enough(void)
{
	return ranks_threads(2, works, NULL);
}

static const struct {
	const char *name;
	int (*fn)(void);
	rlim_t limit;
} cases[] = {
	{ "no file", no_file, 0 },	 { "half a probe", no_file, 8 },
	{ "no window", windows, 64 },	 { "control page, but no window", payload, 65536 },
	{ "loop net", loop_net, 65536 }, { "log file", log_full, 512 },
	{ "enough", enough, 64 << 20 },
};

int main(void)
{
	int failed = 0, n = sizeof(cases) / sizeof(cases[0]);

	setenv("NCCL_EP_DEBUG", "NONE", 0);
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();
		int status = -1;

		if (!pid) {
			struct rlimit limit = { cases[i].limit, RLIM_INFINITY };
			struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };
			int bad = setrlimit(RLIMIT_FSIZE, &limit) || cases[i].fn() || (cases[i].fn != enough && !named);

			/* ./run coverage writes its counts at exit. */
			_exit(setrlimit(RLIMIT_FSIZE, &none) || bad);
		}
		waitpid(pid, &status, 0);
		printf("%s %s%s\n", status ? "not ok" : "ok", cases[i].name,
		       WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ ? ": killed by SIGXFSZ" : "");
		fflush(stdout);
		failed += status != 0;
	}
	printf("%d passed, %d failed\n", n - failed, failed);
	return failed ? 1 : 0;
}
