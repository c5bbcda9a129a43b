/* SPDX-License-Identifier: Apache-2.0 */
/* Replies with file descriptors, over a socket pair: the only target with system calls for every input. */
#include "plugin/boot/fd.c"

#include <sys/socket.h>

#include "fuzz.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	fuzz_quiet();
	return 0;
}

static void reply(int sock, struct feed *f)
{
	union {
		char buf[CMSG_SPACE(6 * sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct ep_frame head = { .type = EP_F_FD_PUT };
	struct iovec iov = { &head, sizeof(head) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	size_t n = feed_u8(f) % 7;
	struct cmsghdr *cmsg;

	feed_patch(f, &head, sizeof(head));
	if (feed_u8(f) & 1)
		iov.iov_len = feed_u8(f) % sizeof(head);
	if (n && iov.iov_len) {
		msg.msg_control = control.buf;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n * sizeof(int));
		for (size_t i = 0; i < n; i++)
			memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &sock, sizeof(int));
	}
	sendmsg(sock, &msg, MSG_NOSIGNAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	int pair[2], fd = -1, rc;
	struct ep_frame head;

	MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
	reply(pair[0], &f);
	close(pair[0]);
	rc = recv_reply(pair[1], &head, UINT64_MAX, &fd);
	MUST(rc <= 0 && rc >= -4095);
	MUST(rc || head.bytes <= EP_BOOT_NOTE);
	if (fd >= 0)
		close(fd);
	close(pair[1]);
	/* None is left over: the next descriptor has the number of the last that was closed. */
	MUST((fd = dup(0)) < 16);
	close(fd);
	return 0;
}
