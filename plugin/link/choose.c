/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which net, agreed by all ranks: the candidates of NCCL_EP_NET in turn, until one has a device on every rank and
 * connects all of them. Every step is taken by all ranks, and each knows how it went on the others; so who fails does
 * not leave the others waiting, and what did not do is closed everywhere before the next is opened. Asking for one
 * candidate after the other, and not for all beforehand, keeps a machine that has what comes first from loading the
 * libraries of the others.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/group/group.h"
#include "plugin/link/link.h"
#include "plugin/link/nic.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"

#define WHY 192
#define NAME 40	 /* of a candidate, among others */
#define LIST 464 /* of the reasons of all candidates, so that a sentence holds it */

/* First in all that ranks tell each other. */
struct word {
	int32_t rc;
	char why[WHY];
};

struct wish {
	struct word word;
	char list[EP_NET_SPEC_MAX];
};

struct card {
	struct word word;
	struct ep_nic_card nic;
};

struct hello {
	struct word word;
	char net[64];
	uint32_t ordered, imm_bits, ports;
	uint8_t handle[NCCL_EP_NET_HANDLE_SIZE];
};

/* A walk through the candidates. */
struct choice {
	struct ep_uplink *link;
	char list[EP_NET_SPEC_MAX];
	int count, left;    /* candidates, and those behind this one */
	char passed[LIST];  /* "A: why not; B: why not" */
	char why[WHY + 32]; /* of the last step that failed, with the rank's name */
	bool news;	    /* and it is worth a warning */
	int rc;		    /* of this rank, in that step */
	int rails;	    /* devices that each rank uses at once */
	bool alone;	    /* not more than one, as several did not work */
	char device[400];   /* what this rank took, and why */
};

int ep_uplink_cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

/* Threads that spin beside kernels: one is enough for the CPU device, which has the same cores to run on. */
static uint32_t ports_wanted(const struct ep_uplink *link)
{
	int64_t n = ep_param_int(EP_P_ENGINES);

	if (n == 0)
		n = link->group->dev->ops->kind == EP_DEV_HOST || ep_uplink_cpus() < 8 ? 1 : 2;
	if (n > (int64_t)link->props.maxContexts && link->props.maxContexts)
		n = link->props.maxContexts;
	return n < EP_UPLINK_PORTS ? (uint32_t)n : EP_UPLINK_PORTS;
}

static void word_fill(struct word *word, int rc)
{
	word->rc = rc;
	snprintf(word->why, sizeof(word->why), "%s", rc ? ep_last_error() : "");
}

/*
 * Collective: mine, which begins with a word, goes to all. 0: it went well everywhere. 1: not on some rank, and
 * choice->why says where and why. Negative: the ranks have lost each other.
 */
static int step_agree(struct choice *choice, const void *mine, size_t size, void *all)
{
	const struct ncclEpGroup *group = choice->link->group;
	int rc = ep_boot_allgather(group->boot, mine, size, all), failed = 0, cause = 0;

	if (rc)
		return rc;
	choice->rc = ((const struct word *)mine)->rc;
	for (int r = group->nranks - 1; r >= 0; r--) {
		const struct word *word = (const struct word *)((const char *)all + (size_t)r * size);

		failed += word->rc != 0;
		/* Who only waited in vain is not the cause. */
		if (!word->rc || (word->rc == -EP_ETIMEOUT && cause && cause != -EP_ETIMEOUT))
			continue;
		cause = word->rc;
		snprintf(choice->why, sizeof(choice->why), "rank %d: %.*s", r, WHY - 1, word->why);
	}
	choice->news = failed < group->nranks; /* who has it is slower without it */
	return failed > 0;
}

/* ---- the candidates ---- */

static bool list_has(const char *list, const char *spec)
{
	char one[EP_NET_SPEC_MAX];

	while (ep_net_next(&list, one))
		if (!strcmp(one, spec))
			return true;
	return false;
}

static int list_count(const char *list)
{
	char one[EP_NET_SPEC_MAX];
	int n = 0;

	while (ep_net_next(&list, one))
		n++;
	return n;
}

/* Those that all ranks name, in the order of rank 0. */
static int list_meet(struct choice *choice, const struct wish *all, int nranks)
{
	const char *rest = all[0].list;
	char one[EP_NET_SPEC_MAX];
	size_t used = 0;
	int odd = 0;

	choice->list[0] = 0;
	while (ep_net_next(&rest, one)) {
		int r = 1;

		while (r < nranks && list_has(all[r].list, one))
			r++;
		if (r < nranks)
			odd = r;
		else
			used += (size_t)snprintf(choice->list + used, sizeof(choice->list) - used, "%s%s",
						 used ? "|" : "", one);
	}
	if (used)
		return 0;
	return EP_FAIL(EP_GROUP, EP_EUSAGE,
		       "rank 0 would use the net %.100s and rank %d the net %.100s: set NCCL_EP_NET alike on all ranks",
		       all[0].list, odd, all[odd].list);
}

/* Options may differ between ranks that have named one net each: a device, say. */
static bool names_alike(const struct wish *all, int nranks)
{
	size_t n = strcspn(all[0].list, ":");

	for (int r = 0; r < nranks; r++)
		if (list_count(all[r].list) != 1 || strcspn(all[r].list, ":") != n ||
		    memcmp(all[r].list, all[0].list, n) != 0)
			return false;
	return true;
}

static int list_agree(struct choice *choice)
{
	struct ncclEpGroup *group = choice->link->group;
	struct wish mine = { .list = "" }, *all = calloc((size_t)group->nranks, sizeof(*all));
	int rc =
		all ? ep_net_list(NULL, mine.list) : EP_FAIL(EP_GROUP, ENOMEM, "no memory for %d ranks", group->nranks);

	if (!all)
		return rc;
	word_fill(&mine.word, rc);
	rc = step_agree(choice, &mine, sizeof(mine), all);
	for (int r = 0; !rc && r < group->nranks; r++)
		all[r].list[sizeof(all[r].list) - 1] = 0;
	if (rc > 0)
		rc = choice->rc ? choice->rc : EP_FAIL(EP_GROUP, EP_EREMOTE, "no net: %s", choice->why);
	else if (!rc && names_alike(all, group->nranks))
		memcpy(choice->list, mine.list, sizeof(choice->list));
	else if (!rc)
		rc = list_meet(choice, all, group->nranks);
	choice->left = choice->count = rc ? 0 : list_count(choice->list);
	free(all);
	return rc;
}

/* ---- one of them ---- */

static int hosts(const struct ncclEpGroup *group)
{
	int n = 0;

	for (int r = 0; r < group->nranks; r++)
		n += group->topo.rank[r].home == r;
	return n;
}

static int nics_find(struct ep_uplink *link, struct ep_nics *nics)
{
	const struct ncclEpGroup *group = link->group;
	struct ep_nic_place *place = malloc(sizeof(*place));
	char name[24];
	int rc;

	if (!place)
		return EP_FAIL(EP_GROUP, ENOMEM, "no memory for a path");
	snprintf(name, sizeof(name), "%s %d", group->dev->ops->name, group->dev->ordinal);
	ep_nic_place(group->dev->ops->kind == EP_DEV_HOST ? "the CPU" : name, group->dev->pci, place);
	rc = ep_nics_find(link->net, place, nics);
	nics->card.home = group->topo.rank[group->rank].home;
	free(place);
	return rc;
}

/* Around the net that is open: one device, made of those. */
static int rails_make(struct ep_uplink *link, const struct ep_nics *nics, const struct ep_nic_pick *pick, int n)
{
	char options[128] = "devices=";
	size_t used = strlen(options);
	struct ep_net *outer;
	int rc;

	for (int k = 0; k < n && used < sizeof(options); k++)
		used += (size_t)snprintf(options + used, sizeof(options) - used, "%s%d", k ? "+" : "",
					 nics->dev[pick->at[k]]);
	rc = ep_net_wrap(link->net, "rails", options, &outer);
	if (!rc)
		link->net = outer;
	return rc;
}

/* The rank's own device: link->props and *dev. */
static int nic_take(struct choice *choice, const struct ep_nics *nics, const struct ep_nic_card *all, int *dev)
{
	struct ep_uplink *link = choice->link;
	int nranks = link->group->nranks, rc = 0;
	struct ep_nic_pick pick;

	ep_nic_choose(all, nranks, link->group->rank, &pick);
	choice->rails = choice->alone ? 1 : ep_nic_rails(all, nranks);
	*dev = choice->rails > 1 ? 0 : nics->dev[pick.at[0]];
	if (choice->rails > 1)
		rc = rails_make(link, nics, &pick, choice->rails);
	if (rc || (rc = link->net->ops.getProperties(link->net->net, *dev, &link->props)))
		return rc;
	snprintf(choice->device, sizeof(choice->device), "%.80s: %s%s", link->props.name, nics->why,
		 choice->rails == 1 && pick.sharers ? ", shared with other ranks of this host" : "");
	if (!(link->props.memKinds & NCCL_EP_NET_MEM_HOST))
		return EP_FAIL(EP_GROUP, EP_EUSAGE, "the net %s does not take memory of the CPU", link->net->name);
	return 0;
}

static int net_listen(struct choice *choice, const struct ep_nics *nics, const struct ep_nic_card *all,
		      struct hello *hello)
{
	struct ep_uplink *link = choice->link;
	int dev = 0, rc = nic_take(choice, nics, all, &dev);

	if (rc)
		return rc;
	snprintf(hello->net, sizeof(hello->net), "%s", link->net->name);
	ep_uplink_direct_probe(link);
	hello->ordered = link->props.ordered && !link->direct;
	hello->imm_bits = link->props.immBits;
	hello->ports = ports_wanted(link);
	return link->net->ops.listen(link->net->net, dev, link->group->nranks, hello->handle, &link->listener);
}

/* Where one rank's device keeps no order, none does. */
static int hello_judge(struct choice *choice, const struct hello *all)
{
	struct ep_uplink *link = choice->link;
	const struct hello *mine = &all[link->group->rank];
	int nranks = link->group->nranks;

	link->ports = EP_UPLINK_PORTS;
	for (int r = 0; r < nranks; r++) {
		if (memcmp(all[r].net, mine->net, sizeof(mine->net)))
			return EP_FAIL(EP_GROUP, EP_EUSAGE,
				       "rank %d uses the net %.63s and rank %d the net %.63s: set NCCL_EP_NET alike "
				       "on all ranks",
				       r, all[r].net, link->group->rank, mine->net);
		link->props.ordered = link->props.ordered && all[r].ordered;
		if ((int)all[r].ports < link->ports)
			link->ports = (int)all[r].ports;
	}
	for (int r = 0; r < nranks && !link->props.ordered; r++)
		if (all[r].imm_bits < 32)
			return EP_FAIL(EP_GROUP, EP_EUSAGE,
				       "the net %s keeps no order, and on rank %d it carries no immediate data of 32 "
				       "bits",
				       link->net->name, r);
	if (mine->ordered && !link->props.ordered)
		EP_INFO(EP_GROUP, "rank %d: its device keeps order, another rank's does not: all go without",
			link->group->rank);
	return 0;
}

/* While something is left to be tried a candidate gets a quarter: who failed at once waits in the bootstrap, and not
 * for ever. */
static uint64_t connect_deadline(const struct choice *choice)
{
	int64_t ms = ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS);

	return ep_deadline_ms(choice->left || choice->rails > 1 ? ms / 4 : ms);
}

static int net_connect(struct choice *choice, const struct hello *all)
{
	struct ep_uplink *link = choice->link;
	uint64_t deadline = connect_deadline(choice);
	int nranks = link->group->nranks, rc;
	uint8_t *handles = calloc((size_t)nranks, NCCL_EP_NET_HANDLE_SIZE);

	if (!handles)
		return EP_FAIL(EP_GROUP, ENOMEM, "no memory for %d ranks", nranks);
	for (int r = 0; r < nranks; r++)
		memcpy(handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE, all[r].handle, NCCL_EP_NET_HANDLE_SIZE);
	while (!(rc = link->net->ops.connect(link->listener, handles, nranks, link->group->rank, &link->comm)) &&
	       !link->comm) {
		if (ep_now_ns() > deadline) {
			rc = EP_FAIL(EP_GROUP, EP_ETIMEOUT,
				     "rank %d: the net %s did not connect all ranks within %s of "
				     "NCCL_EP_BOOTSTRAP_TIMEOUT_MS",
				     link->group->rank, link->net->name,
				     choice->left || choice->rails > 1 ? "a quarter" : "the whole");
			break;
		}
		usleep(100);
	}
	free(handles);
	for (int i = 0; !rc && i < link->ports; i++)
		rc = link->net->ops.createContext(link->comm, i, &link->port[i].ctx);
	return rc;
}

void ep_uplink_net_close(struct ep_uplink *link)
{
	for (int i = 0; i < EP_UPLINK_PORTS; i++) {
		if (link->port[i].ctx)
			link->net->ops.destroyContext(link->port[i].ctx);
		link->port[i].ctx = NULL;
	}
	if (link->comm)
		link->net->ops.closeComm(link->comm);
	if (link->listener)
		link->net->ops.closeListen(link->listener);
	ep_net_close(link->net);
	link->comm = link->listener = NULL;
	link->net = NULL;
}

/* The steps from a name to contexts, into memory that the caller frees. What they answer: as step_agree. */
struct papers {
	struct card *cards;
	struct ep_nic_card *nics;
	struct hello *hellos;
	struct word *words;
};

static int net_steps(struct choice *choice, const char *spec, struct papers *p)
{
	struct ep_uplink *link = choice->link;
	int nranks = link->group->nranks, rc;
	struct card card = { .nic.count = 0 };
	struct hello hello = { .ports = 0 };
	struct word word;
	struct ep_nics nics;
	char reason[EP_NET_WHY_MAX];

	rc = ep_net_try(spec, &link->net, reason);
	rc = rc ? rc : nics_find(link, &nics);
	if (!rc)
		card.nic = nics.card;
	word_fill(&card.word, rc);
	if (reason[0]) /* without the candidate's name, which is in the list already */
		snprintf(card.word.why, sizeof(card.word.why), "%.*s", WHY - 1, reason);
	if ((rc = step_agree(choice, &card, sizeof(card), p->cards)))
		return rc;
	for (int r = 0; r < nranks; r++)
		p->nics[r] = p->cards[r].nic;
	word_fill(&hello.word, net_listen(choice, &nics, p->nics, &hello));
	if ((rc = step_agree(choice, &hello, sizeof(hello), p->hellos)))
		return rc;
	/* C2 of the net: nobody closes before all have connected. */
	rc = hello_judge(choice, p->hellos);
	word_fill(&word, rc ? rc : net_connect(choice, p->hellos));
	rc = step_agree(choice, &word, sizeof(word), p->words);
	choice->news = true; /* all have it */
	return rc;
}

static int candidate_try(struct choice *choice, const char *spec)
{
	struct ncclEpGroup *group = choice->link->group;
	size_t n = (size_t)group->nranks;
	struct papers p = { calloc(n, sizeof(*p.cards)), calloc(n, sizeof(*p.nics)), calloc(n, sizeof(*p.hellos)),
			    calloc(n, sizeof(*p.words)) };
	char sentence[512];
	int rc;

	if (p.cards && p.nics && p.hellos && p.words)
		rc = net_steps(choice, spec, &p);
	else
		rc = EP_FAIL(EP_GROUP, ENOMEM, "no memory for %d ranks", group->nranks);
	free(p.cards);
	free(p.nics);
	free(p.hellos);
	free(p.words);
	if (!rc)
		return 0;
	/* Closing may leave another. */
	snprintf(sentence, sizeof(sentence), "%s", ep_last_error());
	ep_uplink_net_close(choice->link);
	ep_last_error_set(sentence);
	return rc;
}

/* ---- all of them ---- */

/* Each has its part of the sentence, so that the last is told of too. */
static void pass_over(struct choice *choice, const char *spec, const char *why)
{
	int used = (int)strlen(choice->passed), name = (int)strnlen(spec, NAME);
	int room = LIST / choice->count - name - 4;

	snprintf(choice->passed + used, (size_t)(LIST - used), "%s%.*s: %.*s", used ? "; " : "", name, spec,
		 room > 0 ? room : 0, why);
}

/* The rank that failed has its own sentence; the others name it. */
static int none_left(struct choice *choice, const char *spec)
{
	if (choice->count != 1)
		return EP_FAIL(EP_GROUP, ENODEV, "no net works between all ranks: %s", choice->passed);
	if (choice->rc == -ENODEV) /* logged low so far, as another might have done */
		EP_WARN(EP_GROUP, "%s", ep_last_error());
	return choice->rc ? choice->rc
			  : EP_FAIL(EP_GROUP, EP_EREMOTE, "the net %.60s does not work on all ranks: %s", spec,
				    choice->why);
}

static void choice_tell(const struct choice *choice)
{
	const struct ep_uplink *link = choice->link;
	const struct ncclEpGroup *group = link->group;

	EP_INFO(EP_GROUP, "rank %d: net %s, device %s", group->rank, link->net->name, choice->device);
	if (group->rank)
		return;
	EP_INFO(EP_GROUP, "net %s (%s, %s), because: %s%s%s", link->net->name, link->props.name,
		link->props.ordered ? "ordered" : "unordered", choice->passed, choice->passed[0] ? "; " : "",
		choice->count == 1 ? "it was named" : "it is the first that works between all ranks");
}

static int local_refuse(struct choice *choice, const char *spec)
{
	int n = hosts(choice->link->group);

	if (n == 1 || choice->count == 1 || !ep_net_is_local(spec))
		return 0;
	snprintf(choice->why, sizeof(choice->why), "ranks are on %d hosts", n);
	choice->news = false;
	return 1;
}

/* With one device each where several at once do not work: they may be of networks that do not meet. */
static int candidate_best(struct choice *choice, const char *spec)
{
	int rc = local_refuse(choice, spec);

	if (rc)
		return rc;
	choice->rails = 1;
	choice->alone = false;
	rc = candidate_try(choice, spec);
	if (rc <= 0 || choice->rails == 1)
		return rc;
	if (!choice->link->group->rank)
		EP_WARN(EP_GROUP, "net %s is used with one device a rank, not with %d: %s", spec, choice->rails,
			choice->why);
	choice->alone = true;
	return candidate_try(choice, spec);
}

int ep_uplink_net_open(struct ep_uplink *link)
{
	struct choice choice = { .link = link };
	char spec[EP_NET_SPEC_MAX] = "";
	int rc = list_agree(&choice);
	const char *rest = choice.list;

	if (rc)
		return rc;
	while (ep_net_next(&rest, spec)) {
		choice.left--;
		rc = candidate_best(&choice, spec);
		if (!rc)
			choice_tell(&choice);
		if (rc <= 0)
			return rc;
		pass_over(&choice, spec, choice.why);
		if (choice.left && !link->group->rank)
			EP_LOG(choice.news ? EP_LOG_WARN : EP_LOG_INFO, EP_GROUP, "net %s is not used: %s", spec,
			       choice.why);
	}
	snprintf(spec, sizeof(spec), "%s", choice.list);
	return none_left(&choice, spec);
}
