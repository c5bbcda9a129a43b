/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A net that does not connect in time, and a call whose time is over before it can try: each rank gets its own message.
 * The net is a model, loop that never connects; links are opened over the bootstrap of an LL group. Exit status 0 or 1.
 */
#include <stdio.h>
#include <string.h>

#include "net/table.h"
#include "plugin/group/group.h"
#include "test/oracle/far.h"
#include "test/oracle/rig.h"
#include "util/clock.h"
#include "util/error.h"

#define RANKS 2

struct job {
	struct rig_cfg cfg;
	int left_ms; /* when the link is opened */
	char text[64];
};

/* ---- the net ---- */

int __real_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX]);
int __wrap_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX]);
static _Thread_local bool apart;

static int model_connect(void *listener, const void *handles, int nranks, int rank, void **comm)
{
	(void)listener;
	(void)handles;
	(void)nranks;
	(void)rank;
	*comm = NULL;
	return 0;
}

int __wrap_ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX])
{
	int rc = __real_ep_net_try(spec, out, why);

	if (!rc && apart)
		(*out)->ops.connect = model_connect;
	return rc;
}

/* ---- the link, which never opens: it has nobody to report losses to ---- */

static int late_job(struct seat *seat, const void *arg)
{
	const struct job *job = arg;
	struct ep_link *link = NULL;
	struct rig rig;
	int rc;

	apart = false;
	if (!rig_open(&rig, seat, &job->cfg)) {
		struct ncclEpGroup *group = rig.group;
		struct ep_link_ctx ctx = { .dev = group->dev,
					   .boot = group->boot,
					   .topo = &group->topo,
					   .rank = group->rank,
					   .nranks = group->nranks,
					   .mapped = group->control.peer,
					   .far_size = 4096 };

		apart = true;
		ep_boot_limit(group->boot, job->left_ms ? ep_deadline_ms(job->left_ms) : ep_now_ns());
		rc = ep_link_open(&ctx, &link);
		ep_boot_limit(group->boot, 0);
		ll_wrong(&rig.verdict, rc != -EP_ETIMEOUT || !strstr(ep_last_error(), job->text),
			 "rank %d: ep_link_open returned %d (%s), must say \"%s\"", group->rank, rc, ep_last_error(),
			 job->text);
		ep_link_close(link);
	}
	rig_close(&rig);
	return rig_tell(&rig);
}

int main(void)
{
	static const struct {
		int left_ms;
		const char *text;
	} rows[] = {
		{ 500, "net loop did not connect all ranks within 0." },
		{ 0, "the call's time was over before net loop could connect" },
	};
	struct world_opts opts = { .seats = RANKS };
	struct world *world;
	int failed = 0;

	if (world_open(&opts, &world))
		return 1;
	far_set(world, 1, "loop", 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct job job = { .cfg = { .handles = 1, .per_node = 1 }, .left_ms = rows[i].left_ms };
		int rc;

		job.cfg.shape = (struct ll_shape){ .layout = LL_EXPERT_MAJOR,
						   .ranks = RANKS,
						   .experts = RANKS,
						   .topk = 1,
						   .tmax = 2,
						   .hidden = 128,
						   .token = NUM_BF16,
						   .combine = NUM_BF16 };
		snprintf(job.text, sizeof(job.text), "%s", rows[i].text);
		rc = world_run(world, RANKS, late_job, &job, sizeof(job), 60);
		printf("%s %d ms left%s%s\n", rc ? "FAILED" : "ok    ", rows[i].left_ms, rc ? ": " : "",
		       rc ? world_text(world) : "");
		failed += rc != 0;
	}
	failed += world_close(world) != 0;
	return failed ? 1 : 0;
}
