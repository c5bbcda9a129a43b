/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows and signals between ranks that are processes: each exports its window, and the parent relays the descriptors (or
 * blobs) over socket pairs, like the bootstrap. "kernel_rowsig_procs cuda" runs the same on a GPU, under MPS.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel_check.h"
#include "rowsig_order.h"
#include "rowsig_rank.h"
#include "util/error.h"

#define RANKS_MAX 8

/* One message: the export, and its descriptor if it has one. */
static int share_send(int sock, const struct ep_export *export, int fd)
{
	char room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec io = { (void *)export, sizeof(*export) };
	struct msghdr msg = { .msg_iov = &io, .msg_iovlen = 1 };

	if (fd >= 0) {
		msg.msg_control = room;
		msg.msg_controllen = sizeof(room);
		CMSG_FIRSTHDR(&msg)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&msg)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&msg)->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), &fd, sizeof(fd));
	}
	return sendmsg(sock, &msg, 0) == (ssize_t)sizeof(*export) ? 0 : -1;
}

static int share_recv(int sock, struct ep_export *export, int *fd)
{
	char room[CMSG_SPACE(sizeof(int))];
	struct iovec io = { export, sizeof(*export) };
	struct msghdr msg = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };

	if (recvmsg(sock, &msg, MSG_WAITALL | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*export))
		return -1;
	*fd = -1;
	if (CMSG_FIRSTHDR(&msg))
		memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(*fd));
	return 0;
}

static int windows_exchange(struct rowsig_rank *r, int sock, struct ep_mem *peer, void **window)
{
	const struct ep_dev_ops *ops = r->dev->ops;
	struct ep_export export;
	int fd = -1;

	if (ops->mem_export(r->dev, &r->window, &export, &fd) != 0 || share_send(sock, &export, fd) != 0)
		return -1;
	if (fd >= 0)
		close(fd);
	for (int i = 0; i < r->world->nranks; i++) {
		if (share_recv(sock, &export, &fd) != 0)
			return -1;
		window[i] = r->window.ptr;
		if (i == r->rank)
			continue;
		if (ops->mem_import(r->dev, &export, fd, &peer[i]) != 0)
			return -1;
		if (fd >= 0)
			close(fd);
		window[i] = peer[i].ptr;
	}
	return 0;
}

static int child(const struct rowsig_world *world, int rank, int sock)
{
	struct rowsig_rank r;
	struct ep_mem peer[RANKS_MAX] = { { .ptr = NULL } };
	void *window[RANKS_MAX];
	char byte = 0;

	alarm(300);
	if (rowsig_open(&r, world, rank) != 0)
		return 1;
	if (windows_exchange(&r, sock, peer, window) != 0) {
		fprintf(stderr, "rank %d: exchange: %s\n", rank, ep_last_error());
		return 1;
	}
	if (rowsig_connect(&r, window) != 0 || rowsig_run(&r) != 0)
		return 1;
	/* No rank unmaps or frees before all have finished. */
	if (write(sock, &byte, 1) != 1 || read(sock, &byte, 1) != 1)
		return 1;
	for (int i = 0; i < world->nranks; i++)
		if (peer[i].ptr)
			r.dev->ops->mem_free(r.dev, &peer[i]);
	rowsig_close(&r);
	return 0;
}

/* The parent relays every rank's export to every rank, in rank order, then runs the barrier. */
static int relay(int nranks, const int *sock)
{
	struct ep_export export[RANKS_MAX];
	int fd[RANKS_MAX], rc = 0;
	char byte;

	for (int i = 0; i < nranks; i++)
		if (share_recv(sock[i], &export[i], &fd[i]) != 0)
			return -1;
	for (int to = 0; to < nranks; to++)
		for (int i = 0; i < nranks; i++)
			rc |= share_send(sock[to], &export[i], fd[i]);
	for (int i = 0; i < nranks; i++)
		if (fd[i] >= 0)
			close(fd[i]);
	for (int i = 0; i < nranks; i++)
		rc |= read(sock[i], &byte, 1) == 1 ? 0 : -1;
	for (int i = 0; i < nranks; i++)
		rc |= write(sock[i], &byte, 1) == 1 ? 0 : -1;
	return rc;
}

static void world_run(const struct rowsig_world *world)
{
	int sock[RANKS_MAX], status;
	pid_t pid[RANKS_MAX];

	for (int r = 0; r < world->nranks; r++) {
		int pair[2];

		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
		fflush(NULL);
		pid[r] = fork();
		if (pid[r] == 0) {
			for (int i = 0; i < r; i++)
				close(sock[i]);
			close(pair[0]);
			_exit(child(world, r, pair[1]));
		}
		close(pair[1]);
		sock[r] = pair[0];
	}
	CHECK(relay(world->nranks, sock) == 0, "a rank left before the end");
	for (int r = 0; r < world->nranks; r++) {
		close(sock[r]);
		CHECK(waitpid(pid[r], &status, 0) == pid[r] && status == 0, "rank %d of %d ended with status %x", r,
		      world->nranks, status);
	}
}

static const int ranks[] = { 1, 2, 3, 4, 8 };

int main(int argc, char **argv)
{
	enum ep_dev_kind kind = argc > 1 && strcmp(argv[1], "cuda") == 0 ? EP_DEV_CUDA : EP_DEV_HOST;

	alarm(540);
	for (int pass = 0; pass < rowsig_orders(); pass++) {
		rowsig_order(pass);
		for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
			struct rowsig_world w = {
				.kind = kind,
				.nranks = ranks[i],
				.epochs = 20,
				.cap = 7,
				.row = i % 2 ? 3072 : 777,
				.skew = i % 2 ? 0 : 5,
				.grid = 2,
				.warps = 2,
				.slices = 3,
				.single = i % 2,
				.stage = 2048,
				.seed = 11 + (uint32_t)i,
				.stalls = true,
				.timeout_ms = 60000,
			};

			world_run(&w);
		}
	}
	return check_result("kernel_rowsig_procs");
}
