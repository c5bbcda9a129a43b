/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of ranks that only a net connects, on a host without libfabric: when fabric is requested, creating the group
 * fails on every rank with a message that says what to install; otherwise the next transport is used. With threads and
 * with processes. Exit status 0 or 1.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/oracle/far.h"
#include "test/oracle/rig.h"

#define RANKS 4

/* An empty file hides an installed library. The dynamic linker reads LD_LIBRARY_PATH at start only. */
static int start_again(char **argv)
{
	char dir[] = "/tmp/nccl_ep_fabric_XXXXXX", file[64];
	int fd;

	if (!mkdtemp(dir))
		return 1;
	snprintf(file, sizeof(file), "%s/libfabric.so.1", dir);
	fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	setenv("LD_LIBRARY_PATH", dir, 1); /* the program finds its own libraries by rpath */
	setenv("FABRIC_ABSENT", dir, 1);
	if (fd >= 0)
		execv("/proc/self/exe", argv);
	unlink(file);
	rmdir(dir);
	return 1;
}

static struct rig_cfg cfg_make(void)
{
	struct rig_cfg cfg = { .handles = 1, .spare = LL_ALL, .per_node = RANKS / 2 };

	cfg.shape = (struct ll_shape){ .ranks = RANKS,
				       .experts = 2 * RANKS,
				       .topk = 3,
				       .tmax = 5,
				       .hidden = 64,
				       .token = NUM_BF16,
				       .combine = NUM_BF16 };
	cfg.data = (struct ll_data){ .seed = 3, .fill = LL_FILL_FULL };
	return cfg;
}

static int refused_job(struct seat *seat, const void *arg)
{
	const struct rig_cfg *cfg = arg;
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t group = NULL;
	ncclComm_t comm = seat_comm(seat);
	ncclResult_t rc;

	if (!comm)
		return -1;
	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = (unsigned)cfg->shape.experts;
	config.max_dispatch_tokens_per_rank = (unsigned)cfg->shape.tmax;
	config.max_token_bytes = (unsigned)ll_out_bytes(&cfg->shape);
	rc = ncclEpCreateGroup(&group, comm, &config);
	if (rc == ncclSuccess || group)
		return seat_fail(seat, "answered %s, the group is %p", ncclGetErrorString(rc), (void *)group);
	if (!strstr(anyEpGetLastError(), "libfabric.so.1") || !strstr(anyEpGetLastError(), "install"))
		return seat_fail(seat, "\"%s\" does not say what is missing", anyEpGetLastError());
	return 0;
}

static int sound_job(struct seat *seat, const void *arg)
{
	struct rig rig;

	if (!rig_open(&rig, seat, arg) && !rig_script(&rig, "DA CA"))
		rig_check_crossed(&rig);
	rig_close(&rig);
	if (rig.verdict.wrong)
		seat_fail(seat, "#wrong %llu: %s", (unsigned long long)rig.verdict.wrong, rig.verdict.first);
	return seat_failed(seat) ? -1 : 0;
}

static int run(bool processes)
{
	static const struct {
		const char *net;
		world_fn fn;
	} step[] = { { "fabric", refused_job },
		     { "fabric:provider=tcp", refused_job },
		     { "", sound_job },
		     { "fabric", refused_job } };
	struct world_opts opts = { .seats = RANKS, .processes = processes };
	struct rig_cfg cfg = cfg_make();
	struct world *world;
	int failed = 0;

	if (world_open(&opts, &world))
		return 1;
	for (size_t i = 0; i < sizeof(step) / sizeof(step[0]); i++) {
		int rc;

		far_set(world, RANKS / 2, step[i].net, 0);
		rc = world_run(world, RANKS, step[i].fn, &cfg, sizeof(cfg), 60);
		printf("%s %s, NCCL_EP_NET=%s: %s%s\n", rc ? "FAILED" : "ok    ", processes ? "processes" : "threads",
		       step[i].net, step[i].fn == sound_job ? "works" : "refused", rc ? world_text(world) : "");
		fflush(stdout);
		failed += rc != 0;
	}
	return failed + (world_close(world) != 0);
}

int main(int argc, char **argv)
{
	const char *dir = getenv("FABRIC_ABSENT");
	char file[64];
	int failed;

	(void)argc;
	if (!dir)
		return start_again(argv);
	failed = run(true) + run(false);
	snprintf(file, sizeof(file), "%s/libfabric.so.1", dir);
	unlink(file);
	rmdir(dir);
	return failed != 0;
}
