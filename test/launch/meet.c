/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes with the variables that Ray sets meet by TCP: what they gather arrives in order of ranks, a rank that is
 * not told its index on the host counts it, a stranger is ignored, another token is refused by name, and a rank that
 * never comes is named when the time is over.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "perf/launch.h"

enum { RANKS = 4 };

struct seen {
	int rc, rank, ranks, local;
	char text[LAUNCH_TEXT];
	int all[RANKS], more[RANKS];
	_Atomic bool go; /* of the last rank: the stranger has been turned away */
};

static struct seen *seen;
static const char *token[RANKS];
static int absent, told; /* the rank that never starts; the one that is told its index */

static void rank_env(int rank)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", rank);
	setenv("RANK", number, 1);
	setenv("WORLD_SIZE", "4", 1);
	setenv("MASTER_ADDR", "127.0.0.1", 1);
	unsetenv("LOCAL_RANK");
	if (rank == told)
		setenv("LOCAL_RANK", "3", 1);
	if (token[rank])
		setenv("NCCL_EP_TOKEN", token[rank], 1);
	else
		unsetenv("NCCL_EP_TOKEN");
}

static void rank_main(int rank)
{
	struct seen *me = &seen[rank];
	struct launch *launch;
	int value = 10 + rank;

	rank_env(rank);
	me->rc = launch_open(&launch, me->text, sizeof(me->text));
	if (me->rc || !launch)
		return;
	me->rank = launch_rank(launch);
	me->ranks = launch_ranks(launch);
	me->local = launch_local(launch);
	me->rc = launch_gather(launch, &value, sizeof(value), me->all, me->text, sizeof(me->text));
	value *= 2;
	me->rc |= launch_gather(launch, &value, sizeof(value), me->more, me->text, sizeof(me->text));
	launch_close(launch);
}

/* A free port; nothing listens there when this returns. */
static int port_find(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t n = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	cr_assert(!bind(fd, (struct sockaddr *)&at, sizeof(at)) && !getsockname(fd, (struct sockaddr *)&at, &n));
	close(fd);
	return ntohs(at.sin_port);
}

/* Talks nonsense to rank 0 as soon as it listens. */
static void stranger(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	char junk[64] = "GET / HTTP/1.0\r\n\r\n";

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (int i = 0; i < 200; i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		if (!connect(fd, (struct sockaddr *)&at, sizeof(at))) {
			bool told_nothing =
				send(fd, junk, sizeof(junk), MSG_NOSIGNAL) == sizeof(junk) && recv(fd, junk, 1, 0) <= 0;

			seen[RANKS - 1].go = true;
			_exit(!told_nothing);
		}
		close(fd);
		usleep(10000);
	}
	_exit(2);
}

static void play(int port, bool strange)
{
	pid_t pid[RANKS + 1] = { 0 };
	char number[16];
	int status;

	snprintf(number, sizeof(number), "%d", port);
	setenv("NCCL_EP_PORT", number, 1);
	seen = mmap(NULL, RANKS * sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert(seen != MAP_FAILED);
	/* The last first: rank 0 comes late, when others have begun to try. */
	seen[RANKS - 1].go = !strange;
	for (int r = RANKS; r >= 0; r--) {
		if (r == absent || (r == RANKS && !strange))
			continue;
		pid[r] = fork();
		if (pid[r])
			continue;
		if (r == RANKS)
			stranger(port);
		usleep(r ? 0 : 200000);
		while (r == RANKS - 1 && !seen[r].go)
			usleep(1000);
		rank_main(r);
		_exit(0);
	}
	for (int r = 0; r <= RANKS; r++)
		if (pid[r])
			cr_expect(waitpid(pid[r], &status, 0) == pid[r] && !status, "rank %d: %x", r, (unsigned)status);
}

static void begin(void)
{
	static const char *const names[] = { "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
					     "SLURM_STEP_ID" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	absent = told = -1;
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "20000", 1);
}

TestSuite(meet, .timeout = 60, .init = begin);

static void all_is_well(void)
{
	for (int r = 0; r < RANKS; r++) {
		cr_expect(!seen[r].rc && seen[r].rank == r && seen[r].ranks == RANKS, "rank %d: %s", r, seen[r].text);
		cr_expect_eq(seen[r].local, r == told ? 3 : r);
		for (int i = 0; i < RANKS; i++)
			cr_expect(seen[r].all[i] == 10 + i && seen[r].more[i] == 20 + 2 * i);
	}
}

Test(meet, four_and_a_stranger)
{
	told = 2;
	play(port_find(), true);
	all_is_well();
}

/* Connections of the first run are still in TIME_WAIT. */
Test(meet, the_same_port_again)
{
	int port = port_find();

	for (int i = 0; i < 2; i++) {
		play(port, false);
		all_is_well();
	}
}

Test(meet, token)
{
	for (int r = 0; r < RANKS; r++)
		token[r] = "correct horse";
	play(port_find(), false);
	all_is_well();
}

Test(meet, another_token)
{
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "4000", 1);
	for (int r = 0; r < RANKS; r++)
		token[r] = r == 2 ? "guessed" : r == 3 ? NULL : "correct horse";
	play(port_find(), false);
	for (int r = 2; r < RANKS; r++) {
		cr_expect_eq(seen[r].rc, -1);
		cr_expect(strstr(seen[r].text, "NCCL_EP_TOKEN is not that of rank 0"), "%s", seen[r].text);
		for (int i = 0; i < RANKS; i++)
			cr_expect_eq(seen[r].all[i], 0);
	}
	cr_expect_eq(seen[0].rc, -1);
	cr_expect(strstr(seen[0].text, "2 of 4 ranks did not connect") && strstr(seen[0].text, "the first is rank 2") &&
			  strstr(seen[0].text, "turned away"),
		  "%s", seen[0].text);
}

Test(meet, a_rank_that_never_comes)
{
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "3000", 1);
	absent = 3;
	play(port_find(), false);
	cr_expect_eq(seen[0].rc, -1);
	cr_expect(strstr(seen[0].text, "the first is rank 3"), "%s", seen[0].text);
	for (int r = 1; r < absent; r++) /* they are told by the end of rank 0, not by their own deadline */
		cr_expect(seen[r].rc == -1 && strstr(seen[r].text, "lost rank 0"), "%s", seen[r].text);
}

Test(meet, port_in_use)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM, 0), port = port_find();

	at.sin_port = htons((uint16_t)port);
	cr_assert(!bind(fd, (struct sockaddr *)&at, sizeof(at)) && !listen(fd, 8));
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "500", 1);
	play(port, false);
	cr_expect(seen[0].rc == -1 && strstr(seen[0].text, "set NCCL_EP_PORT to a free one"), "%s", seen[0].text);
	cr_expect(seen[1].rc == -1 && strstr(seen[1].text, "check MASTER_ADDR, NCCL_EP_PORT"), "%s", seen[1].text);
}
