/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of another process, in every kind of memory an application may use: what can be mapped is mapped and has the
 * right bytes; what cannot gets no id; freed memory is never mistaken for new memory at its address. None of it
 * invalidates a capture or waits for a kernel. Two processes on one GPU: run under MPS.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"
#include "kernels/cuda/driver.h"
#include "plugin/group/group.h"
#include "plugin/ht/state.h"
#include "test/ht/reach_table.h"
#include "test/kernels/rowsig_rank.h"

enum { RANKS = 2, CHILD_FD = 3, BYTES = 6 << 20, AT = (1 << 20) + 64, PIECE = 2 << 20, SMALL = 40960 };

static struct ncclEpGroup group;
static struct ep_reach *reach;
static struct ep_dev *dev;
static void *stream;
static struct ep_pinned pin;

/* ---- kinds of memory ---- */

struct memory {
	unsigned long long ptr;
	unsigned long long handle[BYTES / PIECE];
	size_t size;
};

struct maker {
	const char *name;
	void (*make)(const struct maker *how, struct memory *m);
	void (*drop)(const struct maker *how, struct memory *m);
	size_t size, piece;
	unsigned handle_types;
	bool shared; /* other processes can map it */
};

static void plain_make(const struct maker *how, struct memory *m)
{
	REQUIRE(ep_cu.cuMemAlloc_v2(&m->ptr, how->size) == 0, "%s", how->name);
}

static void plain_drop(const struct maker *how, struct memory *m)
{
	CHECK(ep_cu.cuMemFree_v2(m->ptr) == 0, "%s", how->name);
}

static void vmm_make(const struct maker *how, struct memory *m)
{
	struct ep_cu_mem_prop prop = { .type = EP_CU_MEM_PINNED,
				       .handle_types = how->handle_types,
				       .location = { EP_CU_LOCATION_DEVICE, 0 } };
	struct ep_cu_access access = { .location = prop.location, .flags = EP_CU_ACCESS_READWRITE };

	REQUIRE(ep_cu.cuMemAddressReserve(&m->ptr, how->size, 0, 0, 0) == 0, "%s", how->name);
	for (size_t at = 0, i = 0; at < how->size; at += how->piece, i++) {
		REQUIRE(ep_cu.cuMemCreate(&m->handle[i], how->piece, &prop, 0) == 0, "%s: create", how->name);
		REQUIRE(ep_cu.cuMemMap(m->ptr + at, how->piece, 0, m->handle[i], 0) == 0, "%s: map", how->name);
	}
	REQUIRE(ep_cu.cuMemSetAccess(m->ptr, how->size, &access, 1) == 0, "%s: access", how->name);
}

static void vmm_drop(const struct maker *how, struct memory *m)
{
	for (size_t at = 0, i = 0; at < how->size; at += how->piece, i++) {
		CHECK(ep_cu.cuMemUnmap(m->ptr + at, how->piece) == 0, "%s: unmap", how->name);
		CHECK(ep_cu.cuMemRelease(m->handle[i]) == 0, "%s: release", how->name);
	}
	CHECK(ep_cu.cuMemAddressFree(m->ptr, how->size) == 0, "%s: free", how->name);
}

static void pool_make(const struct maker *how, struct memory *m)
{
	unsigned (*alloc)(unsigned long long *, size_t, void *) =
		GPU_SYM(unsigned (*)(unsigned long long *, size_t, void *), "cuMemAllocAsync");

	REQUIRE(alloc(&m->ptr, how->size, stream) == 0, "%s", how->name);
	REQUIRE(dev->ops->sync(dev, stream, ep_deadline_ms(20000)) == 0, "%s: sync", how->name);
}

static void pool_drop(const struct maker *how, struct memory *m)
{
	unsigned (*give)(unsigned long long, void *) =
		GPU_SYM(unsigned (*)(unsigned long long, void *), "cuMemFreeAsync");

	CHECK(give(m->ptr, stream) == 0, "%s", how->name);
	REQUIRE(dev->ops->sync(dev, stream, ep_deadline_ms(20000)) == 0, "%s: sync", how->name);
}

/* CUDA IPC may refuse an allocation at the address of a freed one of the same process that is still mapped: tried again
 * when that is closed. */
static const struct maker makers[] = {
	{ "cuMemAlloc", plain_make, plain_drop, BYTES, 0, 0, true },
	{ "small cuMemAlloc", plain_make, plain_drop, SMALL, 0, 0, true },
	{ "virtual memory", vmm_make, vmm_drop, BYTES, BYTES, EP_CU_HANDLE_POSIX_FD, true },
	{ "virtual memory in pieces", vmm_make, vmm_drop, BYTES, PIECE, EP_CU_HANDLE_POSIX_FD, true },
	{ "virtual memory without descriptor", vmm_make, vmm_drop, BYTES, BYTES, 0, false },
	{ "pieces without descriptor", vmm_make, vmm_drop, BYTES, PIECE, 0, false },
	{ "cuMemAllocAsync", pool_make, pool_drop, BYTES, 0, 0, false },
};

/* ---- one exchange ---- */

static void barrier(void)
{
	REQUIRE(ep_boot_barrier(group.boot) == 0, "barrier");
}

static void places(const void *tensor, size_t bytes, struct ep_place *all)
{
	struct ep_place mine;

	ep_reach_place(reach, tensor, bytes, false, &mine);
	CHECK(mine.address == (uintptr_t)tensor, "address %llx", (unsigned long long)mine.address);
	REQUIRE(ep_boot_allgather(group.boot, &mine, sizeof(mine), all) == 0, "allgather");
}

/* Reads the other rank's bytes through the mapping, then overwrites a part of them. */
static void look(const struct maker *how, uint8_t *theirs, size_t n, unsigned seed)
{
	size_t at;

	gpu_read(dev, &pin, theirs, n, stream);
	at = gpu_differs(pin.host, n, seed);
	CHECK(at == n, "%s: the other's bytes differ at %zu", how->name, at);
	gpu_pattern(pin.host, 4096, seed + 100);
	gpu_write(dev, theirs, &pin, 4096, stream);
}

static uint64_t exchange(const struct maker *how, struct memory *m, unsigned seed)
{
	size_t at = how->size > AT ? AT : 512, n = how->size - at, bad;
	uint8_t *tensor = (uint8_t *)(uintptr_t)m->ptr + at, *base;
	int me = group.rank, other = !me, mapped[RANKS];
	struct ep_place all[RANKS];

	gpu_pattern(pin.host, n, seed + (unsigned)me);
	gpu_write(dev, tensor, &pin, n, stream);
	places(tensor, n, all);
	for (int r = 0; r < RANKS; r++)
		REQUIRE(!all[r].id == !how->shared, "%s: id %llx", how->name, (unsigned long long)all[r].id);
	if (!how->shared)
		return 0;
	base = reach_get(ep_reach_device(reach), other, all[other].id, 20000);
	CHECK(base, "%s: not mapped", how->name);
	if (base)
		look(how, base + all[other].offset, n, seed + (unsigned)other);
	REQUIRE(ep_boot_allgather(group.boot, &(int){ base != NULL }, sizeof(int), mapped) == 0, "allgather");
	if (mapped[other]) {
		gpu_read(dev, &pin, tensor, 4096, stream);
		bad = gpu_differs(pin.host, 4096, seed + (unsigned)me + 100);
		CHECK(bad == 4096, "%s: what the other wrote differs at %zu", how->name, bad);
	}
	barrier();
	return all[me].id;
}

/* Nobody holds what was freed: all of it is there again. */
static void closed(const struct maker *how)
{
	uint64_t deadline = ep_deadline_ms(10000);
	struct ep_reach_counts counts;

	do {
		nap_ms(5);
		ep_reach_counts(reach, &counts);
	} while (counts.mappings && ep_now_ns() < deadline);
	CHECK(counts.mappings == 0, "%s: %u mappings of freed memory after 10 s", how->name, counts.mappings);
	barrier();
}

static void memory_try(const struct maker *how)
{
	struct memory m = { 0 };
	unsigned long long first;
	uint64_t id, start;
	struct ep_place place;

	how->make(how, &m);
	id = exchange(how, &m, 10);
	start = ep_now_ns();
	for (int i = 0; i < 1000; i++)
		ep_reach_place(reach, (void *)(uintptr_t)m.ptr, how->size, false, &place);
	printf("rank %d: %s: a place costs %llu ns\n", group.rank, how->name,
	       (unsigned long long)(ep_now_ns() - start) / 1000);
	CHECK(place.id == id && place.offset == 0, "%s: id %llx", how->name, (unsigned long long)place.id);
	first = m.ptr;
	how->drop(how, &m);
	how->make(how, &m);
	printf("rank %d: %s: %s address after the free\n", group.rank, how->name,
	       m.ptr == first ? "the same" : "another");
	start = exchange(how, &m, 20);
	CHECK(!how->shared || start != id, "%s: an id came back", how->name);
	how->drop(how, &m);
	barrier();
	closed(how);
}

/* Memory allocated during a capture can be exported in it without invalidating the capture. */
static void captured(void)
{
	unsigned (*begin)(void *, unsigned) = GPU_SYM(unsigned (*)(void *, unsigned), "cuStreamBeginCapture_v2");
	unsigned (*end)(void *, void **) = GPU_SYM(unsigned (*)(void *, void **), "cuStreamEndCapture");
	struct memory m[2] = { { 0 }, { 0 } };
	struct ep_place place[2];
	void *graph = NULL;
	unsigned result;

	makers[0].make(&makers[0], &m[0]);
	makers[2].make(&makers[2], &m[1]);
	REQUIRE(begin(stream, 0) == 0, "begin capture");
	for (int i = 0; i < 2; i++)
		ep_reach_place(reach, (void *)(uintptr_t)m[i].ptr, 1, false, &place[i]);
	result = end(stream, &graph);
	REQUIRE(result == 0, "the capture was invalidated: error %u", result);
	CHECK(place[0].id && place[1].id, "ids %llx, %llx", (unsigned long long)place[0].id,
	      (unsigned long long)place[1].id);
	GPU_SYM(unsigned (*)(void *), "cuGraphDestroy")(graph);
	makers[0].drop(&makers[0], &m[0]);
	makers[2].drop(&makers[2], &m[1]);
}

static const struct rowsig_world lonely = {
	.kind = EP_DEV_CUDA,
	.nranks = 2,
	.epochs = 1,
	.cap = 8,
	.row = 1024,
	.grid = 1,
	.warps = 4,
	.slices = 4,
	.seed = 3,
	.timeout_ms = 30000,
};

/* Maps the other rank's memory while a kernel of this process waits: if the driver made the import wait for the kernel,
 * it would block the launch that the kernel waits for. */
static void while_a_kernel_waits(const struct maker *how)
{
	struct rowsig_rank r[2];
	struct memory m = { 0 };
	struct ep_place all[RANKS];
	struct ep_launch launch;
	void *window[2];
	uint64_t start;
	uint8_t *base;
	int other = !group.rank;

	how->make(how, &m);
	for (int i = 0; i < 2; i++) {
		REQUIRE(rowsig_open(&r[i], &lonely, i) == 0, "rank %d", i);
		window[i] = r[i].window.ptr;
	}
	for (int i = 0; i < 2; i++)
		REQUIRE(rowsig_connect(&r[i], window) == 0, "rank %d", i);
	launch = (struct ep_launch){ .kernel = EP_K_rowsig,
				     .grid = lonely.grid,
				     .block = lonely.warps * dev->warp,
				     .args = &r->args,
				     .args_size = sizeof(r->args),
				     .stream = r->stream };
	REQUIRE(dev->ops->launch(r->dev, &launch) == 0, "launch");
	barrier();
	start = ep_now_ns();
	places((void *)(uintptr_t)m.ptr, how->size, all);
	base = reach_get(ep_reach_device(reach), other, all[other].id, 10000);
	printf("rank %d: %s: mapped in %llu us while a kernel waits\n", group.rank, how->name,
	       (unsigned long long)(ep_now_ns() - start) / 1000);
	CHECK(base, "%s: not mapped while a kernel waits", how->name);
	CHECK(dev->ops->sync(r->dev, r->stream, ep_deadline_ms(20)) == -EP_ETIMEOUT, "the kernel has ended");
	__atomic_store_n(rowsig_abort(r), 1, __ATOMIC_RELEASE);
	REQUIRE(dev->ops->sync(r->dev, r->stream, ep_deadline_ms(20000)) == 0, "the kernel does not see the abort");
	barrier();
	rowsig_close(&r[1]);
	rowsig_close(&r[0]);
	how->drop(how, &m);
}

/* ---- the processes ---- */

static void set_up(const char *rank)
{
	struct ep_topo_dev is = { .kind = EP_DEV_CUDA };
	struct ep_boot_id id;
	struct ep_boot_opts opts = { .id = &id, .rank = atoi(rank), .nranks = RANKS, .timeout_ms = 60000 };

	REQUIRE(read(CHILD_FD, &id, sizeof(id)) == (ssize_t)sizeof(id), "no id");
	gpu_make_current();
	dev = gpu_open(0);
	REQUIRE(dev->ops->stream_create(dev, &stream) == 0 && dev->ops->pinned_alloc(dev, BYTES, &pin) == 0, "set-up");
	group.rank = opts.rank;
	group.nranks = RANKS;
	group.dev = dev;
	REQUIRE(ep_boot_open(&opts, &group.boot) == 0, "bootstrap");
	REQUIRE(ep_topo_build(group.boot, group.rank, RANKS, &is, &group.topo) == 0, "topology");
	REQUIRE(dev->ops->mem_alloc(dev, sizeof(struct ep_ht_state), &group.state) == 0, "state");
	REQUIRE(ep_ht_reach_open(&group, &reach) == 0 && reach, "reach");
}

static int child(const char *rank)
{
	struct ep_place place;
	int local;

	alarm(200);
	set_up(rank);
	for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++)
		memory_try(&makers[i]);
	captured();
	while_a_kernel_waits(&makers[0]);
	while_a_kernel_waits(&makers[2]);
	ep_reach_place(reach, &local, 1, false, &place);
	CHECK(place.address == (uintptr_t)&local && !place.id, "the stack has an id");
	ep_reach_place(reach, pin.host, 1, false, &place);
	CHECK(!place.id, "pinned host memory has an id");
	ep_reach_close(reach);
	barrier();
	ep_reach_free(reach);
	ep_boot_close(group.boot);
	ep_topo_free(&group.topo);
	dev->ops->mem_free(dev, &group.state);
	dev->ops->pinned_free(dev, &pin);
	dev->ops->stream_destroy(dev, stream);
	dev->ops->close(dev);
	return gpu_end("gpu_reach, a rank");
}

/* Started by exec: CUDA does not survive a fork. */
static pid_t spawn(int rank, int *to)
{
	char number[16];
	int fds[2];
	pid_t pid;

	snprintf(number, sizeof(number), "%d", rank);
	REQUIRE(pipe(fds) == 0, "pipe");
	fflush(NULL);
	pid = fork();
	REQUIRE(pid >= 0, "fork");
	if (!pid) {
		if (dup2(fds[0], CHILD_FD) < 0)
			_exit(1);
		execl("/proc/self/exe", "gpu_reach", "rank", number, (char *)NULL);
		_exit(1);
	}
	close(fds[0]);
	*to = fds[1];
	return pid;
}

int main(int argc, char **argv)
{
	struct ep_boot_id id;
	int count, status, to[RANKS];
	pid_t pid[RANKS];

	if (argc > 2 && !strcmp(argv[1], "rank"))
		return child(argv[2]);
	gpu_row(&count);
	for (int r = 0; r < RANKS; r++)
		pid[r] = spawn(r, &to[r]);
	REQUIRE(ep_boot_id_create(&id) == 0, "id");
	for (int r = 0; r < RANKS; r++)
		REQUIRE(write(to[r], &id, sizeof(id)) == (ssize_t)sizeof(id), "write");
	for (int r = 0; r < RANKS; r++)
		CHECK(waitpid(pid[r], &status, 0) == pid[r] && status == 0, "rank %d ended with %x", r,
		      (unsigned)status);
	return gpu_end("gpu_reach");
}
