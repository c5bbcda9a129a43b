/* SPDX-License-Identifier: Apache-2.0 */
/* Who is to blame for a failed --check, and what to do: causes before their consequences, which all ranks report. */
#include <stdio.h>
#include <string.h>

#include "perf/ep_info.h"
#include "perf/ep_info_check.h"

const char *const ep_info_phases[EP_CHECK_DONE + 1] = {
	[EP_CHECK_LIBRARIES] = "libraries", [EP_CHECK_COMM] = "communicator", [EP_CHECK_LL_GROUP] = "LL group",
	[EP_CHECK_LL] = "LL round",	    [EP_CHECK_HT_GROUP] = "HT group", [EP_CHECK_HT] = "HT round",
	[EP_CHECK_DONE] = "done",
};

/* May differ between ranks: of the process, or of its host. */
static const enum ep_param_id own[] = { EP_P_DEBUG,	 EP_P_DEBUG_FILE,  EP_P_DEBUG_SUBSYS, EP_P_DUMP_DIR,
					EP_P_TRACE,	 EP_P_DEVICE,	   EP_P_HOST_ISA,     EP_P_SOCKET_IFNAME,
					EP_P_NET_DEVICE, EP_P_ENGINE_CPUS, EP_P_IB_HCA,	      EP_P_IB_GID_INDEX };

/* What to do about a message, by a part of it; the first that fits. */
static const struct {
	const char *part, *remedy;
} remedies[] = {
	{ "uplicate GPU", "start one rank per GPU: NCCL takes no more; the stand-in (nccl_ep_standin in "
			  "LD_LIBRARY_PATH) does" },
	{ "locked memory", "ulimit -l unlimited (--ulimit memlock=-1, or LimitMEMLOCK=infinity)" },
	{ "memlock", "ulimit -l unlimited (--ulimit memlock=-1, or LimitMEMLOCK=infinity)" },
	{ "regist", "raise the limit of locked memory: ulimit -l unlimited (--ulimit memlock=-1)" },
	{ "NCCL_EP_NET", "set NCCL_EP_NET to the same transport on every rank; ep_info -n shows those of a host" },
	{ "one network", "net_perf between that host and another; its NIC's port, cable, subnet and VLAN" },
	{ "does not reach", "net_perf between that host and another; its NIC's port, cable, subnet and VLAN" },
	{ "transport", "ep_info -n on each host shows its transports: one must be on all of them" },
	{ "did not connect", "start that rank, or make its host reach rank 0: MASTER_ADDR, the firewall between them" },
	{ "no connection to", "start rank 0, or make this host reach it: MASTER_ADDR, the firewall between them" },
	{ "cannot listen", "set NCCL_EP_PORT to a free port of that host, on every rank" },
	{ "NCCL_EP_TOKEN is not", "set NCCL_EP_TOKEN to the same on every rank" },
	{ "must be a number", "correct that variable: the launcher sets it" },
	{ "has not brought", "a rank stands still, or was not started: look for the processes on each host" },
	{ "lost rank", "see what that rank printed last, and whether it was killed (dmesg)" },
	{ "died", "see what that rank printed last, and whether it was killed (dmesg)" },
	{ "connect", "set NCCL_EP_SOCKET_IFNAME to an interface that all hosts reach; open the firewall between them" },
	{ "not finished", "ncclCommInitRank waits for ranks that do not come: NCCL_SOCKET_IFNAME, the firewall" },
	{ "#wrong", "values differ from the oracle's: run ep_perf on two of these ranks at a time, and report it" },
	{ "waited", "set NCCL_EP_DUMP_DIR on all ranks, run this again, then ep_info --dump on that folder" },
};

static const char *remedy_of(const char *error)
{
	for (size_t i = 0; i < sizeof(remedies) / sizeof(remedies[0]); i++)
		if (strstr(error, remedies[i].part))
			return remedies[i].remedy;
	return "run this with NCCL_EP_DEBUG=INFO, and read what that rank logs first";
}

/* ---- lists of ranks ---- */

const char *ep_info_ranks(const struct ep_info_check *check, bool (*same)(const struct ep_check_rank *, const void *),
			  const void *arg, char out[EP_INFO_RANKS])
{
	int from = -1;
	size_t n = 0;

	out[0] = 0;
	for (int r = 0; r <= check->ranks; r++) {
		bool in = r < check->ranks && same(&check->all[r], arg);

		if (in && from < 0)
			from = r;
		if (in || from < 0)
			continue;
		if (n + 24 < EP_INFO_RANKS) {
			n += (size_t)snprintf(out + n, EP_INFO_RANKS - n, "%s%d", n ? ", " : "", from);
			if (r - 1 > from)
				n += (size_t)snprintf(out + n, EP_INFO_RANKS - n, "-%d", r - 1);
		} else if (n + 5 < EP_INFO_RANKS && out[n - 1] != '.') {
			n += (size_t)snprintf(out + n, EP_INFO_RANKS - n, "...");
		}
		from = -1;
	}
	return out;
}

/* ---- what differs ---- */

struct field {
	size_t at; /* of a string in struct ep_check_rank */
	const char *value;
};

static const char *string_of(const struct ep_check_rank *rank, size_t at)
{
	return (const char *)rank + at;
}

static bool field_is(const struct ep_check_rank *rank, const void *arg)
{
	const struct field *f = arg;

	return !strcmp(string_of(rank, f->at), f->value);
}

/* The value of most ranks; of two the first's. */
static const char *usual(const struct ep_info_check *check, size_t at)
{
	const char *best = "";
	int most = 0;

	for (int r = 0; r < check->ranks; r++) {
		const char *value = string_of(&check->all[r], at);
		int n = 0;

		if (most && !strcmp(value, best))
			continue;
		for (int i = 0; i < check->ranks; i++)
			n += !strcmp(string_of(&check->all[i], at), value);
		if (n > most) {
			most = n;
			best = value;
		}
	}
	return best;
}

/* One finding for each value that is not the usual one. */
static void param_compare(const struct ep_info_check *check, int id, enum ep_info_level level)
{
	size_t at = offsetof(struct ep_check_rank, param) + (size_t)id * EP_CHECK_PARAM;
	const char *name = ep_param_info((enum ep_param_id)id)->name, *most = usual(check, at);
	char ranks[EP_INFO_RANKS], fix[300];

	for (int r = 0; r < check->ranks; r++) {
		struct field f = { at, string_of(&check->all[r], at) };
		const char *host = check->all[r].host;
		bool told = false;

		for (int i = 0; i < r && !told; i++)
			told = field_is(&check->all[i], &f);
		if (told || !strcmp(f.value, most))
			continue;
		ep_info_ranks(check, field_is, &f, ranks);
		snprintf(fix, sizeof(fix),
			 "set %s alike on all ranks (mpirun -x, srun --export): on rank %.40s (%s) it differs", name,
			 ranks, host);
		ep_info_find(level, fix, "rank %s (%s): %s is \"%s\", on the other ranks \"%s\"", ranks, host, name,
			     f.value, most);
	}
}

static bool is_own(int id)
{
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		if (own[i] == (enum ep_param_id)id)
			return true;
	return false;
}

static void params_compare(const struct ep_info_check *check, enum ep_info_level level)
{
	for (int id = 0; id < EP_PARAMS; id++)
		if (id != EP_P_NET && !is_own(id))
			param_compare(check, id, level);
}

static void versions_compare(const struct ep_info_check *check, enum ep_info_level level)
{
	for (int r = 1; r < check->ranks; r++) {
		const struct ep_check_rank *first = check->all, *rank = first + r;

		if (rank->phase == EP_CHECK_LIBRARIES || first->phase == EP_CHECK_LIBRARIES)
			continue;
		if (rank->ep_version != first->ep_version || rank->anyep_version != first->anyep_version)
			ep_info_find(level, "install the same libnccl_ep on every host",
				     "rank %d (%s): libnccl_ep %d/%d of %s, rank 0 has %d/%d of %s", r, rank->host,
				     rank->ep_version, rank->anyep_version, rank->ep, first->ep_version,
				     first->anyep_version, first->ep);
		if (rank->nccl_version != first->nccl_version)
			ep_info_find(level, "use the same libnccl on every rank: LD_LIBRARY_PATH, ld.so.conf",
				     "rank %d (%s): libnccl %d of %s, rank 0 has %d of %s", r, rank->host,
				     rank->nccl_version, rank->nccl, first->nccl_version, first->nccl);
	}
}

/* ---- failures ---- */

/* Whether a message names a rank. */
static bool names(const char *error, int rank)
{
	char word[24];
	size_t n = (size_t)snprintf(word, sizeof(word), "rank %d", rank);

	for (const char *at = error; (at = strstr(at, word)); at += n)
		if (at[n] < '0' || at[n] > '9')
			return true;
	return false;
}

/* How many other ranks name it. */
static int votes(const struct ep_info_check *check, int rank)
{
	int n = 0;

	for (int r = 0; r < check->ranks; r++)
		n += r != rank && names(check->all[r].error, rank);
	return n;
}

struct suspects {
	const struct ep_info_check *check;
	int votes; /* the most that a rank has; 0: none has any */
};

static bool is_suspect(const struct ep_check_rank *rank, const void *arg)
{
	const struct suspects *s = arg;

	return s->votes && votes(s->check, rank->rank) == s->votes;
}

static void error_tell(const struct ep_check_rank *rank, const char *look)
{
	const char *remedy = rank->remedy[0] ? rank->remedy : remedy_of(rank->error);
	char fix[600];

	if (!rank->error[0])
		remedy = "does its process run? Its stack (gdb -p), and dmesg";

	snprintf(fix, sizeof(fix), "%s (%s): %s", look, rank->host, remedy);
	ep_info_find(EP_INFO_ERROR, fix, "rank %d (%s, node %d): %s: %s", rank->rank, rank->host, rank->node,
		     ep_info_phases[rank->phase],
		     rank->error[0] ? rank->error : "others wait for it, and it says nothing");
}

/* Of those that the others name most often, or of the rest. */
static void errors_tell(const struct ep_info_check *check, bool named)
{
	struct suspects suspects = { .check = check };
	char list[EP_INFO_RANKS], look[EP_INFO_RANKS + 24];

	for (int r = 0; r < check->ranks; r++) {
		int n = votes(check, r);

		suspects.votes = n > suspects.votes ? n : suspects.votes;
	}
	snprintf(look, sizeof(look), "look at rank %s", ep_info_ranks(check, is_suspect, &suspects, list));
	for (int r = 0; r < check->ranks; r++) {
		if (!named)
			snprintf(look, sizeof(look), "on rank %d", r);
		if ((check->all[r].error[0] || named) && is_suspect(&check->all[r], &suspects) == named)
			error_tell(&check->all[r], look);
	}
}

/* What a host lacks is the cause where not all hosts lack it. */
static void causes_tell(const struct ep_info_check *check, bool all)
{
	int n = 0;

	for (int r = 0; r < check->ranks; r++)
		n += check->all[r].cause[0] != 0;
	for (int r = 0; r < check->ranks && n && (n == check->ranks) == all; r++) {
		const struct ep_check_rank *rank = &check->all[r];
		char fix[400];

		if (!rank->cause[0])
			continue;
		snprintf(fix, sizeof(fix), "on rank %d (%s): %.280s", r, rank->host, rank->remedy);
		ep_info_find(EP_INFO_ERROR, fix, "rank %d (%s, node %d): %s", r, rank->host, rank->node, rank->cause);
	}
}

void ep_info_judge(const struct ep_info_check *check)
{
	bool failed = check->text[0] != 0;

	for (int r = 0; r < check->ranks; r++)
		failed |= check->all[r].error[0] != 0;
	for (int r = 0; r < check->ranks; r++)
		if (check->all[r].unchecked) {
			ep_info_find(EP_INFO_NOTE, "give each host consecutive ranks",
				     "HT moved nothing: the check knows ranks in order or dealt to nodes in turn only");
			break;
		}
	versions_compare(check, failed ? EP_INFO_ERROR : EP_INFO_WARNING);
	/* Before what a host lacks: another transport may lack what the right one has. */
	param_compare(check, EP_P_NET, failed ? EP_INFO_ERROR : EP_INFO_NOTE);
	if (failed)
		causes_tell(check, false);
	params_compare(check, failed ? EP_INFO_ERROR : EP_INFO_NOTE);
	errors_tell(check, true);
	if (failed)
		causes_tell(check, true);
	errors_tell(check, false);
	if (check->text[0])
		ep_info_find(EP_INFO_ERROR, remedy_of(check->text), "%s", check->text);
}
