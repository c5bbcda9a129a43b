/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks agree on one net: the candidates of NCCL_EP_NET in turn, until one has a device on every rank, connects
 * all of them, and moves a word each way between those that put to each other. Every step is taken by all ranks, and
 * each learns how it went on the others: a rank that fails does not leave the others waiting, and a candidate that
 * failed is closed everywhere before the next is opened. Candidates are opened one by one, so that a machine where the
 * first one works loads no libraries of the others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/link/link.h"
#include "plugin/link/nic.h"
#include "proxy/cpus.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/param.h"
#include "util/text.h"

#define WHY 192
#define TRY_MS 5000 /* and for each rank: */
#define TRY_RANK_MS 20
#define NAME 40	 /* of a candidate, in a list */
#define LIST 464 /* the reasons of all candidates, so that they fit one message */

/* The first member of everything ranks exchange. */
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
	struct ep_link *link;
	char list[EP_NET_SPEC_MAX];
	int count, left;    /* candidates, and those after this one */
	char passed[LIST];  /* "A: why not; B: why not" */
	char why[WHY + 32]; /* of the last step that failed, with its rank */
	bool news;	    /* worth a warning */
	int rc;		    /* of this rank, in that step */
	int rails;	    /* devices that each rank uses at once */
	bool alone;	    /* one only: several did not work */
	char device[400];   /* what this rank uses, and why */
};

/* Engines spin. On the CPU device they compete with the kernels for cores, so one is enough. */
static uint32_t ports_wanted(const struct ep_link *link)
{
	int64_t n = ep_param_int(EP_P_ENGINES);

	if (n == 0)
		n = link->ctx.dev->ops->kind == EP_DEV_HOST || ep_cpus_count() < 8 ? 1 : 2;
	if (n <= (int64_t)link->props.maxContexts || !link->props.maxContexts)
		return (uint32_t)n;
	EP_WARN(EP_GROUP, "rank %d: %u engines instead of %lld (NCCL_EP_ENGINES): net %s has no more contexts",
		link->ctx.rank, link->props.maxContexts, (long long)n, link->net->name);
	return link->props.maxContexts;
}

static void word_fill(struct word *word, int rc)
{
	word->rc = rc;
	snprintf(word->why, sizeof(word->why), "%s", rc ? ep_last_error() : "");
}

/*
 * Collective: gathers mine, which begins with a word. 0: success on all ranks. 1: some rank failed, choice->why says
 * which and why. Negative: the bootstrap failed.
 */
static int step_agree(struct choice *choice, const void *mine, size_t size, void *all)
{
	const struct ep_link_ctx *ctx = &choice->link->ctx;
	int rc = ep_boot_allgather(ctx->boot, mine, size, all), failed = 0, cause = 0;
	char why[WHY];

	if (rc)
		return rc;
	choice->rc = ((const struct word *)mine)->rc;
	for (int r = ctx->nranks - 1; r >= 0; r--) {
		const struct word *word = (const struct word *)((const char *)all + (size_t)r * size);

		failed += word->rc != 0;
		/* A rank that only timed out is not the cause. */
		if (!word->rc || (word->rc == -EP_ETIMEOUT && cause && cause != -EP_ETIMEOUT))
			continue;
		cause = word->rc;
		snprintf(choice->why, sizeof(choice->why), "rank %d: %s", r,
			 ep_text_take(why, sizeof(why), word->why, WHY - 1));
	}
	choice->news = failed < ctx->nranks; /* ranks that have it would be slower without */
	return failed > 0;
}

/* ---- the list of candidates ---- */

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

/* Candidates on all ranks' lists, in the order of rank 0. */
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

/* Ranks that name one net each may give it different options, such as a device. */
static bool names_alike(const struct wish *all, int nranks)
{
	size_t n = strcspn(all[0].list, ":");

	for (int r = 0; r < nranks; r++)
		if (list_count(all[r].list) != 1 || strcspn(all[r].list, ":") != n ||
		    memcmp(all[r].list, all[0].list, n) != 0)
			return false;
	return true;
}

/* Escaped in place. A list that is no text then names no candidate. */
static void list_take(struct wish *wish)
{
	char text[EP_NET_SPEC_MAX];

	ep_text_take(text, sizeof(text), wish->list, sizeof(wish->list) - 1);
	memcpy(wish->list, text, sizeof(text));
}

static int list_agree(struct choice *choice)
{
	const struct ep_link_ctx *ctx = &choice->link->ctx;
	struct wish mine = { .list = "" },
		    *all = EP_CALLOC(EP_GROUP, (size_t)ctx->nranks, sizeof(*all), "lists of nets");
	int rc = all ? ep_net_list(NULL, mine.list) : -ENOMEM;

	if (!all)
		return rc;
	word_fill(&mine.word, rc);
	rc = step_agree(choice, &mine, sizeof(mine), all);
	for (int r = 0; !rc && r < ctx->nranks; r++)
		if (r != ctx->rank)
			list_take(&all[r]);
	if (rc > 0)
		rc = choice->rc ? choice->rc : EP_FAIL(EP_GROUP, EP_EREMOTE, "no net: %s", choice->why);
	else if (!rc && names_alike(all, ctx->nranks))
		memcpy(choice->list, mine.list, sizeof(choice->list));
	else if (!rc)
		rc = list_meet(choice, all, ctx->nranks);
	choice->left = choice->count = rc ? 0 : list_count(choice->list);
	free(all);
	return rc;
}

/* ---- one candidate ---- */

static int hosts(const struct ep_link_ctx *ctx)
{
	int n = 0;

	for (int r = 0; r < ctx->nranks; r++)
		n += ctx->topo->rank[r].home == r;
	return n;
}

static int nics_find(struct ep_link *link, struct ep_nics *nics)
{
	const struct ep_link_ctx *ctx = &link->ctx;
	struct ep_spot *place = EP_CALLOC(EP_GROUP, 1, sizeof(*place), "a sysfs path");
	char name[24];
	int rc;

	if (!place)
		return -ENOMEM;
	snprintf(name, sizeof(name), "%s %d", ctx->dev->ops->name, ctx->dev->ordinal);
	if (ctx->dev->ops->kind == EP_DEV_HOST)
		ep_spot_cpus("the CPU", place);
	else
		ep_spot_read(name, ctx->dev->pci, -1, place);
	rc = ep_nics_find(link->net, place, nics);
	nics->card.home = ctx->topo->rank[ctx->rank].home;
	free(place);
	return rc;
}

/* Wraps the open net: its devices become one. */
static int rails_make(struct ep_link *link, const struct ep_nics *nics, const struct ep_nic_pick *pick, int n)
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

/* InfiniBand does not reach Ethernet: without this, connecting would fail after a quarter of its time. */
static int layers_judge(const struct ep_link *link, const struct ep_nic_card *all)
{
	int odd = ep_nic_odd(all, link->ctx.nranks);

	if (!odd)
		return 0;
	return EP_FAIL(EP_GROUP, ENODEV,
		       "net %s: the link layer is %s on rank 0 and %s on rank %d: name devices of one fabric with "
		       "NCCL_EP_NET_DEVICE on these ranks",
		       link->net->name, ep_nic_layer((uint32_t)all[0].layer), ep_nic_layer((uint32_t)all[odd].layer),
		       odd);
}

/* Sets link->props and *dev to this rank's device. */
static int nic_take(struct choice *choice, const struct ep_nics *nics, const struct ep_nic_card *all, int *dev)
{
	struct ep_link *link = choice->link;
	int nranks = link->ctx.nranks, rc = 0;
	struct ep_nic_pick pick;

	rc = layers_judge(link, all);
	if (rc)
		return rc;
	ep_nic_choose(all, nranks, link->ctx.rank, &pick);
	choice->rails = choice->alone ? 1 : ep_nic_rails(all, nranks);
	link->across = false;
	for (int k = 0; k < choice->rails; k++)
		link->across |= nics->across[pick.at[k]];
	*dev = choice->rails > 1 ? 0 : nics->dev[pick.at[0]];
	if (choice->rails > 1)
		rc = rails_make(link, nics, &pick, choice->rails);
	if (rc || (rc = link->net->ops.getProperties(link->net->net, *dev, &link->props)))
		return rc;
	snprintf(choice->device, sizeof(choice->device), "%.80s: %s%s", link->props.name, nics->why,
		 choice->rails == 1 && pick.sharers ? ", shared with other ranks of this host" : "");
	if (!(link->props.memKinds & NCCL_EP_NET_MEM_HOST))
		return EP_FAIL(EP_GROUP, EP_EUSAGE, "net %s does not register host memory", link->net->name);
	if (link->props.forceFlush && !link->props.flushes)
		return EP_FAIL(EP_GROUP, EP_EUSAGE, "rank %d: net %s must be flushed, but cannot", link->ctx.rank,
			       link->net->name);
	return 0;
}

static int net_listen(struct choice *choice, const struct ep_nics *nics, const struct ep_nic_card *all,
		      struct hello *hello)
{
	struct ep_link *link = choice->link;
	int dev = 0, rc = nic_take(choice, nics, all, &dev);

	if (rc)
		return rc;
	snprintf(hello->net, sizeof(hello->net), "%s", link->net->name);
	ep_link_direct_probe(link);
	hello->ordered = link->props.ordered && !link->flushes && (!link->direct || link->ctx.dev->nic_ordered);
	hello->imm_bits = link->props.immBits;
	hello->ports = ports_wanted(link);
	return link->net->ops.listen(link->net->net, dev, link->ctx.nranks, hello->handle, &link->listener);
}

/* If one rank's device is unordered, all ranks use unordered mode. */
static int hello_judge(struct choice *choice, const struct hello *all)
{
	struct ep_link *link = choice->link;
	const struct hello *mine = &all[link->ctx.rank];
	int nranks = link->ctx.nranks;
	char net[sizeof(mine->net)];

	link->ports = EP_LINK_PORTS;
	for (int r = 0; r < nranks; r++) {
		if (memcmp(all[r].net, mine->net, sizeof(mine->net)))
			return EP_FAIL(EP_GROUP, EP_EUSAGE,
				       "rank %d uses the net %s and rank %d the net %.63s: set NCCL_EP_NET alike "
				       "on all ranks",
				       r, ep_text_take(net, sizeof(net), all[r].net, sizeof(all[r].net)),
				       link->ctx.rank, mine->net);
		if (!all[r].ports || all[r].ports > EP_LINK_PORTS)
			return EP_FAIL(EP_GROUP, EP_EREMOTE, "rank %d asks for %u engines, not 1 to %d", r,
				       all[r].ports, EP_LINK_PORTS);
		link->props.ordered = link->props.ordered && all[r].ordered;
		if ((int)all[r].ports < link->ports)
			link->ports = (int)all[r].ports;
	}
	for (int r = 0; r < nranks && !link->props.ordered; r++)
		if (all[r].imm_bits < 32)
			return EP_FAIL(EP_GROUP, EP_EUSAGE,
				       "net %s is unordered and carries no 32-bit immediate data on rank %d",
				       link->net->name, r);
	if (mine->ordered && !link->props.ordered)
		EP_INFO(EP_GROUP, "rank %d: a peer's device is unordered; using unordered mode", link->ctx.rank);
	return 0;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* A quarter of the time: ranks that failed at once wait in the bootstrap meanwhile, and its deadline runs. Seconds
 * while other candidates are left that may work; ranks of one host reach each other in any case. */
static uint64_t try_deadline(const struct choice *choice)
{
	const struct ep_link *link = choice->link;
	uint64_t quarter = ep_deadline_ms(ep_param_int(EP_P_BOOTSTRAP_TIMEOUT_MS) / 4);

	if (!choice->left || ep_net_is_local(link->net->name))
		return quarter;
	return earlier(quarter, ep_deadline_ms(TRY_MS + TRY_RANK_MS * link->ctx.nranks));
}

static uint64_t connect_deadline(const struct choice *choice)
{
	uint64_t limit = ep_boot_deadline(choice->link->ctx.boot);

	return choice->left || choice->rails > 1 ? earlier(limit, try_deadline(choice)) : limit;
}

static int connect_late(const struct ep_link *link, uint64_t start, uint64_t deadline)
{
	if (deadline <= start)
		return EP_FAIL(EP_GROUP, EP_ETIMEOUT,
			       "rank %d: the call's time was over before net %s could connect "
			       "(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
			       link->ctx.rank, link->net->name);
	return EP_FAIL(EP_GROUP, EP_ETIMEOUT,
		       "rank %d: net %s did not connect all ranks within %.1f s; check that they are on one network "
		       "(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
		       link->ctx.rank, link->net->name, (double)(deadline - start) / 1e9);
}

static int net_connect(struct choice *choice, const struct hello *all)
{
	struct ep_link *link = choice->link;
	uint64_t start = ep_now_ns(), deadline = connect_deadline(choice);
	int nranks = link->ctx.nranks, rc;
	uint8_t *handles = EP_CALLOC(EP_GROUP, (size_t)nranks, NCCL_EP_NET_HANDLE_SIZE, "handles");

	if (!handles)
		return -ENOMEM;
	for (int r = 0; r < nranks; r++)
		if (r == link->ctx.rank || ep_link_puts_to(link, r) || !ep_net_sparse(link->net))
			memcpy(handles + (size_t)r * NCCL_EP_NET_HANDLE_SIZE, all[r].handle, NCCL_EP_NET_HANDLE_SIZE);
	while (!(rc = link->net->ops.connect(link->listener, handles, nranks, link->ctx.rank, &link->comm)) &&
	       !link->comm) {
		if (ep_now_ns() > deadline) {
			rc = connect_late(link, start, deadline);
			break;
		}
		usleep(100);
	}
	free(handles);
	for (int i = 0; !rc && i < link->ports; i++)
		rc = link->net->ops.createContext(link->comm, i, &link->port[i].ctx);
	return rc;
}

static int net_probe(struct choice *choice)
{
	struct ep_link *link = choice->link;
	uint32_t region;
	int rc = ep_link_region(link, EP_LINK_PROBE(link->ctx.nranks), EP_LINK_MAIL, &region);

	return rc ? rc : ep_link_probe(link, region, try_deadline(choice));
}

void ep_link_net_close(struct ep_link *link)
{
	for (int i = 0; i < EP_LINK_PORTS; i++) {
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

/* What the steps from a name to contexts gather; the caller frees it. */
struct papers {
	struct card *cards;
	struct ep_nic_card *nics;
	struct hello *hellos;
	struct word *words;
};

static int net_steps(struct choice *choice, const char *spec, struct papers *p)
{
	struct ep_link *link = choice->link;
	int nranks = link->ctx.nranks, rc;
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
	/* Rule C2 of nccl_ep_net.h: nobody closes before all have connected. */
	rc = hello_judge(choice, p->hellos);
	word_fill(&word, rc ? rc : net_connect(choice, p->hellos));
	rc = step_agree(choice, &word, sizeof(word), p->words);
	if (!rc) {
		word_fill(&word, net_probe(choice));
		rc = step_agree(choice, &word, sizeof(word), p->words);
		ep_link_regions_free(link);
	}
	choice->news = true; /* every rank has the device */
	return rc;
}

static int candidate_try(struct choice *choice, const char *spec)
{
	const struct ep_link_ctx *ctx = &choice->link->ctx;
	size_t n = (size_t)ctx->nranks;
	struct papers p = { EP_CALLOC(EP_GROUP, n, sizeof(*p.cards), "cards"),
			    EP_CALLOC(EP_GROUP, n, sizeof(*p.nics), "NICs"),
			    EP_CALLOC(EP_GROUP, n, sizeof(*p.hellos), "hellos"),
			    EP_CALLOC(EP_GROUP, n, sizeof(*p.words), "results") };
	char message[512];
	int rc;

	rc = p.cards && p.nics && p.hellos && p.words ? net_steps(choice, spec, &p) : -ENOMEM;
	free(p.cards);
	free(p.nics);
	free(p.hellos);
	free(p.words);
	if (!rc)
		return 0;
	/* Closing may set another one. */
	snprintf(message, sizeof(message), "%s", ep_last_error());
	ep_link_net_close(choice->link);
	ep_last_error_set(message);
	return rc;
}

/* ---- all candidates ---- */

/* Each gets an equal part of the message, so that the last one fits too. */
static void pass_over(struct choice *choice, const char *spec, const char *why)
{
	int used = (int)strlen(choice->passed), name = (int)strnlen(spec, NAME);
	int room = LIST / choice->count - name - 4;

	snprintf(choice->passed + used, (size_t)(LIST - used), "%s%.*s: %.*s", used ? "; " : "", name, spec,
		 room > 0 ? room : 0, why);
}

/* The rank that failed has its own message; the others name it. */
static int none_left(struct choice *choice, const char *spec)
{
	if (choice->count != 1)
		return EP_FAIL(EP_GROUP, ENODEV, "no net works between all ranks: %s", choice->passed);
	if (choice->rc == -ENODEV) /* INFO so far, since another candidate might have worked */
		EP_WARN(EP_GROUP, "%s", ep_last_error());
	return choice->rc
		       ? choice->rc
		       : EP_FAIL(EP_GROUP, EP_EREMOTE, "net %.60s does not work on all ranks: %s", spec, choice->why);
}

static void choice_tell(const struct choice *choice)
{
	const struct ep_link *link = choice->link;
	const struct ep_link_ctx *ctx = &link->ctx;

	EP_INFO(EP_GROUP, "rank %d: net %s, device %s", ctx->rank, link->net->name, choice->device);
	if (ctx->rank)
		return;
	EP_INFO(EP_GROUP, "net %s (%s, %s), because: %s%s%s", link->net->name, link->props.name,
		link->props.ordered ? "ordered" : "unordered", choice->passed, choice->passed[0] ? "; " : "",
		choice->count == 1 ? "it was named" : "it is the first that works between all ranks");
}

static int local_refuse(struct choice *choice, const char *spec)
{
	int n = hosts(&choice->link->ctx);

	if (n == 1 || choice->count == 1 || !ep_net_is_local(spec))
		return 0;
	snprintf(choice->why, sizeof(choice->why), "ranks are on %d hosts", n);
	choice->news = false;
	return 1;
}

/* With one device per rank where several do not work: they may be on separate networks. */
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
	if (!choice->link->ctx.rank)
		EP_WARN(EP_GROUP, "net %s uses one device per rank instead of %d: %s", spec, choice->rails,
			choice->why);
	choice->alone = true;
	return candidate_try(choice, spec);
}

int ep_link_net_open(struct ep_link *link)
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
		if (choice.left && !link->ctx.rank)
			EP_LOG(choice.news ? EP_LOG_WARN : EP_LOG_INFO, EP_GROUP, "net %s is not used: %s", spec,
			       choice.why);
	}
	snprintf(spec, sizeof(spec), "%s", choice.list);
	return none_left(&choice, spec);
}
