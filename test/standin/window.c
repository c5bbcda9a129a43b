/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, windows and teams, and libnccl_ep's queries about them. */
#include <criterion/criterion.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <nccl_device.h>
#include <sys/mman.h>

#include "plugin/standin/query.h"
#include "ranks.h"

TestSuite(standin_window, .timeout = 60);

Test(standin_window, memory_is_zeroed_aligned_and_the_callers)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *p[3];

	for (int i = 0; i < 3; i++) {
		cr_assert(ncclMemAlloc((void **)&p[i], 3 * page + 5) == ncclSuccess);
		cr_expect((uintptr_t)p[i] % page == 0);
		for (size_t b = 0; b < 3 * page + 5; b++)
			cr_assert(p[i][b] == 0);
		memset(p[i], i + 1, 3 * page + 5);
	}
	cr_expect(p[0][0] == 1 && p[1][3 * page + 4] == 2 && p[2][7] == 3);
	cr_expect(ncclMemFree(p[1]) == ncclSuccess);
	cr_expect(ncclMemFree(p[0]) == ncclSuccess);
	cr_expect(ncclMemFree(p[0]) == ncclInvalidArgument, "twice");
	cr_expect(ncclMemFree(p[2] + page) == ncclInvalidArgument, "the middle of one");
	cr_expect(ncclMemFree(p[2]) == ncclSuccess);
}

/* A second mapping of the memory, by the descriptor that another process would get. */
Test(standin_window, memory_can_be_exported)
{
	const struct ep_standin_query *query = ncclEpStandinQuery();
	size_t bytes = 100000;
	uint64_t offset = 0, size = 0;
	char *p, *other;
	int fd = -1, fds = -1;

	cr_assert(ncclMemAlloc((void **)&p, bytes) == ncclSuccess);
	cr_assert(query->mem_export(p + 70000, &fd, &offset, &size) == 0);
	cr_expect(offset == 70000 && size >= bytes);
	other = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert(other != MAP_FAILED);
	p[70000] = 42;
	cr_expect(other[offset] == 42);
	munmap(other, size);
	cr_expect(fcntl(fd, F_GETFD) & FD_CLOEXEC, "no child inherits it");
	close(fd);
	cr_expect(query->mem_export(p + bytes, &fds, &offset, &size) == -ENOENT, "one past the end");
	cr_expect(query->mem_export(&p, &fds, &offset, &size) == -ENOENT && fds == -1);
	cr_assert(ncclMemFree(p) == ncclSuccess);
	cr_expect(query->mem_export(p, &fds, &offset, &size) == -ENOENT, "after the free");
}

static int windows(struct rank *me)
{
	const struct ep_standin_query *query = ncclEpStandinQuery();
	ncclWindow_t a = NULL, b = NULL;
	void *p = NULL, *base = NULL;
	char memory[2][256];
	size_t size = 0;
	int bad = 0;

	EXPECT_OK(ncclCommWindowRegister(me->comm, memory[0], 100 + (size_t)me->rank, &a, NCCL_WIN_COLL_SYMMETRIC));
	EXPECT_OK(ncclCommWindowRegister(me->comm, memory[1], 256, &b, NCCL_WIN_DEFAULT));
	EXPECT(a && b && a != b);
	EXPECT_OK(ncclWinGetUserPtr(me->comm, a, &p));
	EXPECT(p == memory[0]);
	EXPECT(query->win_user_ptr(me->comm, b, &p) == ncclSuccess && p == memory[1]);
	EXPECT(query->window_info(a, &base, &size) == 0 && base == memory[0] && size == 100 + (size_t)me->rank);
	EXPECT_OK(ncclCommWindowDeregister(me->comm, a));
	EXPECT(query->window_info(a, &base, &size) == -ENOENT);
	EXPECT(query->window_info(b, &base, &size) == 0 && base == memory[1] && size == 256);
	return bad; /* b is freed with the communicator */
}

Test(standin_window, register_threads)
{
	cr_expect(ranks_threads(4, windows, NULL) == 0);
}

Test(standin_window, register_processes)
{
	cr_expect(ranks_processes(3, windows, NULL) == 0);
}

/* A window belongs to its communicator. */
Test(standin_window, windows_of_another_communicator)
{
	ncclComm_t comm[2];
	ncclWindow_t win;
	char memory[64];
	void *p;

	for (int i = 0; i < 2; i++)
		cr_assert(ncclCommInitAll(&comm[i], 1, NULL) == ncclSuccess);
	cr_assert(ncclCommWindowRegister(comm[0], memory, 64, &win, 0) == ncclSuccess);
	cr_expect(ncclWinGetUserPtr(comm[1], win, &p) == ncclInvalidArgument);
	cr_expect(ncclCommWindowDeregister(comm[1], win) == ncclInvalidArgument);
	cr_expect(ncclCommWindowDeregister(comm[0], win) == ncclSuccess);
	for (int i = 0; i < 2; i++)
		cr_assert(ncclCommDestroy(comm[i]) == ncclSuccess);
}

static int team_of_all(struct rank *me)
{
	ncclTeam_t team = ncclTeamLsa(me->comm);
	int bad = 0;

	EXPECT(team.nRanks == me->n && team.rank == me->rank && team.stride == 1);
	return bad;
}

Test(standin_window, team_of_threads)
{
	cr_expect(ranks_threads(3, team_of_all, NULL) == 0);
}

Test(standin_window, team_of_processes)
{
	cr_expect(ranks_processes(3, team_of_all, NULL) == 0);
}

/* NCCL_EP_RANKS_PER_NODE=2: 0 1 | 2 3 | 4. */
static int team_of_two(struct rank *me)
{
	ncclTeam_t team = ncclTeamLsa(me->comm);
	int bad = 0;

	EXPECT(team.nRanks == (me->rank < 4 ? 2 : 1) && team.rank == me->rank % 2 && team.stride == 1);
	EXPECT(ncclTeamRankToWorld(me->comm, team, 0) == me->rank / 2 * 2);
	EXPECT(ncclTeamRankToLsa(me->comm, ncclTeamWorld(me->comm), me->rank) == team.rank);
	team = ncclTeamWorld(me->comm);
	EXPECT(team.nRanks == me->n && team.rank == me->rank && team.stride == 1);
	team = ncclTeamRail(me->comm);
	EXPECT(me->rank == 4 || (team.nRanks == me->n / 2 && team.rank == me->rank / 2 && team.stride == 2));
	return bad;
}

Test(standin_window, team_of_a_simulated_node)
{
	setenv("NCCL_EP_RANKS_PER_NODE", "2", 1);
	cr_expect(ranks_threads(5, team_of_two, NULL) == 0);
}

/* NCCL_EP_RANKS_PER_NODE=1,3,2: 0 | 1 2 3 | 4 5 | 6 7. */
static int team_of_sizes(struct rank *me)
{
	static const int first[] = { 0, 1, 1, 1, 4, 4, 6, 6 }, size[] = { 1, 3, 3, 3, 2, 2, 2, 2 };
	ncclTeam_t team = ncclTeamLsa(me->comm);
	int bad = 0;

	EXPECT(team.nRanks == size[me->rank] && team.rank == me->rank - first[me->rank] && team.stride == 1);
	EXPECT(ncclTeamRankToWorld(me->comm, team, 0) == first[me->rank]);
	return bad;
}

Test(standin_window, team_of_unlike_nodes)
{
	setenv("NCCL_EP_RANKS_PER_NODE", "1,3,2", 1);
	cr_expect(ranks_threads(8, team_of_sizes, NULL) == 0);
}

/* Nobody gets a communicator, and the message says what is wrong with the value. */
Test(standin_window, team_of_no_list)
{
	static const char *const texts[] = { "-1", "x", "2,", ",2", "2,0", "2;3", " 2", "1048577" };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		ncclComm_t comm = NULL;

		setenv("NCCL_EP_RANKS_PER_NODE", texts[i], 1);
		cr_expect(ncclCommInitAll(&comm, 1, NULL) == ncclInvalidArgument && !comm, "%s", texts[i]);
		cr_expect(strstr(ncclGetLastError(NULL), texts[i]) && strstr(ncclGetLastError(NULL), "2,1,4"), "%s",
			  ncclGetLastError(NULL));
	}
}

Test(standin_window, query_knows_its_own)
{
	const struct ep_standin_query *query = ncclEpStandinQuery();
	ncclResult_t async = ncclInternalError;
	ncclComm_t comm;
	int n = 0, rank = -1, device = 0;
	char in = 3, out = 0, other[64] = { 0 };

	cr_assert(query && query->version == EP_STANDIN_QUERY_VERSION && query->size == sizeof(*query));
	cr_expect(dlsym(RTLD_DEFAULT, EP_STANDIN_QUERY_NAME) != NULL);
	cr_assert(ncclCommInitAll(&comm, 1, NULL) == ncclSuccess);
	cr_expect(query->owns(comm));
	cr_expect(!query->owns(NULL) && !query->owns((ncclComm_t)other) && !query->owns((ncclComm_t)(uintptr_t)1));
	cr_expect(query->count(comm, &n) == ncclSuccess && n == 1);
	cr_expect(query->user_rank(comm, &rank) == ncclSuccess && rank == 0);
	cr_expect(query->cu_device(comm, &device) == ncclSuccess && device == -1);
	cr_expect(query->allgather(&in, &out, 1, ncclInt8, comm, NULL) == ncclSuccess && out == 3);
	cr_expect(query->async_error(comm, &async) == ncclSuccess && async == ncclSuccess);
	cr_expect(query->error_string(ncclSuccess) == ncclGetErrorString(ncclSuccess));
	cr_expect(ncclCommDestroy(comm) == ncclSuccess);
	cr_expect(!query->owns(comm));
}
