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
	char what[400], fix[300];
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

int ep_info_verdict(void)
{
	const char *section = "";
	int at = first();
	bool runs = at < 0 || findings[at].level < EP_INFO_ERROR;

	for (int i = 0; i < nfacts; i++) {
		if (strcmp(section, facts[i].section))
			printf("#\n# %s\n", facts[i].section);
		section = facts[i].section;
		printf("  %-24s %s\n", facts[i].name, facts[i].value);
	}
	printf("#\n");
	for (int i = 0; i < nfindings; i++)
		printf("# %s: %s\n", levels[findings[i].level], findings[i].what);
	printf("# EP can %srun here\n", runs ? "" : "not ");
	printf("# first: %s\n", at < 0 ? "nothing to do" : findings[at].fix);
	return runs ? 0 : 1;
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

static void pair_print(const char *name, const char *value, const char *after)
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
		pair_print("name", ep_param_info(id)->name, ", ");
		pair_print("value", ep_param_str(id), ", ");
		pair_print("source", source ? source : "default", "}");
	}
	printf("\n  ],\n");
}

int ep_info_json(const char *version)
{
	const char *section = "";
	int at = first();
	bool runs = at < 0 || findings[at].level < EP_INFO_ERROR;

	printf("{\n  ");
	pair_print("version", version, ",\n  \"facts\": {");
	for (int i = 0; i < nfacts; i++) {
		bool same = !strcmp(section, facts[i].section);

		if (!same) {
			printf("%s\n    ", i ? "}," : "");
			string_print(facts[i].section);
			printf(": {");
		}
		section = facts[i].section;
		printf("%s\n      ", same ? "," : "");
		pair_print(facts[i].name, facts[i].value, "");
	}
	printf("%s\n  },\n", nfacts ? "}" : "");
	params_print();
	printf("  \"findings\": [");
	for (int i = 0; i < nfindings; i++) {
		printf("%s\n    {", i ? "," : "");
		pair_print("level", levels[findings[i].level], ", ");
		pair_print("what", findings[i].what, ", ");
		pair_print("fix", findings[i].fix, "}");
	}
	printf("\n  ],\n  \"can_run\": %s,\n  ", runs ? "true" : "false");
	pair_print("first", at < 0 ? "nothing to do" : findings[at].fix, "\n}\n");
	return runs ? 0 : 1;
}
