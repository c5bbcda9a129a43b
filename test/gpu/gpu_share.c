/* SPDX-License-Identifier: Apache-2.0 */
/* Windows between processes: by virtual memory handles and by CUDA IPC, and malformed exports. */
#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"

enum { BYTES = (3 << 20) + 5, CHILD_FD = 3 };

static void send_offer(int sock, const struct ep_export *offer, int fd)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)offer, .iov_len = sizeof(*offer) };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)),
						 .cmsg_level = SOL_SOCKET,
						 .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	}
	REQUIRE(sendmsg(sock, &msg, 0) == (ssize_t)sizeof(*offer), "sendmsg: %s", strerror(errno));
}

static int receive_offer(int sock, struct ep_export *offer)
{
	struct iovec iov = { .iov_base = offer, .iov_len = sizeof(*offer) };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};
	int fd = -1;

	REQUIRE(recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) == (ssize_t)sizeof(*offer), "recvmsg: %s", strerror(errno));
	if (CMSG_FIRSTHDR(&msg))
		memcpy(&fd, CMSG_DATA(&control.head), sizeof(fd));
	return fd;
}

/* Started by exec: CUDA does not survive a fork. */
static pid_t spawn_child(const char *self, int *sock)
{
	int pair[2];
	pid_t pid;

	REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
	pid = fork();
	REQUIRE(pid >= 0, "fork");
	if (!pid) {
		if (dup2(pair[1], CHILD_FD) < 0)
			_exit(1);
		execl(self, self, "child", (char *)NULL);
		_exit(1);
	}
	close(pair[1]);
	*sock = pair[0];
	return pid;
}

static void check_child(pid_t pid)
{
	uint64_t deadline = ep_deadline_ms(60000);
	struct timespec t = { .tv_nsec = 2000000 };
	int status = -1;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		REQUIRE(ep_now_ns() < deadline, "the other process does not end");
		nanosleep(&t, NULL);
	}
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process ended with %x", (unsigned)status);
}

/* No field of an export is trusted. */
static void lies(struct ep_dev *dev, const struct ep_export *truth, int fd)
{
	struct ep_mem mem = { .size = 77 };
	struct ep_export lie = *truth;
	uint64_t much = (uint64_t)1 << 40;

	lie.kind = EP_DEV_HOST;
	CHECK_FAILS(dev->ops->mem_import(dev, &lie, fd, &mem), EP_EREMOTE, "kind");
	lie = *truth;
	lie.share = EP_SHARE_NONE;
	CHECK_FAILS(dev->ops->mem_import(dev, &lie, fd, &mem), EP_EREMOTE, "share type");
	lie = *truth;
	lie.size = 0;
	CHECK_FAILS(dev->ops->mem_import(dev, &lie, fd, &mem), EP_EREMOTE, "0 bytes");
	lie = *truth;
	lie.size = much;
	CHECK(dev->ops->mem_import(dev, &lie, fd, &mem) < 0, "a size past the mapping");
	if (truth->share == EP_SHARE_FD) {
		memcpy(lie.blob, &much, sizeof(much));
		CHECK(dev->ops->mem_import(dev, &lie, fd, &mem) < 0, "a mapping past the memory");
		CHECK_FAILS(dev->ops->mem_import(dev, truth, -1, &mem), EP_EREMOTE, "descriptor -1");
	} else {
		memset(lie.blob, 0xff, sizeof(lie.blob));
		CHECK(dev->ops->mem_import(dev, &lie, -1, &mem) < 0, "a blob of ones");
	}
	CHECK(mem.size == 77 && !mem.ptr, "a failure wrote its output");
}

/* The other process: reads what the owner wrote, and overwrites it. */
static int child(void)
{
	struct ep_dev *dev = gpu_open(0);
	struct ep_export offer;
	struct ep_pinned pin;
	struct ep_mem mem;
	void *stream;
	size_t at;
	int fd = receive_offer(CHILD_FD, &offer);

	REQUIRE(dev->ops->stream_create(dev, &stream) == 0 && dev->ops->pinned_alloc(dev, BYTES, &pin) == 0, "set-up");
	lies(dev, &offer, fd);
	REQUIRE(dev->ops->mem_import(dev, &offer, fd, &mem) == 0, "import");
	if (fd >= 0)
		close(fd); /* the mapping does not need it */
	CHECK(mem.size == BYTES, "size %zu", mem.size);
	gpu_read(dev, &pin, mem.ptr, BYTES, stream);
	CHECK((at = gpu_differs(pin.host, BYTES, 1)) == BYTES, "the owner's bytes differ at %zu", at);
	gpu_pattern(pin.host, BYTES, 2);
	gpu_write(dev, mem.ptr, &pin, BYTES, stream);
	CHECK(dev->ops->mem_export(dev, &mem, &offer, &fd) == -EP_EINTERNAL, "an imported window was exported");
	dev->ops->mem_free(dev, &mem);
	dev->ops->pinned_free(dev, &pin);
	dev->ops->stream_destroy(dev, stream);
	dev->ops->close(dev);
	return gpu_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* In the same process only a file descriptor can be imported, not a cuIpc handle; threads need neither. */
static void same_process(struct ep_dev *dev, const struct ep_export *offer, int fd, struct ep_pinned *pin, void *stream)
{
	struct ep_mem mem;
	size_t at;

	REQUIRE(dev->ops->mem_import(dev, offer, fd, &mem) == 0, "import in the same process");
	gpu_read(dev, pin, mem.ptr, BYTES, stream);
	CHECK((at = gpu_differs(pin->host, BYTES, 1)) == BYTES, "differs at %zu", at);
	dev->ops->mem_free(dev, &mem);
}

static void share(const char *self, bool vmm)
{
	struct ep_dev *dev;
	struct ep_export offer;
	struct ep_pinned pin;
	struct ep_mem mem;
	void *stream;
	size_t at;
	pid_t pid;
	int fd = -7, sock;

	setenv("NCCL_EP_CUDA_VMM", vmm ? "1" : "0", 1);
	dev = gpu_open(0);
	REQUIRE(dev->ops->stream_create(dev, &stream) == 0 && dev->ops->pinned_alloc(dev, BYTES, &pin) == 0, "set-up");
	REQUIRE(dev->ops->mem_alloc(dev, BYTES, &mem) == 0, "window");
	CHECK(mem.size == BYTES && (uintptr_t)mem.ptr % 4096 == 0, "window at %p, %zu bytes", mem.ptr, mem.size);
	memset(pin.host, 1, BYTES);
	gpu_read(dev, &pin, mem.ptr, BYTES, stream);
	for (at = 0; at < BYTES && !((uint8_t *)pin.host)[at]; at++)
		;
	CHECK(at == BYTES, "the window is not zero at %zu", at);
	gpu_pattern(pin.host, BYTES, 1);
	gpu_write(dev, mem.ptr, &pin, BYTES, stream);

	REQUIRE(dev->ops->mem_export(dev, &mem, &offer, &fd) == 0, "export");
	CHECK(offer.kind == EP_DEV_CUDA && offer.size == BYTES, "kind %u, size %llu", offer.kind,
	      (unsigned long long)offer.size);
	CHECK(offer.share == (fd >= 0 ? EP_SHARE_FD : EP_SHARE_BLOB), "share %u, fd %d", offer.share, fd);
	CHECK(vmm || offer.share == EP_SHARE_BLOB, "virtual memory handles although they are off");
	printf("windows by %s: shared by %s\n", vmm ? "virtual memory handles" : "CUDA IPC",
	       fd >= 0 ? "descriptor" : "blob");
	lies(dev, &offer, fd);
	if (fd >= 0)
		same_process(dev, &offer, fd, &pin, stream);
	pid = spawn_child(self, &sock);
	send_offer(sock, &offer, fd);
	check_child(pid);
	close(sock);
	gpu_read(dev, &pin, mem.ptr, BYTES, stream);
	CHECK((at = gpu_differs(pin.host, BYTES, 2)) == BYTES, "the other process's bytes differ at %zu", at);
	if (fd >= 0)
		close(fd);
	dev->ops->mem_free(dev, &mem);
	dev->ops->pinned_free(dev, &pin);
	dev->ops->stream_destroy(dev, stream);
	dev->ops->close(dev);
}

/* Ranks as threads on two GPUs: the plain pointer, after peer_open. The group passes pointer and size only. */
static void peers(bool vmm)
{
	struct ep_dev *mine, *other;
	struct ep_pinned pin;
	struct ep_mem mem;
	void *stream;
	size_t at;
	int count;

	gpu_row(&count);
	if (count < 2) {
		printf("one GPU: peers not tried\n");
		return;
	}
	setenv("NCCL_EP_CUDA_VMM", vmm ? "1" : "0", 1);
	mine = gpu_open(0);
	other = gpu_open(1);
	REQUIRE(other->ops->mem_alloc(other, 4096, &mem) == 0, "window");
	REQUIRE(mine->ops->stream_create(mine, &stream) == 0 && mine->ops->pinned_alloc(mine, 4096, &pin) == 0,
		"set-up");
	REQUIRE(mine->ops->peer_open(mine, 1, &(struct ep_mem){ .ptr = mem.ptr, .size = 4096 }) == 0, "peer_open");
	CHECK(mine->ops->peer_open(mine, 1, &mem) == 0, "a second peer_open failed");
	CHECK(mine->ops->peer_open(mine, count, &mem) < 0, "an invalid GPU was accepted");
	gpu_pattern(pin.host, 4096, 3);
	gpu_write(mine, mem.ptr, &pin, 4096, stream);
	memset(pin.host, 0, 4096);
	gpu_read(mine, &pin, mem.ptr, 4096, stream);
	CHECK((at = gpu_differs(pin.host, 4096, 3)) == 4096, "differs at %zu", at);
	mine->ops->stream_destroy(mine, stream);
	mine->ops->pinned_free(mine, &pin);
	other->ops->mem_free(other, &mem);
	other->ops->close(other);
	mine->ops->close(mine);
}

static int open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

int main(int argc, char **argv)
{
	int count, files = 0;

	if (argc > 1 && !strcmp(argv[1], "child"))
		return child();
	gpu_row(&count);
	for (int pass = 0; pass < 2; pass++) {
		share("/proc/self/exe", true);
		share("/proc/self/exe", false);
		if (!pass)
			files = open_files(); /* the driver has opened its own files by now */
	}
	CHECK(open_files() <= files, "%d file descriptors, %d before", open_files(), files);
	peers(true);
	peers(false);
	return gpu_end("gpu_share");
}
