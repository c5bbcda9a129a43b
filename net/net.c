/* SPDX-License-Identifier: Apache-2.0 */
#include "net/net.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/table.h"
#include "util/error.h"
#include "util/param.h"

/* All nets of the library, in no particular order. */
static const struct {
	const ncclEpNet_v1_t *ops;
	bool wraps; /* another net: used only when named */
	bool local; /* reaches ranks of the same host only */
} rows[] = {
	{ &ep_net_loop, false, true },	 { &ep_net_verbs, false, false }, { &ep_net_fabric, false, false },
	{ &ep_net_faulty, true, false }, { &ep_net_rails, true, false },
};
#define ROWS ((int)(sizeof(rows) / sizeof(rows[0])))

/* The default candidates, in this order; names without a row are left out. */
static const char *const preferred[] = {
	"loop", "verbs", "fabric:provider=efa", "fabric:provider=cxi", "fabric:provider=tcp",
};
#define PREFERRED (sizeof(preferred) / sizeof(preferred[0]))

#define SPEC_MAX EP_NET_SPEC_MAX
#define NESTED_MAX 4

/* NAME(INNER):OPTIONS, parsed; inner and options may be empty. */
struct spec {
	char name[64], inner[SPEC_MAX], options[SPEC_MAX];
};

bool ep_net_sparse(const struct ep_net *net)
{
	for (; net; net = net->inner)
		if (net->library)
			return false;
	return true;
}

const char *ep_net_name(int index)
{
	return index >= 0 && index < ROWS ? rows[index].ops->name : NULL;
}

static void net_log(ncclEpNetLogLevel_t level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void net_log(ncclEpNetLogLevel_t level, const char *fmt, ...)
{
	char text[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (level == NCCL_EP_NET_WARN) {
		EP_WARN(EP_NET, "%s", text);
		ep_last_error_set(text);
	} else {
		EP_INFO(EP_NET, "%s", text);
	}
}

/* The closing parenthesis of the one at text, or NULL. */
static const char *spec_close(const char *text)
{
	int depth = 0;

	for (; *text; text++) {
		depth += (*text == '(') - (*text == ')');
		if (!depth)
			return text;
	}
	return NULL;
}

static int spec_parse(const char *text, struct spec *out)
{
	size_t n = strcspn(text, "(:"), inner;
	const char *rest = text + n, *end;

	*out = (struct spec){ .name = "" };
	if (strlen(text) >= SPEC_MAX || n >= sizeof(out->name) || !n)
		goto malformed;
	memcpy(out->name, text, n);
	if (*rest == '(') {
		end = spec_close(rest);
		if (!end || end == rest + 1)
			goto malformed;
		inner = (size_t)(end - rest - 1);
		memcpy(out->inner, rest + 1, inner);
		rest = end + 1;
	}
	if (*rest && *rest != ':')
		goto malformed;
	if (*rest)
		memcpy(out->options, rest + 1, strlen(rest + 1));
	return 0;

malformed:
	return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET=%.80s: expected NAME, NAME:OPTIONS or NAME(INNER):OPTIONS", text);
}

/* INFO only: another candidate may work; ep_net_open logs the last one at WARN. */
static int missing(const char *text)
{
	EP_INFO(EP_NET, "%s", text);
	ep_last_error_set(text);
	return -ENODEV;
}

/* Opens a net from its table. On failure the caller keeps the library. why: as in ep_net_try. */
static int net_make(const ncclEpNet_v1_t *ops, void *library, const char *options, struct ep_net *inner, char *why,
		    struct ep_net **out)
{
	struct ep_net *net = EP_CALLOC(EP_NET, 1, sizeof(*net), ops->name);
	ncclEpNetInit_v1_t args = { .log = net_log, .options = options };
	char text[EP_NET_WHY_MAX + 128];
	int rc, count = 0;

	if (!net)
		return -ENOMEM;
	net->ops = *ops;
	net->hot = *ops->hot;
	net->ops.hot = &net->hot;
	net->library = library;
	net->inner = inner;
	snprintf(net->name, sizeof(net->name), "%s", ops->name);
	ep_net_fill(&net->ops, &net->hot);
	if (inner) {
		args.inner = &inner->ops;
		args.innerNet = inner->net;
	}
	ep_last_error_set("");
	rc = net->ops.init(&args, &net->net);
	if (rc)
		goto free_net;
	rc = net->ops.devices(net->net, &count);
	if (!rc && count <= 0) {
		/* A net without devices opens, and leaves the reason as the last error, which was cleared above. */
		snprintf(why, EP_NET_WHY_MAX, "%s", ep_last_error()[0] ? ep_last_error() : "none found");
		snprintf(text, sizeof(text), "transport %s has no device on this host: %s", net->name, why);
		rc = missing(text);
	}
	if (rc)
		goto finalize_net;
	EP_INFO(EP_NET, "transport %s: %d device%s, options \"%s\"", net->name, count, count == 1 ? "" : "s", options);
	*out = net;
	return 0;

finalize_net:
	net->ops.finalize(net->net);
free_net:
	free(net);
	return rc;
}

/* The plugin of that name. -ENOENT, not logged: there is none. */
static int external_open(const struct spec *spec, struct ep_net *inner, char *why, struct ep_net **out)
{
	char list[SPEC_MAX], *save = NULL;
	int rc = -ENOENT;

	snprintf(list, sizeof(list), "%s", ep_param_str(EP_P_NET_PLUGIN));
	for (char *x = strtok_r(list, ",", &save); x && rc == -ENOENT; x = strtok_r(NULL, ",", &save)) {
		const ncclEpNet_v1_t *ops;
		void *library;

		if (!strcmp(x, "none") || ep_net_load(x, &ops, &library))
			continue;
		if (!strcmp(spec->name, ops->name))
			rc = net_make(ops, library, spec->options, inner, why, out);
		if (rc)
			dlclose(library);
	}
	return rc;
}

static int row_of(const char *name)
{
	for (int i = 0; i < ROWS; i++)
		if (!strcmp(name, rows[i].ops->name))
			return i;
	return -1;
}

static int row_open(const struct spec *spec, struct ep_net *inner, char *why, struct ep_net **out)
{
	int i = row_of(spec->name);

	if (i < 0) {
		snprintf(why, EP_NET_WHY_MAX,
			 "NCCL_EP_NET: no transport \"%s\" in the library or in NCCL_EP_NET_PLUGIN", spec->name);
		return missing(why);
	}
	if (rows[i].wraps != !!inner)
		return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: %s %s", spec->name,
			       inner ? "does not wrap another transport" : "must wrap another transport: NAME(INNER)");
	return net_make(rows[i].ops, NULL, spec->options, inner, why, out);
}

static int spec_open(const char *text, int depth, char *why, struct ep_net **out)
{
	struct ep_net *inner = NULL;
	struct spec spec;
	int rc = spec_parse(text, &spec);

	if (rc)
		return rc;
	if (spec.inner[0]) {
		if (depth == NESTED_MAX)
			return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: transports nested more than %d deep", NESTED_MAX);
		rc = spec_open(spec.inner, depth + 1, why, &inner);
		if (rc)
			return rc;
	}
	rc = external_open(&spec, inner, why, out);
	if (rc == -ENOENT)
		rc = row_open(&spec, inner, why, out);
	if (rc)
		ep_net_close(inner);
	return rc;
}

int ep_net_try(const char *spec, struct ep_net **out, char why[EP_NET_WHY_MAX])
{
	char unused[EP_NET_WHY_MAX];

	why = why ? why : unused;
	why[0] = 0;
	return spec_open(spec, 0, why, out);
}

int ep_net_wrap(struct ep_net *inner, const char *name, const char *options, struct ep_net **out)
{
	struct spec spec = { .name = "" };
	char why[EP_NET_WHY_MAX];

	snprintf(spec.name, sizeof(spec.name), "%s", name);
	snprintf(spec.options, sizeof(spec.options), "%s", options);
	return row_open(&spec, inner, why, out);
}

bool ep_net_is_local(const char *text)
{
	char inner[SPEC_MAX];
	struct spec spec;
	int i;

	for (int depth = 0; depth <= NESTED_MAX && !spec_parse(text, &spec); depth++) {
		if (!spec.inner[0]) {
			i = row_of(spec.name);
			return i >= 0 && rows[i].local;
		}
		memcpy(inner, spec.inner, sizeof(inner));
		text = inner;
	}
	return false;
}

/* ---- lists ---- */

bool ep_net_next(const char **list, char out[EP_NET_SPEC_MAX])
{
	size_t n = 0;
	int depth = 0;

	*list += strspn(*list, "|");
	for (; (*list)[n] && ((*list)[n] != '|' || depth > 0); n++)
		depth += ((*list)[n] == '(') - ((*list)[n] == ')');
	if (n >= SPEC_MAX)
		n = SPEC_MAX - 1; /* lists are shorter */
	memcpy(out, *list, n);
	out[n] = 0;
	*list += n;
	return n > 0;
}

/* Whether "A,B" contains this spec, or its name. */
static bool is_among(const char *names, const char *spec)
{
	size_t name = strcspn(spec, "(:"), whole = strlen(spec);

	for (size_t n; *names; names += n + (names[n] == ',')) {
		n = strcspn(names, ",");
		if ((n == name || n == whole) && !memcmp(names, spec, n))
			return true;
	}
	return false;
}

/* Appends it, unless it is excluded or in the list. */
static int list_add(char *list, const char *but, const char *spec)
{
	const char *rest = list;
	char one[SPEC_MAX];
	size_t used = strlen(list);

	while (ep_net_next(&rest, one))
		if (!strcmp(one, spec))
			return 0;
	if (is_among(but, spec))
		return 0;
	if (used + strlen(spec) + 2 > SPEC_MAX)
		return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET_PLUGIN: the list is too long");
	snprintf(list + used, SPEC_MAX - used, "%s%s", used ? "|" : "", spec);
	return 0;
}

static int externals_add(char *out, const char *but)
{
	char list[SPEC_MAX], *save = NULL;
	int rc = 0;

	snprintf(list, sizeof(list), "%s", ep_param_str(EP_P_NET_PLUGIN));
	for (char *x = strtok_r(list, ",", &save); x && !rc; x = strtok_r(NULL, ",", &save)) {
		const ncclEpNet_v1_t *ops;
		void *library;

		if (!strcmp(x, "none") || ep_net_load(x, &ops, &library))
			continue;
		rc = list_add(out, but, ops->name);
		dlclose(library);
	}
	return rc;
}

/* If the user names a provider, fabric is tried with that one only. */
static int preferred_add(char *out, const char *but)
{
	bool named = *ep_param_str(EP_P_FABRIC_PROVIDER);
	struct spec spec;
	int rc = 0;

	for (size_t i = 0; i < PREFERRED && !rc; i++) {
		rc = spec_parse(preferred[i], &spec);
		if (!rc && row_of(spec.name) >= 0)
			rc = list_add(out, but, named && spec.options[0] ? spec.name : preferred[i]);
	}
	return rc;
}

int ep_net_list(const char *spec, char out[EP_NET_SPEC_MAX])
{
	const char *text = spec ? spec : ep_param_str(EP_P_NET), *but = *text == '^' ? text + 1 : "";
	char list[SPEC_MAX] = "";
	int rc;

	if (strlen(text) >= SPEC_MAX)
		return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET=%.80s...: more than %d characters", text, SPEC_MAX - 1);
	if (*text && !*but) {
		snprintf(out, SPEC_MAX, "%s", text);
		return 0;
	}
	rc = externals_add(list, but);
	rc = rc ? rc : preferred_add(list, but);
	if (!rc && !list[0])
		rc = EP_FAIL(EP_NET, ENODEV, "NCCL_EP_NET=%.80s excludes every transport", text);
	if (!rc)
		snprintf(out, SPEC_MAX, "%s", list);
	return rc;
}

int ep_net_open(const char *spec, struct ep_net **out)
{
	char list[SPEC_MAX], one[SPEC_MAX];
	const char *rest = list;
	int rc = ep_net_list(spec, list), tried = 0;

	if (rc)
		return rc;
	while (ep_net_next(&rest, one)) {
		rc = ep_net_try(one, out, NULL);
		if (!rc)
			return 0;
		tried++;
	}
	if (rc == -ENODEV)
		EP_WARN(EP_NET, "%s", ep_last_error());
	return tried ? rc : EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET=%.80s names no transport", list);
}

void ep_net_close(struct ep_net *net)
{
	if (!net)
		return;
	net->ops.finalize(net->net);
	ep_net_close(net->inner);
	if (net->library)
		dlclose(net->library);
	free(net);
}
