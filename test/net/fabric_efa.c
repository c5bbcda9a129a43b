/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fabric_efa CASE: what fabric asks of efa, and how it survives it, over the model of test/efa. One thread drives both
 * ranks, so that their steps have a known order. Exit status 0 or 1; 77: not the model. The case speed is no test: it
 * prints puts per second and CPU time per put of both ranks and the model, with EP_MODEL_FABRIC=efa-direct,calm.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "net/net.h"
#include "test/efa/seen.h"
#include "util/clock.h"
#include "util/error.h"

#define BYTES 65536u
#define PUTS 6000u

static const struct model_seen *seen;
static int errors;

#define CHECK(cond)                                                                                         \
	do {                                                                                                \
		if (!(cond) && ++errors)                                                                    \
			fprintf(stderr, "%s:%d: %s; \"%s\"\n", __FILE__, __LINE__, #cond, ep_last_error()); \
	} while (0)

struct end {
	struct ep_net *net;
	void *listener, *comm, *ctx, *mr;
	uint8_t *mem, key[NCCL_EP_NET_KEY_SIZE];
	uint32_t got;
	uint8_t had[PUTS];
};

static struct end ends[2];
static uint8_t handles[2][NCCL_EP_NET_HANDLE_SIZE];

static int end_listen(int r, const char *spec)
{
	struct end *e = &ends[r];
	int rc = ep_net_open(spec, &e->net);

	e->mem = calloc(1, BYTES);
	rc = rc ? rc : e->net->ops.listen(e->net->net, 0, 2, handles[r], &e->listener);
	CHECK(rc == 0);
	return rc;
}

static int end_connect(int r)
{
	struct end *e = &ends[r];
	int rc = e->comm ? 0 : e->net->ops.connect(e->listener, handles, 2, r, &e->comm);

	CHECK(rc == 0);
	return rc;
}

static void end_step(struct end *e)
{
	uint32_t imms[64];
	int n;

	CHECK(e->net->hot.progress(e->ctx, imms, 64, &n) == 0);
	for (int i = 0; i < n; i++) {
		CHECK(imms[i] < PUTS && !e->had[imms[i]]);
		e->had[imms[i] % PUTS] = 1;
		e->got++;
	}
}

/* Rank 1 connects some time after rank 0 has begun to. */
static int both_open(const char *spec, int late_ms)
{
	uint8_t keys[2][NCCL_EP_NET_KEY_SIZE];
	uint64_t end = ep_deadline_ms(20000), late = ep_deadline_ms(late_ms);
	int rc = end_listen(0, spec);

	rc = rc ? rc : end_listen(1, spec);
	while (!rc && late_ms && ep_now_ns() < late)
		rc = end_connect(0);
	CHECK(!ends[0].comm);
	while (!rc && (!ends[0].comm || !ends[1].comm) && ep_now_ns() < end) {
		rc = end_connect(0);
		rc = rc ? rc : end_connect(1);
	}
	if (rc || !ends[0].comm || !ends[1].comm) {
		CHECK(!"connected");
		return -1;
	}
	for (int r = 0; r < 2; r++) {
		struct end *e = &ends[r];
		ncclEpNetMem_v1_t mem = { .ptr = e->mem, .size = BYTES, .kind = NCCL_EP_NET_MEM_HOST, .fd = -1 };

		CHECK(e->net->ops.closeListen(e->listener) == 0);
		CHECK(e->net->ops.createContext(e->comm, 0, &e->ctx) == 0);
		CHECK(e->net->ops.regMr(e->comm, &mem, keys[r], &e->mr) == 0);
	}
	for (int r = 0; r < 2; r++)
		CHECK(ends[r].net->ops.shareMr(ends[r].comm, ends[r].mr, keys) == 0);
	return errors;
}

static void both_close(void)
{
	for (int r = 0; r < 2; r++) {
		struct end *e = &ends[r];

		if (e->mr)
			CHECK(e->net->ops.deregMr(e->comm, e->mr) == 0);
		if (e->comm)
			CHECK(e->net->ops.closeComm(e->comm) == 0);
	}
	for (int r = 0; r < 2; r++) {
		ep_net_close(ends[r].net);
		free(ends[r].mem);
	}
}

/* Puts with immediate data from rank 0 to rank 1, many times as many as there are receives. */
static void puts_run(void)
{
	ncclEpNetPut_v1_t put = { .peer = 1, .flags = NCCL_EP_NET_IMM, .size = 8 };
	uint64_t end = ep_deadline_ms(20000);
	void *request = NULL;
	int done = 0;

	put.srcMr = put.dstMr = ends[0].mr;
	for (uint32_t i = 0; i < PUTS && !errors; i++) {
		put.imm = i;
		put.flags = NCCL_EP_NET_IMM | (i + 1 == PUTS ? 0 : NCCL_EP_NET_QUIET);
		for (request = NULL; !request && ep_now_ns() < end; end_step(&ends[1])) {
			CHECK(ends[0].net->hot.iput(ends[0].ctx, &put, &request) == 0);
			end_step(&ends[0]);
		}
		CHECK(request);
	}
	while (!errors && (!done || ends[1].got < PUTS) && ep_now_ns() < end) {
		end_step(&ends[0]);
		end_step(&ends[1]);
		if (!done)
			CHECK(ends[0].net->hot.test(ends[0].ctx, request, &done) == 0);
	}
	CHECK(done && ends[1].got == PUTS);
}

/* Receives come in batches and again after a failure; the options of the endpoint; device memory by address. */
static void case_asked(const char *spec)
{
	ncclEpNetMem_v1_t mem = { .size = BYTES, .kind = NCCL_EP_NET_MEM_CUDA, .fd = -1 };
	ncclEpNetProperties_v1_t props;
	uint8_t key[NCCL_EP_NET_KEY_SIZE];
	void *mr = NULL;

	if (both_open(spec, 0))
		return;
	puts_run();
	CHECK(seen->endpoints > 2 && seen->shared == 0);
	CHECK(seen->low_latency == seen->endpoints);
	if (seen->receives) {
		CHECK(seen->receives > PUTS && seen->failed_receives > 256);
		CHECK(seen->doorbells * 4 < seen->receives);
	}
	CHECK(ends[0].net->ops.getProperties(ends[0].net->net, 0, &props) == 0);
	CHECK(props.memKinds & NCCL_EP_NET_MEM_CUDA && props.maxContexts == 2);
	mem.ptr = ends[0].mem; /* the model takes it for device memory */
	CHECK(ends[0].net->ops.regMr(ends[0].comm, &mem, key, &mr) == 0 && seen->by_address);
	CHECK(ends[0].net->ops.deregMr(ends[0].comm, mr) == 0);
}

static void case_direct(void)
{
	case_asked("fabric:provider=efa");
	CHECK(seen->receives);
}

static void case_protocols(void)
{
	case_asked("fabric:provider=efa,direct=0");
	CHECK(!seen->receives);
}

/* A rank that has not inserted its peer's address yet: the hellos fail, and are repeated. */
static void case_late(void)
{
	if (!both_open("fabric:provider=efa", 30))
		puts_run();
	CHECK(seen->unknown_peers > 1);
}

static void case_emulated(void)
{
	struct ep_net *net = NULL;

	CHECK(ep_net_open("fabric:provider=efa", &net) == -ENODEV && strstr(ep_last_error(), "emulated=1"));
	if (!both_open("fabric:emulated=1", 0))
		puts_run();
}

/* With NCCL_EP_ENGINES=4: a context for each. */
static void case_engines(void)
{
	ncclEpNetProperties_v1_t props = { .maxContexts = 0 };

	setenv("NCCL_EP_ENGINES", "4", 1);
	if (both_open("fabric:provider=efa", 0))
		return;
	CHECK(ends[0].net->ops.getProperties(ends[0].net->net, 0, &props) == 0 && props.maxContexts == 4);
	puts_run();
}

/* A peer that is killed is noticed after milliseconds, however rarely an engine polls. */
static void case_clock(void)
{
	int down[2], up[2];
	const char *why;
	pid_t child;

	CHECK(!pipe(down) && !pipe(up));
	child = fork();
	if (end_listen(child ? 0 : 1, "fabric:provider=efa"))
		return;
	CHECK(write(child ? down[1] : up[1], handles[child ? 0 : 1], sizeof(handles[0])) == sizeof(handles[0]));
	CHECK(read(child ? up[0] : down[0], handles[child ? 1 : 0], sizeof(handles[0])) == sizeof(handles[0]));
	for (uint64_t end = ep_deadline_ms(20000); !ends[!child].comm && ep_now_ns() < end;)
		end_connect(!child);
	if (!child)
		pause();
	CHECK(ends[0].comm && ends[0].net->ops.createContext(ends[0].comm, 0, &ends[0].ctx) == 0);
	CHECK(ends[0].net->ops.closeListen(ends[0].listener) == 0);
	for (int i = 0; i < 20; i++) /* the immediate of its hello may be in flight */
		end_step(&ends[0]);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	for (int i = 0; i < 20 && !ends[0].net->ops.queryLastError(ends[0].comm, 1, &why); i++) {
		usleep(2000);
		end_step(&ends[0]);
	}
	CHECK(ends[0].net->ops.queryLastError(ends[0].comm, 1, &why) && strstr(why, "process ended"));
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Quiet puts of 8 bytes with immediate data, every 32nd with a completion; both ranks poll after each run of 32. */
static void case_speed(void)
{
	enum { RUNS = 20000, RUN = 32 };
	ncclEpNetPut_v1_t put = { .peer = 1, .size = 8 };
	uint64_t wall, cpu;
	uint32_t imms[64];
	int n, done;

	if (both_open("fabric:provider=efa", 0))
		return;
	wall = ep_now_ns();
	cpu = cpu_ns();
	put.srcMr = put.dstMr = ends[0].mr;
	for (int i = 0; i < RUNS; i++) {
		void *request = NULL;

		for (int k = 0; k < RUN; k += request != NULL) {
			put.flags = NCCL_EP_NET_IMM | (k + 1 < RUN ? NCCL_EP_NET_QUIET : 0);
			CHECK(ends[0].net->hot.iput(ends[0].ctx, &put, &request) == 0);
		}
		for (done = 0; !done;) {
			CHECK(ends[0].net->hot.progress(ends[0].ctx, imms, 64, &n) == 0);
			CHECK(ends[1].net->hot.progress(ends[1].ctx, imms, 64, &n) == 0);
			CHECK(ends[0].net->hot.test(ends[0].ctx, request, &done) == 0);
		}
	}
	cpu = cpu_ns() - cpu;
	wall = ep_now_ns() - wall;
	printf("%d puts: %.3f M/s, %.0f ns of CPU time per put, %.3f doorbells for receives per put\n", RUNS * RUN,
	       RUNS * RUN * 1e3 / (double)wall, (double)cpu / (RUNS * RUN), (double)seen->doorbells / (RUNS * RUN));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		{ "direct", case_direct },     { "protocols", case_protocols }, { "late", case_late },
		{ "emulated", case_emulated }, { "engines", case_engines },	{ "clock", case_clock },
		{ "speed", case_speed },
	};
	void *lib = dlopen("libfabric.so.1", RTLD_NOW);

	seen = lib ? dlsym(lib, "ep_model_seen") : NULL;
	if (!seen) {
		fprintf(stderr, "skipped: libfabric.so.1 is not the model\n");
		return 77;
	}
	for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			both_close();
			return errors != 0;
		}
	return 1;
}
