/* SPDX-License-Identifier: Apache-2.0 */
/* The map of a launch: which ranks are in which node and on which host, by which NIC they talk, who shares a GPU. */
#include <stdio.h>
#include <string.h>

#include "perf/ep_info.h"
#include "perf/ep_info_check.h"

static bool node_is(const struct ep_check_rank *rank, const void *arg)
{
	return rank->node == *(const int *)arg;
}

static bool local_is(const struct ep_check_rank *rank, const void *arg)
{
	return rank->local == *(const int *)arg;
}

static bool gpu_is(const struct ep_check_rank *rank, const void *arg)
{
	return rank->uuid[0] && !strcmp(rank->uuid, arg);
}

/* The first rank of its node, of its rail, on its GPU. */
static bool is_first(const struct ep_info_check *check, int r, bool (*same)(const struct ep_check_rank *, const void *),
		     const void *arg)
{
	for (int i = 0; i < r; i++)
		if (same(&check->all[i], arg))
			return false;
	return true;
}

static int count(const struct ep_info_check *check, bool (*same)(const struct ep_check_rank *, const void *),
		 const void *arg)
{
	int n = 0;

	for (int r = 0; r < check->ranks; r++)
		n += same(&check->all[r], arg);
	return n;
}

static int nodes_count(const struct ep_info_check *check)
{
	int n = 0;

	for (int r = 0; r < check->ranks; r++)
		n += is_first(check, r, node_is, &check->all[r].node);
	return n;
}

static void device_text(const struct ep_check_rank *rank, char *out, size_t size)
{
	if (rank->device < 0)
		snprintf(out, size, "CPU");
	else
		snprintf(out, size, "GPU %d %s", rank->device, rank->pci);
}

static const char *or_dash(const char *text)
{
	return *text ? text : "-";
}

/* -: not reached */
static void ms_print(double ms)
{
	if (ms > 0)
		printf(" %8.1f", ms);
	else
		printf(" %8s", "-");
}

static void ranks_print(const struct ep_info_check *check)
{
	printf("#\n# %4s %4s %5s %-20s %-20s %-12s %-12s %8s %8s %8s %8s %8s  %s\n", "rank", "node", "local", "host",
	       "device", "net", "NIC", "comm", "LL group", "LL round", "HT group", "HT round", "result");
	printf("# %4s %4s %5s %-20s %-20s %-12s %-12s %8s %8s %8s %8s %8s\n", "", "", "", "", "", "", "", "(ms)",
	       "(ms)", "(ms)", "(ms)", "(ms)");
	for (int r = 0; r < check->ranks; r++) {
		const struct ep_check_rank *rank = &check->all[r];
		char device[64];

		device_text(rank, device, sizeof(device));
		printf("  %4d %4d %5d %-20s %-20s %-12s %-12s", r, rank->node, rank->local, rank->host, device,
		       or_dash(rank->net), or_dash(rank->nic));
		ms_print(rank->comm_ms);
		ms_print(rank->ll_group_ms);
		ms_print(rank->ll_ms);
		ms_print(rank->ht_group_ms);
		ms_print(rank->ht_ms);
		printf("  %s%s\n", rank->error[0] ? "failed: " : "",
		       rank->phase == EP_CHECK_DONE ? "ok" : ep_info_phases[rank->phase]);
	}
}

/* The NICs of ranks with one local index, which talk to each other. */
static void rail_print(const struct ep_info_check *check, int local)
{
	char ranks[EP_INFO_RANKS];
	const char *last = "";

	printf("# rail %d: ranks %s:", local, ep_info_ranks(check, local_is, &local, ranks));
	for (int r = 0; r < check->ranks; r++)
		if (check->all[r].local == local && strcmp(check->all[r].nic, last)) {
			last = check->all[r].nic;
			printf(" %s", last);
		}
	printf("\n");
}

void ep_info_map_print(const struct ep_info_check *check)
{
	const struct ep_check_rank *all = check->all;
	char ranks[EP_INFO_RANKS];
	int nodes = nodes_count(check);

	if (!check->ranks) {
		printf("# ep_info " EP_VERSION " --check: the ranks do not meet\n");
		return;
	}
	printf("# ep_info " EP_VERSION " --check: %d ranks as %s\n", check->ranks, check->by);
	printf("# libnccl %d, %s\n", all[0].nccl_version, or_dash(all[0].nccl));
	printf("# libnccl_ep %d, %s\n#\n# %d node%s\n", all[0].ep_version, or_dash(all[0].ep), nodes,
	       nodes == 1 ? "" : "s");
	for (int r = 0; r < check->ranks; r++)
		if (is_first(check, r, node_is, &all[r].node))
			printf("# node %d: %s: ranks %s\n", all[r].node, all[r].host,
			       ep_info_ranks(check, node_is, &all[r].node, ranks));
	for (int r = 0; r < check->ranks; r++)
		if (all[r].nic[0] && is_first(check, r, local_is, &all[r].local))
			rail_print(check, all[r].local);
	for (int r = 0; r < check->ranks; r++)
		if (all[r].uuid[0] && is_first(check, r, gpu_is, all[r].uuid) && count(check, gpu_is, all[r].uuid) > 1)
			printf("# GPU %s: shared by ranks %s\n", all[r].uuid,
			       ep_info_ranks(check, gpu_is, all[r].uuid, ranks));
	ranks_print(check);
}

/* ---- JSON ---- */

static void list_json(const struct ep_info_check *check, bool (*same)(const struct ep_check_rank *, const void *),
		      const void *arg)
{
	const char *comma = "";

	printf("\"ranks\": [");
	for (int r = 0; r < check->ranks; r++)
		if (same(&check->all[r], arg)) {
			printf("%s%d", comma, r);
			comma = ", ";
		}
	printf("]");
}

static void rank_json(const struct ep_check_rank *rank)
{
	printf("{\"rank\": %d, \"node\": %d, \"local\": %d, \"device\": %d, ", rank->rank, rank->node, rank->local,
	       rank->device);
	ep_info_pair("host", rank->host, ", ");
	ep_info_pair("uuid", rank->uuid, ", ");
	ep_info_pair("pci", rank->pci, ", ");
	ep_info_pair("net", rank->net, ", ");
	ep_info_pair("nic", rank->nic, ",\n      ");
	ep_info_pair("libnccl", rank->nccl, ", ");
	ep_info_pair("libnccl_ep", rank->ep, ",\n      ");
	printf("\"libnccl_version\": %d, \"libnccl_ep_version\": %d,\n      ", rank->nccl_version, rank->ep_version);
	printf("\"comm_ms\": %.3f, \"ll_group_ms\": %.3f, \"ll_round_ms\": %.3f, \"ht_group_ms\": %.3f, "
	       "\"ht_round_ms\": %.3f,\n      \"ok\": %s, ",
	       rank->comm_ms, rank->ll_group_ms, rank->ll_ms, rank->ht_group_ms, rank->ht_ms,
	       rank->phase == EP_CHECK_DONE && !rank->error[0] ? "true" : "false");
	ep_info_pair("phase", ep_info_phases[rank->phase], ", ");
	ep_info_pair("error", rank->error, "}");
}

static void nodes_json(const struct ep_info_check *check)
{
	const char *comma = "";

	printf("\n  ],\n  \"nodes\": [");
	for (int r = 0; r < check->ranks; r++)
		if (is_first(check, r, node_is, &check->all[r].node)) {
			printf("%s\n    {\"node\": %d, ", comma, check->all[r].node);
			ep_info_pair("host", check->all[r].host, ", ");
			list_json(check, node_is, &check->all[r].node);
			printf("}");
			comma = ",";
		}
}

static void rails_json(const struct ep_info_check *check)
{
	const char *comma = "";

	printf("\n  ],\n  \"rails\": [");
	for (int r = 0; r < check->ranks; r++) {
		const struct ep_check_rank *rank = &check->all[r];

		if (!rank->nic[0] || !is_first(check, r, local_is, &rank->local))
			continue;
		printf("%s\n    {\"rail\": %d, ", comma, rank->local);
		list_json(check, local_is, &rank->local);
		printf("}");
		comma = ",";
	}
}

static void shared_json(const struct ep_info_check *check)
{
	const char *comma = "";

	printf("\n  ],\n  \"shared_gpus\": [");
	for (int r = 0; r < check->ranks; r++) {
		const char *uuid = check->all[r].uuid;

		if (!*uuid || !is_first(check, r, gpu_is, uuid) || count(check, gpu_is, uuid) < 2)
			continue;
		printf("%s\n    {", comma);
		ep_info_pair("uuid", uuid, ", ");
		list_json(check, gpu_is, uuid);
		printf("}");
		comma = ",";
	}
	printf("\n  ],\n");
}

void ep_info_map_json(const struct ep_info_check *check)
{
	printf("  ");
	ep_info_pair("version", EP_VERSION, ",\n  ");
	ep_info_pair("started", check->by, ",\n  \"ranks\": [");
	for (int r = 0; r < check->ranks; r++) {
		printf("%s\n    ", r ? "," : "");
		rank_json(&check->all[r]);
	}
	nodes_json(check);
	rails_json(check);
	shared_json(check);
}
