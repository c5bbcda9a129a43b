/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/create.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/group/dump.h"
#include "plugin/group/grow.h"
#include "plugin/group/guard.h"
#include "plugin/group/launch.h"
#include "plugin/group/plan.h"
#include "plugin/group/retire.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/live.h"
#include "util/param.h"
#include "util/text.h"
#include "util/trace.h"

#define DEFAULT_TIMEOUT_NS 100000000000ull
#define MAX_TIMEOUT_NS (1ull << 62)

/* The first exchange, over the communicator's own network: everything later goes over the group's bootstrap mesh. */
struct greeting {
	char build[24]; /* structs on the wire differ between builds */
	int32_t check_rc;
	uint32_t pad;
	struct ep_boot_id id; /* rank 0's counts */
};

static uint64_t timeout_of(const struct ep_group_cfg *cfg)
{
	int64_t ms = ep_param_int(EP_P_TIMEOUT_MS);

	/* Deadlines are sums: "no limit" must not overflow into one that has passed. */
	if (ms > 0)
		return (uint64_t)ms < MAX_TIMEOUT_NS / 1000000 ? (uint64_t)ms * 1000000ull : MAX_TIMEOUT_NS;
	if (cfg->timeout_ns)
		return cfg->timeout_ns < MAX_TIMEOUT_NS ? cfg->timeout_ns : MAX_TIMEOUT_NS;
	return DEFAULT_TIMEOUT_NS;
}

/* Reported by name when ranks disagree. */
static const struct {
	const char *name;
	size_t offset, size;
} cfg_fields[] = {
#define FIELD(f) { #f, offsetof(struct ep_group_cfg, f), sizeof(((struct ep_group_cfg *)0)->f) }
	FIELD(algorithm),	FIELD(num_experts),	 FIELD(max_dispatch),	  FIELD(max_recv),
	FIELD(max_token_bytes), FIELD(rdma_buffer_size), FIELD(num_qp_per_rank),  FIELD(num_channels),
	FIELD(max_num_sms),	FIELD(enable_mask),	 FIELD(timeout_ns),	  FIELD(zero_copy),
	FIELD(overflow),	FIELD(num_topk),	 FIELD(dispatch_num_sms), FIELD(combine_num_sms),
#undef FIELD
};

static uint64_t field_value(const struct ep_group_cfg *cfg, size_t i)
{
	uint64_t value = 0;

	memcpy(&value, (const char *)cfg + cfg_fields[i].offset,
	       cfg_fields[i].size); /* little endian, as all our hosts */
	return value;
}

static int cfg_compare(const struct ep_group_cfg *all, int nranks)
{
	for (int r = 1; r < nranks; r++)
		for (size_t i = 0; i < sizeof(cfg_fields) / sizeof(cfg_fields[0]); i++)
			if (field_value(&all[0], i) != field_value(&all[r], i))
				return EP_FAIL(EP_GROUP, EP_EARG,
					       "ncclEpCreateGroup: config->%s differs between ranks: %llu on rank 0, "
					       "%llu on rank %d",
					       cfg_fields[i].name, (unsigned long long)field_value(&all[0], i),
					       (unsigned long long)field_value(&all[r], i), r);
	return 0;
}

static int cfg_agree(struct ncclEpGroup *group)
{
	struct ep_group_cfg mine = group->cfg,
			    *all = EP_CALLOC(EP_GROUP, (size_t)group->nranks, sizeof(*all), "configurations");
	int rc;

	if (!all)
		return -ENOMEM;
	rc = ep_boot_allgather(group->boot, &mine, sizeof(mine), all);
	if (!rc)
		rc = cfg_compare(all, group->nranks);
	free(all);
	return rc;
}

static int greeting_judge(const struct greeting *all, const struct ep_comm *comm, int check_rc)
{
	char build[4 * sizeof(all->build)];
	int rc;

	if (check_rc)
		return check_rc; /* its message is already set */
	for (int r = 0; r < comm->nranks; r++) {
		if (memcmp(all[r].build, all[comm->rank].build, sizeof(all[r].build)))
			return EP_FAIL(EP_GROUP, EP_EUSAGE,
				       "ncclEpCreateGroup: rank %d runs another build of libnccl_ep (%s) than rank "
				       "%d (%.20s)",
				       r, ep_text_take(build, sizeof(build), all[r].build, sizeof(all[r].build)),
				       comm->rank, all[comm->rank].build);
		if ((rc = ep_rc_take(all[r].check_rc)))
			return EP_FAIL(EP_GROUP, -rc,
				       "ncclEpCreateGroup: rank %d cannot create the group (%s): see its own message",
				       r, ep_result_name(ep_result(rc)));
	}
	return 0;
}

/* Opens the group's own mesh. */
static int mesh_open(struct ncclEpGroup *group, const struct ep_boot_id *id, uint64_t deadline)
{
	struct ep_boot_opts opts = { .id = id,
				     .rank = group->rank,
				     .nranks = group->nranks,
				     .deadline = deadline,
				     .wait_ns = group->timeout_ns,
				     .maker = 1, /* rank 0 */
				     .survive = group->cfg.enable_mask,
				     .gone = ep_group_rank_dead,
				     .gone_ctx = group };

	/* A rank that does not come may have failed in the exchange before, because of another. */
	return ep_comm_explain(&group->comm, ep_boot_open(&opts, &group->boot));
}

/* Greetings of so many ranks are exchanged without allocating: a rank that is out of memory can still say so, and its
 * next call on the communicator does not pair with the others' greetings. */
#define GREETINGS_FEW 128

/* Exchanges greetings over the communicator, and opens the mesh if all ranks can. group is NULL only with check_rc. */
static int group_meet(struct ncclEpGroup *group, const struct ep_comm *comm, int check_rc, uint64_t deadline)
{
	struct greeting mine = { .build = EP_VERSION }, few[GREETINGS_FEW], *all = few;
	struct ep_dev *dev = group ? group->dev : NULL;
	int rc, gathered;

	if (comm->nranks > GREETINGS_FEW)
		all = EP_CALLOC(EP_GROUP, (size_t)comm->nranks, sizeof(*all), "greetings");
	/* Without memory for the exchange, or a GPU to exchange with, the others learn it by their deadline. */
	if (!all || (comm->kind != EP_DEV_HOST && !dev))
		return check_rc ? check_rc : -ENOMEM;
	if (comm->rank == 0 && !check_rc)
		check_rc = ep_boot_id_create(&mine.id);
	mine.check_rc = check_rc;
	rc = gathered = ep_comm_allgather(comm, dev, group ? group->stream : NULL, &mine, sizeof(mine), all, deadline);
	if (!rc)
		rc = greeting_judge(all, comm, check_rc);
	/* What all ranks judge alike keeps all of them away; of a failed exchange some may know nothing. */
	if (rc && comm->rank == 0 && !check_rc)
		ep_boot_id_abandon(&mine.id, comm->rank, -gathered, ep_last_error());
	if (!rc)
		rc = mesh_open(group, &all[0].id, deadline);
	if (all != few)
		free(all);
	return rc;
}

/* Nothing but the reach of their devices parts these ranks: all share a host's memory. */
static bool one_host(const struct ncclEpGroup *group)
{
	const struct ep_topo *topo = &group->topo;

	for (int r = 0; r < group->nranks; r++)
		if (topo->rank[r].home != topo->rank[0].home || topo->rank[r].dev.kind != topo->rank[0].dev.kind)
			return false;
	return topo->nodes == 1 || topo->alone;
}

/* Where an algorithm needs all ranks to map each other, and GPUs of the host do not, its windows are in host memory:
 * slower, but right. The net of the other algorithms goes through it, too. */
static int control_open(struct ncclEpGroup *group)
{
	struct ep_window_ctx ctx = ep_group_window_ctx(group);
	size_t bytes = group->algo->control_size(group);
	int rc = ep_window_open(&ctx, bytes, &group->control);

	for (int r = 0; !rc && r < group->nranks; r++)
		group->topo.rank[r].apart = !group->control.peer[r];
	if (rc || !group->algo->host_windows || group->control.whole || !one_host(group))
		return rc;
	if ((rc = ep_dev_row(EP_DEV_HOST)->open(0, &group->host)))
		return rc;
	EP_LOG(group->rank || group->topo.alone ? EP_LOG_INFO : EP_LOG_WARN, EP_GROUP,
	       "rank %d: some GPUs of this node do not reach each other's memory: %s goes through host memory",
	       group->rank, group->algo->name);
	group->tried = group->control; /* closed at the end: the others may not have let go of it */
	group->control = (struct ep_window){ 0 };
	ctx = ep_group_window_ctx(group);
	return ep_window_open(&ctx, bytes, &group->control);
}

/* Windows in host memory are for all ranks, or for none. */
static int host_mapped(const struct ncclEpGroup *group)
{
	for (int r = 0; group->host && r < group->nranks; r++)
		if (!group->control.peer[r])
			return EP_FAIL(EP_GROUP, EP_EDEVICE,
				       "ncclEpCreateGroup: rank %d cannot map host memory of rank %d: let the ranks of "
				       "a node share its memory (one IPC namespace), and leave enough of it to pin",
				       group->rank, r);
	return 0;
}

static int link_open(struct ncclEpGroup *group)
{
	struct ep_link_ctx ctx = { .dev = group->dev,
				   .boot = group->boot,
				   .topo = &group->topo,
				   .rank = group->rank,
				   .nranks = group->nranks,
				   .stream = group->stream,
				   .mapped = group->control.peer,
				   .throughput = group->algo->throughput,
				   .trace = group->trace,
				   .rank_lost = ep_group_rank_lost,
				   .failed = ep_group_net_failed,
				   .arg = group };
	bool *wanted = NULL;
	int rc = 0;

	if (group->algo->wants) {
		wanted = EP_CALLOC(EP_GROUP, (size_t)group->nranks, sizeof(*wanted), "remote ranks");
		rc = wanted ? group->algo->wants(group, wanted) : -ENOMEM;
		ctx.wanted = wanted;
	}
	if (!rc) {
		ctx.far_size = group->algo->far_size ? group->algo->far_size(group) : 0;
		rc = ep_link_open(&ctx, &group->link);
	}
	free(wanted);
	return rc;
}

/* Kernels of ranks that share a GPU wait for each other, so all must be resident at once; the CPU runs any number. */
static int topo_find(struct ncclEpGroup *group)
{
	const struct ep_dev *dev = group->dev;
	const char *bus = strrchr(dev->pci, '/');
	struct ep_topo_dev mine = {
		.kind = (int32_t)dev->ops->kind, .ordinal = dev->ordinal, .sms = dev->sms, .sms_all = dev->sms_all
	};
	int sharers = 0, rc;

	memcpy(mine.uuid, dev->uuid, sizeof(mine.uuid));
	snprintf(mine.pci, sizeof(mine.pci), "%s", bus ? bus + 1 : "");
	if ((rc = ep_topo_build(group->boot, group->rank, group->nranks, &mine, &group->topo)))
		return rc;
	group->resident = dev->sms;
	if (dev->ops->kind == EP_DEV_HOST)
		return 0;
	group->resident = ep_topo_blocks(&group->topo, group->rank);
	for (int r = 0; r < group->nranks; r++)
		sharers += ep_topo_shares(&group->topo, group->rank, r);
	EP_INFO(EP_GROUP, "rank %d: ranks on its GPU %s: %d, multiprocessors it sees: %u of %u, blocks of a launch: %u",
		group->rank, mine.pci, sharers, dev->sms, dev->sms_all, group->resident);
	return 0;
}

/* A group without a trace is better than none. */
static void trace_open(struct ncclEpGroup *group)
{
	const char *file = ep_param_str(EP_P_TRACE);

	if (*file && ep_trace_open(file, group->rank, group->algo->name, ep_group_key(group), &group->trace))
		EP_WARN(EP_GROUP, "rank %d: no trace of this group", group->rank);
}

/* With the mesh up the caller tells the others of a failure, which they would otherwise learn by their deadline. */
static int group_furnish(struct ncclEpGroup *group)
{
	/* An explicit size is that of each: what is mapped, what arrives over the net, what leaves. */
	size_t bytes = group->cfg.rdma_buffer_size / EP_PLAN_ALIGN * EP_PLAN_ALIGN;
	struct ep_need need = { group->cfg.rdma_buffer_size, bytes, bytes };
	int rc;

	if ((rc = cfg_agree(group)))
		return rc;
	if ((rc = topo_find(group)))
		return rc;
	trace_open(group);
	if ((rc = control_open(group)))
		return rc;
	if ((rc = host_mapped(group)) || (rc = link_open(group)))
		return rc;
	if ((rc = group->algo->open(group, &need)))
		return rc;
	if (need.window && (rc = ep_group_payload_add(group, need.window)))
		return rc;
	if (need.far_window && group->link && (rc = ep_link_reserve(group->link, need.far_window, need.far_send)))
		return rc;
	return ep_boot_barrier(group->boot);
}

/* Ends what runs. True: all of it has ended. */
static bool group_stop(struct ncclEpGroup *group)
{
	ep_guard_stop(group->guard); /* while there is something to see */
	group->algo->stop(group);
	ep_link_stop(group->link);
	ep_trace_save(group->trace);
	ep_boot_close(group->boot); /* before the rest: its thread writes to the page */
	ep_guard_free(group->guard);
	return !(group->link && group->link->stuck);
}

/* What is freed with or without the memory. */
static void group_drop(struct ncclEpGroup *group)
{
	for (int i = 0; i < group->payload.count; i++)
		free(group->payload.win[i]);
	free(group->payload.win);
	ep_topo_free(&group->topo);
	pthread_mutex_destroy(&group->lock);
	pthread_mutex_destroy(&group->error_lock);
	pthread_mutex_destroy(&group->dump_lock);
	free(group);
}

static void group_free(struct ncclEpGroup *group)
{
	struct ep_window_ctx ctx = ep_group_window_ctx(group);

	ep_link_close(group->link);
	ep_trace_free(group->trace);
	for (int i = 0; i < group->payload.count; i++)
		ep_window_close(&ctx, group->payload.win[i]);
	ep_window_close(&ctx, &group->control);
	ctx.host = NULL;
	ep_window_close(&ctx, &group->tried);
	ep_window_tables_close(&ctx);
	ep_pool_close(&group->pool);
	group->algo->close(group);
	if (group->state.ptr)
		group->dev->ops->mem_free(group->dev, &group->state);
	if (group->page.mem.host)
		group->dev->ops->pinned_free(group->dev, &group->page.mem);
	if (group->stream)
		group->dev->ops->stream_destroy(group->dev, group->stream);
	if (group->host)
		group->host->ops->close(group->host);
	if (group->dev)
		group->dev->ops->close(group->dev);
	group_drop(group);
}

/*
 * drained: no kernel of this rank runs any more. quiet: nobody uses its windows any more. Otherwise threads of this
 * process may hold plain pointers into them: on the CPU device they stay until the last of its ranks has ended, as
 * another process has mappings of its own; on a GPU, and where something still runs, until the process ends. A leak in
 * a failed job is better than a store into unmapped memory.
 */
static void group_release(struct ncclEpGroup *group, bool drained, bool quiet)
{
	bool safe = group_stop(group) && drained, cpu = group->dev && group->dev->ops->kind == EP_DEV_HOST;
	struct ncclEpGroup *next;

	ep_live_drop(EP_LIVE_GROUP, group);
	quiet = quiet && safe;
	if (!quiet && !(cpu && safe))
		EP_WARN(EP_GROUP, "rank %d: the group failed: leaking its windows until the process ends", group->rank);
	else if (!quiet)
		ep_pool_close(&group->pool); /* only its own kernels use it, and the caller's free_fn may go */
	if (cpu && group->topo.rank) {
		for (group = ep_retire(group, safe, quiet); group; group = next) {
			next = group->retired;
			group_free(group);
		}
	} else if (quiet) {
		group_free(group);
	} else {
		ep_link_abandon(group->link);
		group->algo->abandon(group);
		group_drop(group);
	}
}

static struct ncclEpGroup *group_new(const struct ep_comm *comm, const struct ep_group_cfg *cfg,
				     const ncclEpAllocConfig_t *alloc, const struct ep_algo *algo)
{
	struct ncclEpGroup *group = EP_CALLOC(EP_GROUP, 1, sizeof(*group), "a group");

	if (!group || ep_live_add(EP_LIVE_GROUP, group)) {
		free(group);
		return NULL;
	}
	group->cfg = *cfg;
	group->algo = algo;
	group->pool.alloc = *alloc;
	group->comm = *comm;
	group->rank = comm->rank;
	group->nranks = comm->nranks;
	group->experts_per_rank = (int)(cfg->num_experts / (unsigned)comm->nranks);
	group->timeout_ns = timeout_of(cfg);
	pthread_mutex_init(&group->lock, NULL);
	pthread_mutex_init(&group->error_lock, NULL);
	pthread_mutex_init(&group->dump_lock, NULL);
	return group;
}

/* What a group needs before it meets the others. */
static int group_equip(struct ncclEpGroup *group, const struct ep_comm *comm)
{
	int rc;

	if ((rc = ep_dev_row(comm->kind)->open(comm->ordinal, &group->dev)))
		return rc;
	group->pool.dev = group->dev;
	/* Before the mesh: its thread writes there when a rank dies. */
	if ((rc = ep_page_open(group->dev, group->nranks, &group->page)))
		return rc;
	/* The CPU device runs set-up work in the caller, with no stream. */
	if (comm->kind != EP_DEV_HOST && (rc = group->dev->ops->stream_create(group->dev, &group->stream)))
		return rc;
	/* Before the mesh, too: its thread wakes it. */
	if (ep_dump_open(group))
		EP_WARN(EP_GROUP, "rank %d: no dumps of this group: %s", group->rank, ep_last_error());
	return ep_launch_budget(group);
}

int ep_group_create(ncclComm_t handle, const struct ep_group_cfg *cfg, const ncclEpAllocConfig_t *alloc,
		    const struct ep_algo *algo, int check_rc, struct ncclEpGroup **out)
{
	uint64_t begun = ep_now_ns(), deadline = ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS));
	struct ncclEpGroup *group;
	struct ep_comm comm;
	int rc = ep_comm_open(handle, &comm);

	if (rc)
		return rc;
	group = group_new(&comm, cfg, alloc, algo);
	rc = group ? group_equip(group, &comm) : -ENOMEM;
	if (!check_rc)
		check_rc = rc;
	if (!check_rc && cfg->num_experts % (unsigned)comm.nranks)
		check_rc = EP_FAIL(EP_GROUP, EP_EARG,
				   "ncclEpCreateGroup: config->num_experts is %u, not a multiple of the %d ranks",
				   cfg->num_experts, comm.nranks);
	if ((rc = group_meet(group, &comm, check_rc, deadline)))
		goto release;
	if ((rc = group_furnish(group))) {
		rc = ep_group_explain(group, begun, rc);
		ep_boot_abort(group->boot, -rc, ep_last_error());
		goto release;
	}
	ep_boot_limit(group->boot, 0);
	atomic_store_explicit(&group->furnished, true, memory_order_release); /* R1 of dump.c */
	*out = group;
	return 0;
release:
	if (group)
		group_release(group, true, true);
	return rc;
}

/* First everything sent has arrived, then nobody sends, then memory may be freed. */
static int group_part(struct ncclEpGroup *group)
{
	uint64_t deadline = ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS));
	char to[128];
	int rc = ep_link_quiet(group->link, deadline);

	if (rc == -EP_ETIMEOUT) {
		ep_link_pending(group->link, to, sizeof(to));
		EP_FAIL(EP_GROUP, EP_ETIMEOUT,
			"ncclEpGroupDestroy: rank %d: the net did not complete its puts%s in time", group->rank, to);
		rc = ep_boot_explain(group->boot, rc);
		ep_boot_abort(group->boot, -rc, ep_last_error());
	}
	ep_boot_limit(group->boot, deadline);
	if (rc || (rc = ep_boot_barrier(group->boot)) || !group->link)
		return rc;
	ep_link_stop(group->link);
	return ep_boot_barrier(group->boot);
}

int ep_group_destroy(struct ncclEpGroup *group)
{
	bool failed, drained;
	int rc = 0;

	if (!ep_live_hold(EP_LIVE_GROUP, group))
		return EP_NOT_LIVE("ncclEpGroupDestroy", "group", group);
	pthread_mutex_lock(&group->lock);
	if (group->handles)
		rc = EP_FAIL(EP_GROUP, EP_EUSAGE,
			     "ncclEpGroupDestroy: group: %d handles of it are alive: destroy them first",
			     group->handles);
	pthread_mutex_unlock(&group->lock);
	if (rc) {
		ep_live_back(EP_LIVE_GROUP, group);
		return rc;
	}
	/* Also where the group has failed: then for the caller's tensors, not for the windows, which are leaked. */
	if ((rc = ep_launch_drain(group, ep_now_ns() + group->timeout_ns)))
		ep_boot_abort(group->boot, -rc, ep_last_error());
	drained = !rc;
	failed = ep_group_failed(group);
	if (!failed && !rc)
		rc = group_part(group);
	group_release(group, drained, !failed && !rc);
	return rc;
}
