/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets and the choice of the interface. */
#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/sock.h"

TestSuite(boot_sock, .timeout = 60);

Test(boot_sock, interface_lists)
{
	static const struct {
		const char *list, *name;
		bool match;
	} cases[] = {
		{ "eth", "eth0", true },       { "eth", "ib0", false },	       { "eth,ib", "ib0", true },
		{ "eth,ib", "lo", false },     { "=eth0", "eth0", true },      { "=eth", "eth0", false },
		{ "=eth0", "eth01", false },   { "=eth1,eth0", "eth0", true }, { "^docker,lo", "docker0", false },
		{ "^docker,lo", "lo", false }, { "^docker,lo", "eth0", true }, { "^=eth0", "eth0", false },
		{ "^=eth0", "eth01", true },   { "eth,", "lo", false },	       { ",eth", "eth0", true },
		{ "^", "eth0", true },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_expect_eq(ep_sock_if_match(cases[i].list, cases[i].name), cases[i].match, "%s in %s", cases[i].name,
			     cases[i].list);
}

static int pick(const char *ifname, const char *family, union ep_sockaddr *out, char why[256])
{
	setenv("NCCL_EP_SOCKET_IFNAME", ifname, 1);
	setenv("NCCL_EP_SOCKET_FAMILY", family, 1);
	return ep_sock_pick(out, 4, why, 256);
}

Test(boot_sock, the_user_chooses)
{
	union ep_sockaddr a[4];
	char why[256];
	int n = pick("=lo", "AF_INET", a, why);

	cr_assert_eq(n, 1);
	cr_expect_eq(a[0].any.sa_family, AF_INET);
	cr_expect_eq(ntohl(a[0].v4.sin_addr.s_addr), INADDR_LOOPBACK);
	cr_expect(strstr(why, "NCCL_EP_SOCKET_IFNAME==lo"), "%s", why);
	cr_expect_eq(pick("nosuchthing", "", a, why), -ENODEV);
	cr_expect(strstr(ep_last_error(), "nosuchthing") && strstr(ep_last_error(), "lo"), "%s", ep_last_error());
}

Test(boot_sock, loopback_only_without_anything_else)
{
	union ep_sockaddr a[4];
	char why[256];
	int n = pick("", "", a, why);
	bool loop;

	cr_assert_gt(n, 0);
	loop = a[0].any.sa_family == AF_INET ? ntohl(a[0].v4.sin_addr.s_addr) == INADDR_LOOPBACK
					     : IN6_IS_ADDR_LOOPBACK(&a[0].v6.sin6_addr);
	cr_expect_eq(loop, strstr(why, "nothing else is up") != NULL, "%s", why);
	/* Exclusions do not change the order of classes. */
	cr_expect_eq(pick("^nosuchthing", "", a, why), n);
}

static void loopback(union ep_sockaddr *a)
{
	*a = (union ep_sockaddr){ .v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) } };
}

Test(boot_sock, one_port_at_several_addresses)
{
	union ep_sockaddr a[3];
	uint16_t port = 0;
	int fds[3];

	for (int i = 0; i < 3; i++) {
		loopback(&a[i]);
		a[i].v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)i);
	}
	cr_assert_eq(ep_sock_listen(a, 3, &port, fds), 0);
	cr_assert_neq(port, 0);
	for (int i = 0; i < 3; i++) {
		int c;

		a[i].v4.sin_port = htons(port);
		c = ep_sock_dial(&a[i]);
		cr_assert_geq(c, 0);
		cr_expect_eq(ep_sock_wait(c, POLLOUT, ep_deadline_ms(5000)), 0);
		cr_expect_eq(ep_sock_dialled(c), 0);
		ep_sock_close(c);
		ep_sock_close(fds[i]);
	}
	cr_expect_eq(ep_sock_listen(a, 1, &port, fds), 0, "the port is free again");
	ep_sock_close(fds[0]);
}

/* Two sockets, connected with the functions under test. */
static void pair(int fd[2])
{
	union ep_sockaddr a, peer;
	uint16_t port = 0;
	int listener;

	loopback(&a);
	cr_assert_eq(ep_sock_listen(&a, 1, &port, &listener), 0);
	a.v4.sin_port = htons(port);
	fd[0] = ep_sock_dial(&a);
	cr_assert_geq(fd[0], 0);
	cr_assert_eq(ep_sock_wait(listener, POLLIN, ep_deadline_ms(5000)), 0);
	fd[1] = ep_sock_accept(listener, &peer);
	cr_assert_geq(fd[1], 0);
	cr_expect_eq(peer.any.sa_family, AF_INET);
	ep_sock_close(listener);
}

Test(boot_sock, reads_and_writes_are_bounded)
{
	static char big[8 << 20];
	char byte;
	int fd[2];
	uint64_t start = ep_now_ns();

	pair(fd);
	cr_expect_eq(ep_sock_recv_all(fd[0], &byte, 1, ep_deadline_ms(50)), -ETIMEDOUT);
	cr_expect_eq(ep_sock_send_all(fd[0], big, sizeof(big), ep_deadline_ms(50)), -ETIMEDOUT, "nobody reads");
	cr_expect_lt(ep_now_ns() - start, 5000000000ull);
	ep_sock_close(fd[1]);
	cr_expect_lt(ep_sock_send_all(fd[0], big, sizeof(big), ep_deadline_ms(5000)), 0, "an error, not SIGPIPE");
	ep_sock_close(fd[0]);
}

Test(boot_sock, a_dead_port_refuses)
{
	union ep_sockaddr a;
	uint16_t port = 0;
	int listener, fd;

	loopback(&a);
	cr_assert_eq(ep_sock_listen(&a, 1, &port, &listener), 0);
	ep_sock_close(listener);
	a.v4.sin_port = htons(port);
	fd = ep_sock_dial(&a);
	if (fd >= 0) {
		cr_expect_eq(ep_sock_wait(fd, POLLOUT, ep_deadline_ms(5000)), 0);
		cr_expect_eq(ep_sock_dialled(fd), -ECONNREFUSED);
		ep_sock_close(fd);
	} else {
		cr_expect_eq(fd, -ECONNREFUSED);
	}
}

Test(boot_sock, forked_children_hold_no_connection)
{
	int fd[2], status;
	char byte;
	pid_t child;

	pair(fd);
	child = fork();
	if (!child) {
		/* Neither end is open in the child. */
		_exit(write(fd[0], "x", 1) == -1 && errno == EBADF && write(fd[1], "x", 1) == -1 && errno == EBADF ? 0
														   : 1);
	}
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	cr_expect_eq(ep_sock_send_all(fd[0], "y", 1, ep_deadline_ms(1000)), 0, "the parent's are untouched");
	cr_expect_eq(ep_sock_recv_all(fd[1], &byte, 1, ep_deadline_ms(1000)), 0);
	ep_sock_close(fd[0]);
	ep_sock_close(fd[1]);
}

Test(boot_sock, a_quiet_peer_is_not_a_lost_host)
{
	int fd[2];

	pair(fd);
	ep_sock_tune(fd[0], 3000);
	cr_expect_not(ep_sock_silent(fd[0], 3000));
	ep_sock_close(fd[0]);
	ep_sock_close(fd[1]);
}

Test(boot_sock, addresses_in_words)
{
	union ep_sockaddr a = { .v6 = { .sin6_family = AF_INET6, .sin6_port = htons(99) } };
	char text[EP_SOCK_TEXT];

	inet_pton(AF_INET6, "fd00::2", &a.v6.sin6_addr);
	cr_expect_str_eq(ep_sock_text(&a, text, sizeof(text)), "[fd00::2]:99");
	loopback(&a);
	a.v4.sin_port = htons(4711);
	cr_expect_str_eq(ep_sock_text(&a, text, sizeof(text)), "127.0.0.1:4711");
}
