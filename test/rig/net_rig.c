/* SPDX-License-Identifier: Apache-2.0 */
#include "net_rig.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/net/net_spread.h"
#include "util/error.h"

/* What a bootstrap would exchange. */
struct net_board {
	uint32_t arrived[1024]; /* by meeting number */
	uint32_t present;
	int32_t pid[NET_RANKS];
	int32_t errors[NET_RANKS];
	uint8_t handles[NET_RANKS][NCCL_EP_NET_HANDLE_SIZE], keys[NET_RANKS][NCCL_EP_NET_KEY_SIZE];
};

void net_leave(struct net_rank *me)
{
	__atomic_fetch_sub(&me->board->present, 1, __ATOMIC_SEQ_CST);
}

pid_t net_pid(struct net_rank *me, int rank)
{
	return me->board->pid[rank];
}

struct stepper {
	struct net_rank *me;
	_Atomic bool end;
};

static void *stepper_main(void *arg)
{
	struct stepper *s = arg;
	int n;

	while (!s->end) {
		s->me->hot->progress(s->me->ctx, NULL, 0, &n);
		sched_yield();
	}
	return NULL;
}

/* Blocks, so that a thread makes progress meanwhile; nobody else uses the context. */
static void gather_all(struct net_rank *me, const void *mine, size_t bytes, void *all)
{
	struct stepper stepper = { .me = me };
	pthread_t thread;
	bool steps = me->ctx && !pthread_create(&thread, NULL, stepper_main, &stepper);

	EXPECT(me, me->test->gather(me->test->gather_arg, mine, bytes, all) == 0);
	stepper.end = true;
	if (steps)
		pthread_join(thread, NULL);
}

/* What each rank has written to its place in all[ranks], to everybody. */
static void net_share(struct net_rank *me, void *all, size_t bytes)
{
	uint8_t mine[NCCL_EP_NET_HANDLE_SIZE];

	if (!me->test->gather) {
		net_meet(me);
		return;
	}
	memcpy(mine, (uint8_t *)all + (size_t)me->rank * bytes, bytes);
	gather_all(me, mine, bytes, all);
}

void net_meet(struct net_rank *me)
{
	uint8_t here = 1, all[NET_RANKS];
	uint32_t *arrived = &me->board->arrived[me->meetings++ % 1024];
	uint64_t end = ep_deadline_ms(NET_WAIT_MS);
	int n;

	if (me->test->gather) {
		gather_all(me, &here, 1, all);
		return;
	}
	__atomic_fetch_add(arrived, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(arrived, __ATOMIC_SEQ_CST) < __atomic_load_n(&me->board->present, __ATOMIC_SEQ_CST)) {
		if (ep_now_ns() > end) {
			EXPECT(me, !"all ranks arrived");
			return;
		}
		if (me->ctx) /* room for 0 immediates: peers that are ahead may send already */
			me->hot->progress(me->ctx, NULL, 0, &n);
		sched_yield();
	}
}

void net_step(struct net_rank *me, net_take take, void *arg)
{
	uint32_t imms[16];
	int n = 0;

	EXPECT(me, me->hot->progress(me->ctx, imms, 16, &n) == 0);
	EXPECT(me, take || !n);
	for (int i = 0; i < n && take; i++)
		take(me, imms[i], arg);
	if (!n)
		sched_yield();
}

int net_end(struct net_rank *me, void *request, net_take take, void *arg)
{
	uint64_t end = ep_deadline_ms(NET_WAIT_MS);
	int done = 0, rc = 0;

	while (!done && ep_now_ns() < end) {
		rc = me->hot->test(me->ctx, request, &done);
		if (!done)
			net_step(me, take, arg);
	}
	return done ? rc : -ETIMEDOUT;
}

int net_put(struct net_rank *me, const ncclEpNetPut_v1_t *put, net_take take, void *arg)
{
	uint64_t end = ep_deadline_ms(NET_WAIT_MS);
	void *request = NULL;
	int rc = 0;

	while (!request && !rc && ep_now_ns() < end) {
		rc = me->hot->iput(me->ctx, put, &request);
		if (!request && !rc)
			net_step(me, take, arg);
	}
	if (rc || !request)
		return rc ? rc : -ETIMEDOUT;
	return request == NCCL_EP_NET_QUIET_REQUEST ? 0 : net_end(me, request, take, arg);
}

int net_put_to(struct net_rank *me, int peer)
{
	ncclEpNetPut_v1_t put = { .peer = peer, .srcMr = me->mr, .dstMr = me->mr, .size = 64 };

	put.dstOffset = 4096 + 64 * (uint64_t)me->rank;
	return net_put(me, &put, NULL, NULL);
}

void net_see_loss(struct net_rank *me, int lost, int other)
{
	uint64_t end = ep_deadline_ms(NET_WAIT_MS);
	char name[32];
	const char *why = "";
	int rc = 0;

	snprintf(name, sizeof(name), "rank %d", lost);
	while (!rc && ep_now_ns() < end) {
		rc = net_put_to(me, lost);
		EXPECT(me, net_put_to(me, other) == 0);
		net_step(me, NULL, NULL);
	}
	EXPECT(me, rc == -EREMOTEIO);
	EXPECT(me, net_put_to(me, lost) == -EREMOTEIO);
	EXPECT(me, net_put_to(me, other) == 0);
	EXPECT(me, me->net->ops.queryLastError(me->comm, lost, &why) == -EREMOTEIO && strstr(why, name));
	EXPECT(me, me->net->ops.queryLastError(me->comm, other, &why) == 0);
}

void net_close(struct net_rank *me)
{
	const ncclEpNet_v1_t *ops = &me->net->ops;

	EXPECT(me, ops->deregMr(me->comm, me->mr) == 0 && ops->destroyContext(me->ctx) == 0);
	me->ctx = NULL; /* a meeting turns none */
	EXPECT(me, ops->closeComm(me->comm) == 0);
}

void net_alone(struct net_rank *me)
{
	ncclEpNetMem_v1_t mem = { .ptr = me->mem, .size = me->test->bytes, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };
	uint8_t handle[NCCL_EP_NET_HANDLE_SIZE] = { 0 }, key[NCCL_EP_NET_KEY_SIZE];
	const ncclEpNet_v1_t *ops = &me->net->ops;
	void *listener = NULL, *comm = NULL;

	EXPECT(me, ops->listen(me->net->net, 0, 1, handle, &listener) == 0);
	for (uint64_t end = ep_deadline_ms(NET_WAIT_MS); !comm && ep_now_ns() < end;)
		EXPECT(me, ops->connect(listener, handle, 1, 0, &comm) == 0);
	EXPECT(me, comm && ops->closeListen(listener) == 0);
	me->comm = comm;
	EXPECT(me, ops->createContext(comm, 0, &me->ctx) == 0);
	EXPECT(me, ops->regMr(comm, &mem, key, &me->mr) == 0);
}

void net_close_early(struct net_rank *me)
{
	net_close(me);
	net_alone(me);
}

static int memory_open(struct net_rank *me, int *fd)
{
	size_t n = me->test->bytes;

	*fd = memfd_create("net_rig", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0 || ftruncate(*fd, (off_t)n) || fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK))
		return -1;
	me->mem = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	return me->mem == MAP_FAILED;
}

static int rank_open(struct net_rank *me)
{
	struct net_board *b = me->board;
	ncclEpNetMem_v1_t mem = { .size = me->test->bytes, .kind = NCCL_EP_NET_MEM_HOST };
	uint8_t handles[NET_RANKS][NCCL_EP_NET_HANDLE_SIZE] = { { 0 } };
	void *listener = NULL;
	int fd, dev;

	if (memory_open(me, &fd) || ep_net_open(me->test->spec, &me->net))
		return -1;
	me->hot = me->net->ops.hot;
	dev = net_spread(me->net, me->rank);
	if (me->net->ops.getProperties(me->net->net, dev, &me->props) ||
	    me->net->ops.listen(me->net->net, dev, me->nranks, b->handles[me->rank], &listener))
		return -1;
	b->pid[me->rank] = getpid();
	net_share(me, b->handles, NCCL_EP_NET_HANDLE_SIZE);
	for (int r = 0; r < me->nranks; r++)
		if (r == me->rank || !me->test->peers || me->test->peers(me->rank, r))
			memcpy(handles[r], b->handles[r], sizeof(handles[r]));
	while (!me->comm)
		if (me->net->ops.connect(listener, handles, me->nranks, me->rank, &me->comm))
			return -1;
	mem.ptr = me->mem;
	mem.fd = me->test->hidden ? -1 : fd;
	if (me->net->ops.closeListen(listener) || me->net->ops.createContext(me->comm, 0, &me->ctx) ||
	    me->net->ops.regMr(me->comm, &mem, b->keys[me->rank], &me->mr))
		return -1;
	close(fd);
	net_share(me, b->keys, NCCL_EP_NET_KEY_SIZE);
	me->share_rc = me->net->ops.shareMr(me->comm, me->mr, b->keys);
	if (me->share_rc)
		snprintf(me->message, sizeof(me->message), "%s", ep_last_error());
	EXPECT(me, !me->share_rc || me->test->hidden);
	net_meet(me);
	return 0;
}

static void rank_close(struct net_rank *me)
{
	net_meet(me);
	EXPECT(me, me->net->ops.deregMr(me->comm, me->mr) == 0);
	EXPECT(me, me->net->ops.destroyContext(me->ctx) == 0);
	me->ctx = NULL;
	net_meet(me);
	EXPECT(me, me->net->ops.closeComm(me->comm) == 0);
	ep_net_close(me->net);
	munmap(me->mem, me->test->bytes);
}

static void rank_main(struct net_rank *me)
{
	if (rank_open(me)) {
		fprintf(stderr, "net_rig: %s, rank %d: %s\n", me->test->spec, me->rank, ep_last_error());
		me->errors++;
	} else {
		me->test->run(me);
		rank_close(me);
	}
	me->board->errors[me->rank] = me->errors;
}

static void *thread_main(void *arg)
{
	rank_main(arg);
	return NULL;
}

/* Ranks [first, end) as threads. */
static int threads_run(struct net_rank *ranks, int first, int end)
{
	pthread_t thread[NET_RANKS];
	int errors = 0;

	for (int r = first; r < end; r++)
		errors += pthread_create(&thread[r], NULL, thread_main, &ranks[r]) != 0;
	for (int r = first; r < end && !errors; r++)
		pthread_join(thread[r], NULL);
	return errors;
}

/* Tests kill ranks by SIGKILL. */
static int processes_run(struct net_rank *ranks, int n, int each)
{
	pid_t pid[NET_RANKS];
	int errors = 0, status, count = 0;

	for (int r = 0; r < n; r += each) {
		pid[count] = fork();
		if (pid[count++] == 0)
			_exit(ranks->test->enter && ranks->test->enter(r)
				      ? 1
				      : threads_run(ranks, r, r + each < n ? r + each : n));
	}
	for (int i = 0; i < count; i++)
		errors += waitpid(pid[i], &status, 0) != pid[i] || (WIFEXITED(status) && WEXITSTATUS(status)) ||
			  (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL);
	return errors;
}

/* In a child, so that the parent does not load a provider before the ranks are forked. */
bool net_absent(const char *spec)
{
	pid_t pid = fork();
	struct ep_net *net;
	int status;

	if (pid == 0) {
		if (ep_net_open(spec, &net) != -ENODEV)
			_exit(0);
		fprintf(stderr, "skipped: %s\n", ep_last_error());
		_exit(77);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 77;
}

int net_run(const struct net_case *test)
{
	struct net_board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct net_rank ranks[NET_RANKS];
	int errors;

	if (board == MAP_FAILED)
		return 1;
	board->present = (uint32_t)test->ranks;
	for (int r = 0; r < test->ranks; r++)
		ranks[r] = (struct net_rank){ .test = test, .board = board, .rank = r, .nranks = test->ranks };
	if (test->gather)
		rank_main(&ranks[test->rank]);
	errors = test->gather ? 0
		 : test->each ? processes_run(ranks, test->ranks, test->each)
			      : threads_run(ranks, 0, test->ranks);
	for (int r = 0; r < test->ranks; r++)
		errors += board->errors[r];
	munmap(board, sizeof(*board));
	if (errors)
		fprintf(stderr, "%s: %d ranks, %d in a process: %d errors\n", test->spec, test->ranks,
			test->each ? test->each : test->ranks, errors);
	return errors;
}
