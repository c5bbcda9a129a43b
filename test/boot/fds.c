/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors between processes of a host. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "ranks.h"

TestSuite(boot_fds, .timeout = 60);

static int make_file(int value)
{
	int fd = memfd_create("boot_fds", MFD_CLOEXEC);

	if (fd < 0 || write(fd, &value, sizeof(value)) != sizeof(value))
		return -1;
	return fd;
}

static int read_file(int fd)
{
	int value = -1;

	if (pread(fd, &value, sizeof(value), 0) != sizeof(value))
		return -1;
	return value;
}

/* Every rank offers two files and fetches those of all ranks, its own too, while the owners are in a barrier. */
static void exchange(struct rank *me)
{
	struct ep_fd_token mine, all[MAX_RANKS];
	int fd[2], got = -1;

	ep_boot_fd_token(me->boot, &mine);
	for (int i = 0; i < 2; i++) {
		fd[i] = make_file(me->rank * 10 + i);
		RANK_EXPECT(me, fd[i] >= 0);
		RANK_EXPECT(me, ep_boot_fd_offer(me->boot, (uint64_t)i << 40, fd[i]) == 0);
		close(fd[i]);
	}
	RANK_EXPECT(me, ep_boot_fd_offer(me->boot, 0, 0) == -EEXIST);
	RANK_EXPECT(me, ep_boot_allgather(me->boot, &mine, sizeof(mine), all) == 0);
	for (int k = 0; k < 2 * me->all->n; k++) {
		int from = (me->rank + k / 2) % me->all->n;

		RANK_EXPECT(me, ep_boot_fd_fetch(me->boot, &all[from], (uint64_t)(k % 2) << 40, &got) == 0);
		RANK_EXPECT(me, read_file(got) == from * 10 + k % 2);
		RANK_EXPECT(me, fcntl(got, F_GETFD) & FD_CLOEXEC);
		close(got);
	}
	RANK_EXPECT(me, ep_boot_fd_fetch(me->boot, &all[0], 12345, &got) == -ENOENT);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	ep_boot_fd_withdraw(me->boot, 0);
	ep_boot_fd_withdraw(me->boot, 999);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
	RANK_EXPECT(me, ep_boot_fd_fetch(me->boot, &all[(me->rank + 1) % me->all->n], 0, &got) == -ENOENT);
	RANK_EXPECT(me, ep_boot_barrier(me->boot) == 0);
}

Test(boot_fds, processes)
{
	struct ranks *all = ranks_new(6, exchange);

	cr_expect_eq(ranks_processes(all), 0);
	ranks_free(all);
}

Test(boot_fds, threads)
{
	struct ranks *all = ranks_new(6, exchange);
	int fds = count_fds();

	cr_expect_eq(ranks_threads(all), 0);
	cr_expect(UNTIL(count_fds() == fds), "%d descriptors before, %d after", fds, count_fds());
	ranks_free(all);
}

static void fetch_from_nobody(struct rank *me)
{
	struct ep_fd_token nobody = { .bytes = "nobody is here" };
	int got = -1;

	RANK_EXPECT(me, ep_boot_fd_fetch(me->boot, &nobody, 1, &got) == -ECONNREFUSED);
	RANK_EXPECT(me, got == -1);
	RANK_EXPECT(me, ep_boot_fd_offer(me->boot, 1, 9999) == -EBADF);
}

Test(boot_fds, nobody)
{
	struct ranks *all = ranks_new(1, fetch_from_nobody);

	cr_expect_eq(ranks_threads(all), 0);
	ranks_free(all);
}

static socklen_t name_of(const struct ep_fd_token *token, struct sockaddr_un *name)
{
	int n = 0;

	*name = (struct sockaddr_un){ .sun_family = AF_UNIX };
	n += sprintf(name->sun_path + 1, "anyep-");
	for (int i = 0; i < 16; i++)
		n += sprintf(name->sun_path + 1 + n, "%02x", token->bytes[i]);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* A process that finds the name in /proc/net/unix needs the secret, and cannot make others wait. */
static void besieged(struct rank *me)
{
	struct ep_fd_token mine;
	struct sockaddr_un name;
	int fds[300], file = make_file(77), got = -1, dropped = 0;
	char junk[64] = "let me in", answer[128];
	socklen_t len;

	ep_boot_fd_token(me->boot, &mine);
	len = name_of(&mine, &name);
	RANK_EXPECT(me, ep_boot_fd_offer(me->boot, 5, file) == 0);
	close(file);
	for (int i = 0; i < 300; i++) {
		fds[i] = socket(AF_UNIX, SOCK_STREAM, 0);
		RANK_EXPECT(me, connect(fds[i], (struct sockaddr *)&name, len) == 0);
		if (i % 2)
			RANK_EXPECT(me, send(fds[i], junk, sizeof(junk), MSG_NOSIGNAL) == sizeof(junk));
	}
	RANK_EXPECT(me, ep_boot_fd_fetch(me->boot, &mine, 5, &got) == 0 && read_file(got) == 77);
	close(got);
	for (int i = 1; i < 300; i += 2) {
		struct timeval tv = { .tv_sec = 5 };
		ssize_t n, all = 0;

		/* Greeting, refusal, end: 24 + 40 bytes and never a descriptor. */
		setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
		while ((n = recv(fds[i], answer, sizeof(answer), 0)) > 0)
			all += n;
		dropped += (n == 0 || (n < 0 && errno == ECONNRESET)) && all == 64;
	}
	RANK_EXPECT(me, dropped == 150);
	for (int i = 0; i < 300; i++)
		close(fds[i]);
}

Test(boot_fds, strangers)
{
	struct ranks *all = ranks_new(1, besieged);

	cr_expect_eq(ranks_threads(all), 0);
	ranks_free(all);
}

static void wrong_secret(struct rank *me)
{
	struct ep_fd_token mine, all[2];
	int got = -1, file = make_file(1);

	ep_boot_fd_token(me->boot, &mine);
	RANK_EXPECT(me, ep_boot_fd_offer(me->boot, 5, file) == 0);
	close(file);
	memcpy(me->why, &mine, sizeof(mine));
	me->stage = 1;
	UNTIL(me->all->stage == 1);
	memcpy(&all[0], me->all->rank[200].why, sizeof(all[0]));
	RANK_EXPECT(me, ep_boot_fd_fetch(me->boot, &all[0], 5, &got) == -EACCES);
	me->stage = 2;
	UNTIL(me->all->stage == 2);
}

/* Two bootstraps on one host cannot fetch from each other. */
Test(boot_fds, another_jobs_files)
{
	struct ranks *one = ranks_new(1, wrong_secret), *two = ranks_new(1, wrong_secret);

	cr_assert(!ep_boot_id_create(&one->id) && !ep_boot_id_create(&two->id));
	cr_assert(!ranks_start_threads(one, rank_life) && !ranks_start_threads(two, rank_life));
	cr_assert(UNTIL(one->rank[0].stage == 1 && two->rank[0].stage == 1));
	memcpy(one->rank[200].why, two->rank[0].why, sizeof(struct ep_fd_token));
	memcpy(two->rank[200].why, one->rank[0].why, sizeof(struct ep_fd_token));
	one->stage = two->stage = 1;
	cr_expect(UNTIL(one->rank[0].stage == 2 && two->rank[0].stage == 2));
	one->stage = two->stage = 2;
	ranks_join(one);
	ranks_join(two);
	cr_expect_eq(one->rank[0].bad + two->rank[0].bad, 0);
	ranks_free(two);
	ranks_free(one);
}
