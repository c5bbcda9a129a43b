/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/group/dump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "plugin/group/algo.h"
#include "plugin/group/guard.h"
#include "plugin/group/launch.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/lines.h"
#include "util/param.h"
#include "util/text.h"

#define PEEK_MS 2000	/* for all words: a device that copies nothing has failed */
#define ENGINE_MS 500	/* for a turn of an engine */
#define REPORT_MS 300	/* between an error seen by the host and the report of the kernel that it aborts */
#define PATH_BYTES 4000 /* of a file's name */
#define FEW_BYTES 8192	/* of a dump, */
#define RANK_BYTES 320	/* and for each rank */

static const char *report_kind(uint32_t kind)
{
	static const char *const names[] = { [EP_KIND_DISPATCH] = "dispatch",
					     [EP_KIND_COMBINE] = "combine",
					     [EP_KIND_MASK] = "mask",
					     [EP_KIND_UPDATE] = "update",
					     [EP_KIND_BARRIER] = "barrier" };

	return kind < sizeof(names) / sizeof(names[0]) && names[kind] ? names[kind] : "operation";
}

static const char *report_phase(uint32_t phase)
{
	static const char *const names[] = {
		[EP_KPHASE_START] = "start",
		[EP_KPHASE_SEND] = "send",
		[EP_KPHASE_RECV] = "receive",
	};

	return phase < sizeof(names) / sizeof(names[0]) ? names[phase] : "unknown";
}

static const char *report_code(uint32_t code)
{
	switch (code) {
	case EP_KERR_TIMEOUT:
		return "timeout";
	case EP_KERR_ABORTED:
		return "aborted";
	case EP_KERR_REMOTE:
		return "remote";
	case EP_KERR_RING:
		return "ring";
	default:
		return "other";
	}
}

static void write_head(const struct ncclEpGroup *group, const char *why, struct ep_lines *f)
{
	char host[256] = "?", stamp[32] = "?", text[600];
	time_t now = time(NULL);
	struct tm tm;

	gethostname(host, sizeof(host) - 1);
	if (gmtime_r(&now, &tm))
		strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &tm);
	ep_lines_add(f, "anyep_dump 1\ngroup %08x\nrank %d of %d\n", ep_group_key(group), group->rank, group->nranks);
	ep_lines_add(f, "host %s pid %ld node %d of %d\n", host, (long)getpid(), group->topo.node, group->topo.nodes);
	ep_lines_add(f, "time %s version %s\n", stamp, EP_VERSION);
	ep_lines_add(f, "algorithm %s device %s timeout_ms %llu\n", group->algo->name, group->dev->ops->name,
		     (unsigned long long)(group->timeout_ns / 1000000));
	ep_lines_add(f, "why %s\n", ep_text_take(text, sizeof(text), why, strlen(why)));
}

static void write_error(struct ncclEpGroup *group, struct ep_lines *f)
{
	const struct ep_kernel_report *r = &ep_page_words(&group->page)->report;
	/* Pairs with the release in gx_op_note. */
	uint32_t code = __atomic_load_n(&r->code, __ATOMIC_ACQUIRE);
	char text[600], error[sizeof(group->error_text)];
	int rc;

	pthread_mutex_lock(&group->error_lock);
	rc = atomic_load_explicit(&group->error, memory_order_relaxed);
	snprintf(error, sizeof(error), "%s", group->error_text);
	pthread_mutex_unlock(&group->error_lock);
	if (rc)
		ep_lines_add(f, "error %s %s\n", ep_result_name(ep_result(rc)),
			     ep_text_take(text, sizeof(text), error, strlen(error)));
	if (code != EP_KERR_NONE)
		ep_lines_add(f, "waited %s %s %llu phase %s rank %u and %u\n", report_code(code), report_kind(r->kind),
			     (unsigned long long)r->epoch, report_phase(r->phase), r->rank, r->cause);
}

static void write_launches(struct ncclEpGroup *group, uint64_t deadline, struct ep_lines *f)
{
	uint32_t launched = atomic_load_explicit(&group->opened, memory_order_relaxed), ended = 0;
	uint64_t at = atomic_load_explicit(&group->last_at, memory_order_relaxed), now = ep_now_ns();
	int rc = group->ended ? group->dev->ops->peek(group->dev, group->ended, deadline, &ended) : 0;

	ep_lines_add(f, "launched %u ended %u last %s age_ms %llu%s\n", launched, ended,
		     ep_launch_name(atomic_load_explicit(&group->last_kernel, memory_order_relaxed)),
		     at && now > at ? (unsigned long long)((now - at) / 1000000) : 0ull,
		     rc ? " device_does_not_answer" : "");
}

/* The last operation of which something came from each rank; of this rank: that it has ended. */
static void write_heard(struct ncclEpGroup *group, uint64_t deadline, struct ep_lines *f)
{
	for (int r = 0; r < group->nranks; r++) {
		uint64_t epoch = 0;
		int rc = group->algo->heard(group, r, deadline, &epoch);

		if (rc)
			ep_lines_add(f, "heard %d unknown\n", r);
		else
			ep_lines_add(f, "heard %d %llu\n", r, (unsigned long long)epoch);
	}
}

static int file_write(struct ncclEpGroup *group, const char *why, const char *path)
{
	uint64_t deadline = ep_deadline_ms(PEEK_MS);
	struct ep_lines lines = { .size = FEW_BYTES + RANK_BYTES * (size_t)group->nranks };
	int rc;

	lines.text = EP_CALLOC(EP_GROUP, 1, lines.size, "a dump");
	if (!lines.text)
		return -ENOMEM;
	write_head(group, why, &lines);
	write_error(group, &lines);
	write_launches(group, deadline, &lines);
	write_heard(group, deadline, &lines);
	if (group->link)
		ep_link_describe(group->link, ep_deadline_ms(ENGINE_MS), &lines);
	ep_lines_add(&lines, "end\n");
	rc = ep_lines_save(&lines, path);
	free(lines.text);
	if (rc)
		return EP_FAIL(EP_GROUP, -rc, "rank %d: no dump: cannot write %s: %s", group->rank, path,
			       strerror(-rc));
	return 0;
}

int ep_dump_write(struct ncclEpGroup *group, const char *why)
{
	const char *dir = ep_param_str(EP_P_DUMP_DIR);
	char path[PATH_BYTES];
	int n, rc;

	if (!*dir)
		return EP_FAIL(EP_GROUP, EP_EUSAGE,
			       "rank %d: no dump: set NCCL_EP_DUMP_DIR to a folder that the ranks can write",
			       group->rank);
	mkdir(dir, 0700); /* where it is there already, or cannot be made, opening the file says so */
	n = snprintf(path, sizeof(path), "%s/anyep_%08x_rank%05d.dump", dir, ep_group_key(group), group->rank);
	if (n < 0 || (size_t)n >= sizeof(path))
		return EP_FAIL(EP_GROUP, ENAMETOOLONG, "rank %d: no dump: NCCL_EP_DUMP_DIR is too long", group->rank);
	pthread_mutex_lock(&group->dump_lock);
	rc = file_write(group, why, path);
	pthread_mutex_unlock(&group->dump_lock);
	if (!rc)
		EP_WARN(EP_GROUP, "rank %d: dump in %s; ep_info --dump %s joins those of all ranks", group->rank, path,
			dir);
	return rc;
}

/* ---- the guard ---- */

static bool reported(const struct ncclEpGroup *group)
{
	return __atomic_load_n(&ep_page_words(&group->page)->report.code, __ATOMIC_ACQUIRE) != EP_KERR_NONE;
}

/* With masks a deadline is a flag, and the group goes on. */
static bool due(void *arg)
{
	const struct ncclEpGroup *group = arg;

	/* A1: pairs with R1 in ep_group_create. */
	if (!atomic_load_explicit(&group->furnished, memory_order_acquire))
		return false;
	return atomic_load_explicit(&group->error, memory_order_relaxed) || reported(group) ||
	       (group->cfg.enable_mask && ep_group_flag(group) == EP_ASYNC_TIMEOUT);
}

static void report(void *arg)
{
	uint64_t deadline = ep_deadline_ms(REPORT_MS);
	struct ncclEpGroup *group = arg;
	struct timespec nap = ep_timespec(1000000);
	uint32_t launched, ended;

	if (!atomic_load_explicit(&group->furnished, memory_order_acquire)) /* A1 */
		return;
	/* A kernel that the host aborts says where it was. */
	while (!reported(group) && ep_now_ns() < deadline && group->ended) {
		launched = atomic_load_explicit(&group->opened, memory_order_relaxed);
		if (group->dev->ops->peek(group->dev, group->ended, deadline, &ended) || ended == launched)
			break;
		nanosleep(&nap, NULL);
	}
	ep_dump_write(group, "the group failed, or a rank was masked");
}

int ep_dump_open(struct ncclEpGroup *group)
{
	return *ep_param_str(EP_P_DUMP_DIR) ? ep_guard_open(due, report, group, &group->guard) : 0;
}
