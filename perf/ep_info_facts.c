/* SPDX-License-Identifier: Apache-2.0 */
/* What ep_info found out: facts by section, and findings with what to do; as text or as JSON. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf/ep_info.h"
#include "util/param.h"

#define FACTS 512
#define FINDINGS 64

static struct {
	char section[24], name[48], value[512];
} facts[FACTS];
static int nfacts;

static struct {
	enum ep_info_level level;
	char what[1200], fix[300];
} findings[FINDINGS];
static int nfindings;

void ep_info_fact(const char *section, const char *name, const char *fmt, ...)
{
	va_list args;

	if (nfacts == FACTS)
		return;
	snprintf(facts[nfacts].section, sizeof(facts[0].section), "%s", section);
	snprintf(facts[nfacts].name, sizeof(facts[0].name), "%s", name);
	va_start(args, fmt);
	vsnprintf(facts[nfacts].value, sizeof(facts[0].value), fmt, args);
	va_end(args);
	nfacts++;
}

void ep_info_find(enum ep_info_level level, const char *fix, const char *fmt, ...)
{
	va_list args;

	if (nfindings == FINDINGS)
		return;
	findings[nfindings].level = level;
	snprintf(findings[nfindings].fix, sizeof(findings[0].fix), "%s", fix);
	va_start(args, fmt);
	vsnprintf(findings[nfindings].what, sizeof(findings[0].what), fmt, args);
	va_end(args);
	nfindings++;
}

/* The first of the gravest; -1: nothing is wrong. */
static int first(void)
{
	int best = -1;

	for (int i = 0; i < nfindings; i++)
		if (best < 0 || findings[i].level > findings[best].level)
			best = i;
	return best;
}

static const char *const levels[] = { "note", "warning", "error" };

int ep_info_status(void)
{
	int at = first();

	return at >= 0 && findings[at].level == EP_INFO_ERROR;
}

void ep_info_gravest(char *what, size_t what_size, char *fix, size_t fix_size)
{
	int at = first();

	if (!ep_info_status())
		return;
	snprintf(what, what_size, "%s", findings[at].what);
	snprintf(fix, fix_size, "%s", findings[at].fix);
}

void ep_info_forget(void)
{
	nfacts = nfindings = 0;
}

int ep_info_findings_print(const char *where)
{
	int at = first();

	printf("#\n");
	for (int i = 0; i < nfindings; i++)
		printf("# %s: %s\n", levels[findings[i].level], findings[i].what);
	printf("# EP can %srun %s\n", ep_info_status() ? "not " : "", where);
	printf("# first: %s\n", at < 0 ? "nothing to do" : findings[at].fix);
	return ep_info_status();
}

int ep_info_verdict(void)
{
	const char *section = "";

	for (int i = 0; i < nfacts; i++) {
		if (strcmp(section, facts[i].section))
			printf("#\n# %s\n", facts[i].section);
		section = facts[i].section;
		printf("  %-24s %s\n", facts[i].name, facts[i].value);
	}
	return ep_info_findings_print("here");
}

/* ---- JSON ---- */

static void string_print(const char *text)
{
	putchar('"');
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < 32 || c > 126)
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

void ep_info_pair(const char *name, const char *value, const char *after)
{
	string_print(name);
	printf(": ");
	string_print(value);
	printf("%s", after);
}

static void params_print(void)
{
	printf("  \"parameters\": [");
	for (int i = 0; i < EP_PARAMS; i++) {
		enum ep_param_id id = (enum ep_param_id)i;
		const char *source = ep_param_source(id);

		printf("%s\n    {", i ? "," : "");
		ep_info_pair("name", ep_param_info(id)->name, ", ");
		ep_info_pair("value", ep_param_str(id), ", ");
		ep_info_pair("source", source ? source : "default", "}");
	}
	printf("\n  ],\n");
}

int ep_info_findings_json(void)
{
	int at = first();

	printf("  \"findings\": [");
	for (int i = 0; i < nfindings; i++) {
		printf("%s\n    {", i ? "," : "");
		ep_info_pair("level", levels[findings[i].level], ", ");
		ep_info_pair("what", findings[i].what, ", ");
		ep_info_pair("fix", findings[i].fix, "}");
	}
	printf("\n  ],\n  \"can_run\": %s,\n  ", ep_info_status() ? "false" : "true");
	ep_info_pair("first", at < 0 ? "nothing to do" : findings[at].fix, "\n");
	return ep_info_status();
}

int ep_info_json(const char *version)
{
	const char *section = "";
	int rc;

	printf("{\n  ");
	ep_info_pair("version", version, ",\n  \"facts\": {");
	for (int i = 0; i < nfacts; i++) {
		bool same = !strcmp(section, facts[i].section);

		if (!same) {
			printf("%s\n    ", i ? "}," : "");
			string_print(facts[i].section);
			printf(": {");
		}
		section = facts[i].section;
		printf("%s\n      ", same ? "," : "");
		ep_info_pair(facts[i].name, facts[i].value, "");
	}
	printf("%s\n  },\n", nfacts ? "}" : "");
	params_print();
	ep_info_topo_json();
	rc = ep_info_findings_json();
	printf("}\n");
	return rc;
}
