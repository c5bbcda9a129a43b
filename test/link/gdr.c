/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory that the net registers for signals, but not for rows. On an ordered net that is an error that says what
 * to set; with that set, and on an unordered net, rows are staged through host memory. For a GPU that needs flushes an
 * ordered net counts as unordered and has memory of its own to flush; one that cannot flush is not given any. The GPU
 * is a model: the CPU device, said to be of another kind; the net is loop, which takes such memory up to a size. Links
 * are opened over the bootstrap of an LL group. Exit status 0 or 1.
 */
#include <stdio.h>
#include <string.h>

#include "net/table.h"
#include "plugin/group/group.h"
#include "test/oracle/far.h"
#include "test/oracle/rig.h"
#include "util/error.h"

#define RANKS 2
#define ROWS (1u << 20)
#define REFUSED 1 /* the rank whose rows are refused */

struct job {
	struct rig_cfg cfg;
	bool fails; /* it is an error */
	int direct; /* how many regions the refused rank has in device memory */
	bool flush; /* the GPU needs flushes */
};

/* ---- the net ---- */

int __real_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX]);
int __wrap_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX]);
static _Thread_local int rank_here;
static _Thread_local int direct; /* regions in device memory */
static bool no_flush;		 /* the net cannot flush */

static int model_getProperties(void *net, int dev, ncclEpNetProperties_v1_t *props)
{
	int rc = ep_net_loop.getProperties(net, dev, props);

	props->memKinds |= NCCL_EP_NET_MEM_CUDA;
	props->flushes = !no_flush;
	return rc;
}

static int model_regMr(void *comm, const ncclEpNetMem_v1_t *mem, void *key, void **mr)
{
	ncclEpNetMem_v1_t host = *mem;

	if (mem->kind == NCCL_EP_NET_MEM_CUDA && mem->size >= ROWS && rank_here == REFUSED)
		return EP_FAIL(EP_NET, ENOMEM, "model: no room for %zu bytes", mem->size);
	direct += mem->kind == NCCL_EP_NET_MEM_CUDA;
	host.kind = NCCL_EP_NET_MEM_HOST;
	return ep_net_loop.regMr(comm, &host, key, mr);
}

int __wrap_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX])
{
	int rc = __real_ep_net_try(spec, out, why);

	if (!rc) {
		(*out)->ops.getProperties = model_getProperties;
		(*out)->ops.regMr = model_regMr;
	}
	return rc;
}

/* ---- the link ---- */

static void rank_lost(void *arg, int rank, const char *why)
{
	(void)arg;
	(void)rank;
	(void)why;
}

static void net_failed(void *arg, int err, const char *why)
{
	(void)arg;
	(void)err;
	(void)why;
}

static void reserve(struct rig *rig, struct ep_link *link, const struct job *job)
{
	int rank = seat_rank(rig->seat), rc = ep_link_reserve(link, ROWS, ROWS);
	const char *text = ep_last_error(), *model = "model: no room for 2097152 bytes";

	ll_wrong(&rig->verdict, !rc == job->fails, "rank %d: ep_link_reserve returned %d (%s)", rank, rc, text);
	if (rc && rank == REFUSED)
		ll_wrong(&rig->verdict,
			 !strstr(text, "rank 1") || !strstr(text, "NCCL_EP_GDR=0") || !strstr(text, model),
			 "rank 1: %s", text);
	else if (rc)
		ll_wrong(&rig->verdict, !strstr(text, "rank 1 could not register"), "rank %d: %s", rank, text);
	ll_wrong(&rig->verdict, rank == REFUSED && direct != job->direct, "rank 1: %d regions in device memory",
		 direct);
}

static void link_use(struct rig *rig, const struct job *job)
{
	struct ncclEpGroup *group = rig->group;
	struct ep_dev_ops gpu = *group->dev->ops;
	struct ep_link_ctx ctx = { .boot = group->boot,
				   .topo = &group->topo,
				   .rank = group->rank,
				   .nranks = group->nranks,
				   .mapped = group->control.peer,
				   .far_size = 4096,
				   .rank_lost = rank_lost,
				   .failed = net_failed };
	struct ep_link *link = NULL;

	gpu.kind = EP_DEV_CUDA;
	if (ep_dev_row(EP_DEV_HOST)->open(0, &ctx.dev)) {
		seat_fail(rig->seat, "%s", ep_last_error());
		return;
	}
	ctx.dev->ops = &gpu;
	ctx.dev->nic_ordered = !job->flush;
	ctx.dev->nic_flush = job->flush;
	if (ep_link_open(&ctx, &link))
		seat_fail(rig->seat, "rank %d: %s", group->rank, ep_last_error());
	else
		reserve(rig, link, job);
	ll_wrong(&rig->verdict, link && (link->flush.mr != NULL) != (job->flush && !no_flush),
		 "rank %d: engines flush, or not", group->rank);
	seat_barrier(rig->seat);
	ep_link_stop(link);
	seat_barrier(rig->seat);
	ep_link_close(link);
	ctx.dev->ops->close(ctx.dev);
}

static int gdr_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct rig rig;

	rank_here = seat_rank(seat);
	direct = 0;
	if (!rig_open(&rig, seat, &job->cfg))
		link_use(&rig, job);
	rig_close(&rig);
	return rig_tell(&rig);
}

int main(void)
{
	static const struct {
		const char *net, *gdr;
		bool fails;
		int direct;
		bool flush, no_flush;
	} rows[] = {
		{ "loop", "1", true, 1, false, false }, /* the signals */
		{ "loop", "0", false, 0, false, false },
		{ "loop:unordered=1", "1", false, 0, false, false }, /* signals are in host memory */
		{ "loop", "1", false, 1, true, false },		     /* what is flushed */
		{ "loop", "1", false, 0, true, true },
	};
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	int failed = 0;

	if (world_open(&opts, &world))
		return 1;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct job job = { .cfg = { .handles = 1, .per_node = 1 } };
		int rc;

		job.cfg.shape = (struct ll_shape){ .ranks = RANKS,
						   .experts = RANKS,
						   .topk = 1,
						   .tmax = 2,
						   .hidden = 128,
						   .token = NUM_BF16,
						   .combine = NUM_BF16 };
		job.fails = rows[i].fails;
		job.direct = rows[i].direct;
		job.flush = rows[i].flush;
		no_flush = rows[i].no_flush;
		far_set(world, 1, rows[i].net, 0);
		world_setenv(world, "NCCL_EP_GDR", rows[i].gdr);
		rc = world_run(world, RANKS, gdr_job, &job, sizeof(job), 60);
		printf("%s %s, NCCL_EP_GDR=%s%s%s%s%s\n", rc ? "FAILED" : "ok    ", rows[i].net, rows[i].gdr,
		       rows[i].flush ? ", flushes" : "", rows[i].no_flush ? " it cannot" : "", rc ? ": " : "",
		       rc ? world_text(world) : "");
		failed += rc != 0;
	}
	failed += world_close(world) != 0;
	return failed ? 1 : 0;
}
