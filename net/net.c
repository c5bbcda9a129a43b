/* SPDX-License-Identifier: Apache-2.0 */
#include "net/net.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/rows.h"
#include "util/error.h"
#include "util/param.h"

/* All nets of the library, in the order they are tried. One that wraps others is taken by name only. */
static const struct {
	const ncclEpNet_v1_t *ops;
	bool wraps;
} rows[] = {
	{ &ep_net_loop, false },
	{ &ep_net_fabric, false },
	{ &ep_net_faulty, true },
};
#define ROWS ((int)(sizeof(rows) / sizeof(rows[0])))

#define SPEC_MAX 1024
#define NESTED_MAX 4

/* NAME(INNER):OPTIONS taken apart; all but the name may be empty. */
struct spec {
	char name[64], inner[SPEC_MAX], options[SPEC_MAX];
};

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

/* The parenthesis that closes the one at text, or NULL. */
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
	return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET=%.80s: not NAME, NAME:OPTIONS or NAME(INNER):OPTIONS", text);
}

/* Makes *net of a table: complete, opened. The library stays the caller's when this fails. */
static int net_make(const ncclEpNet_v1_t *ops, void *library, const char *options, struct ep_net *inner,
		    struct ep_net **out)
{
	struct ep_net *net = calloc(1, sizeof(*net));
	ncclEpNetInit_v1_t args = { .log = net_log, .options = options };
	char why[256];
	int rc, count = 0;

	if (!net)
		return EP_FAIL(EP_NET, ENOMEM, "no memory for the net %s", ops->name);
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
		/* Having none is no failure of the net, but it may have left the reason. */
		snprintf(why, sizeof(why), "%s", ep_last_error());
		rc = EP_FAIL(EP_NET, ENODEV, "the net %s has no device here%s%s", ops->name, why[0] ? ": " : "", why);
	}
	if (rc)
		goto finalize_net;
	EP_INFO(EP_NET, "net %s, %d device%s, options \"%s\"", net->name, count, count == 1 ? "" : "s", options);
	*out = net;
	return 0;

finalize_net:
	net->ops.finalize(net->net);
free_net:
	free(net);
	return rc;
}

/* The external net of that name, or with name NULL the first that opens. -ENOENT without a sentence: none. */
static int external_open(const struct spec *spec, struct ep_net *inner, struct ep_net **out)
{
	char list[SPEC_MAX], *save = NULL;
	int rc = -ENOENT;

	snprintf(list, sizeof(list), "%s", ep_param_str(EP_P_NET_PLUGIN));
	for (char *x = strtok_r(list, ",", &save); x && rc == -ENOENT; x = strtok_r(NULL, ",", &save)) {
		const ncclEpNet_v1_t *ops;
		void *library;

		if (!strcmp(x, "none") || ep_net_load(x, &ops, &library))
			continue;
		if (!spec->name[0] || !strcmp(spec->name, ops->name))
			rc = net_make(ops, library, spec->options, inner, out);
		if (rc)
			dlclose(library);
		if (rc && !spec->name[0])
			rc = -ENOENT; /* said already; the next may do */
	}
	return rc;
}

static int row_open(const struct spec *spec, struct ep_net *inner, struct ep_net **out)
{
	int rc = -ENOENT;

	for (int i = 0; i < ROWS; i++) {
		if (spec->name[0] ? strcmp(spec->name, rows[i].ops->name) != 0 : rows[i].wraps)
			continue;
		if (rows[i].wraps != !!inner)
			return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: %s %s", spec->name,
				       inner ? "wraps no other net" : "needs the net it wraps: NAME(INNER)");
		rc = net_make(rows[i].ops, NULL, spec->options, inner, out);
		if (!rc || spec->name[0])
			return rc;
	}
	return rc;
}

static int spec_open(const char *text, int depth, struct ep_net **out)
{
	struct spec spec = { .name = "" };
	struct ep_net *inner = NULL;
	int rc = *text ? spec_parse(text, &spec) : 0;

	if (rc)
		return rc;
	if (spec.inner[0]) {
		if (depth == NESTED_MAX)
			return EP_FAIL(EP_NET, EP_EARG, "NCCL_EP_NET: more than %d nets in each other", NESTED_MAX);
		rc = spec_open(spec.inner, depth + 1, &inner);
		if (rc)
			return rc;
	}
	rc = external_open(&spec, inner, out);
	if (rc == -ENOENT)
		rc = row_open(&spec, inner, out);
	if (rc == -ENOENT)
		rc = EP_FAIL(EP_NET, ENODEV, "NCCL_EP_NET: no net \"%s\" in the library or among NCCL_EP_NET_PLUGIN",
			     spec.name);
	if (rc)
		ep_net_close(inner);
	return rc;
}

int ep_net_open(const char *spec, struct ep_net **out)
{
	return spec_open(spec ? spec : ep_param_str(EP_P_NET), 0, out);
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
