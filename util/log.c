/* SPDX-License-Identifier: Apache-2.0 */
#include "util/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/fsize.h"
#include "util/param.h"

static const char *const level_names[] = { "NONE", "VERSION", "WARN", "INFO", "TRACE" };
static const char *const sub_names[EP_LOG_SUBS] = {
	[EP_INIT] = "INIT",	[EP_BOOT] = "BOOT", [EP_COMM] = "COMM",	  [EP_DEV] = "DEV", [EP_GROUP] = "GROUP",
	[EP_HANDLE] = "HANDLE", [EP_NET] = "NET",   [EP_PROXY] = "PROXY", [EP_ENV] = "ENV",
};

/* Set once by log_init, read-only afterwards. */
static struct {
	pthread_once_t once;
	enum ep_log_level level;
	uint32_t subs;
	FILE *out;
	char host[64];
} log_state = { .once = PTHREAD_ONCE_INIT };

static enum ep_log_level level_of(const char *word)
{
	for (size_t i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++)
		if (!strcasecmp(word, level_names[i]))
			return (enum ep_log_level)i;
	return strcasecmp(word, "ABORT") ? EP_LOG_WARN : EP_LOG_TRACE; /* NCCL has ABORT between INFO and TRACE */
}

/* "INIT,BOOT", "^BOOT" for all but those, or "ALL". Unknown names (NCCL's subsystems) are ignored. */
static uint32_t subs_of(const char *list)
{
	bool invert = list[0] == '^';
	uint32_t bits = 0;
	char copy[256], *save = NULL;

	snprintf(copy, sizeof(copy), "%s", list + invert);
	for (char *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
		if (!strcasecmp(w, "ALL"))
			bits = UINT32_MAX;
		for (int i = 0; i < EP_LOG_SUBS; i++)
			if (!strcasecmp(w, sub_names[i]))
				bits |= 1u << i;
	}
	return invert ? ~bits : bits;
}

/* Expands %h to the host name and %p to the process id. */
static void file_name(const char *pattern, const char *host, char *out, size_t size)
{
	size_t n = 0;

	for (const char *c = pattern; *c && n + 1 < size; c++) {
		int add;

		if (c[0] == '%' && c[1] == 'h')
			add = snprintf(out + n, size - n, "%s", host);
		else if (c[0] == '%' && c[1] == 'p')
			add = snprintf(out + n, size - n, "%d", (int)getpid());
		else
			add = snprintf(out + n, size - n, "%c", *c);
		if (add > 1 || (c[0] == '%' && (c[1] == 'h' || c[1] == 'p')))
			c++;
		n += (size_t)add;
	}
}

static void log_init(void)
{
	const char *level = ep_param_str(EP_P_DEBUG), *file = ep_param_str(EP_P_DEBUG_FILE);

	log_state.level = *level ? level_of(level) : EP_LOG_WARN;
	log_state.subs = subs_of(ep_param_str(EP_P_DEBUG_SUBSYS));
	if (gethostname(log_state.host, sizeof(log_state.host)))
		snprintf(log_state.host, sizeof(log_state.host), "?");
	log_state.host[sizeof(log_state.host) - 1] = '\0';
	log_state.host[strcspn(log_state.host, ".")] = '\0';
	log_state.out = stderr;
	if (*file) {
		char name[4096] = "";

		file_name(file, log_state.host, name, sizeof(name));
		FILE *f = fopen(name, "ae");
		if (f)
			log_state.out = f;
	}
	setvbuf(log_state.out, NULL, _IOLBF, 0);
}

bool ep_log_on(enum ep_log_level level, enum ep_log_sub sub)
{
	pthread_once(&log_state.once, log_init);
	if (level > log_state.level)
		return false;
	return level <= EP_LOG_WARN || (log_state.subs & (1u << sub));
}

void ep_log_(enum ep_log_level level, enum ep_log_sub sub, const char *file, int line, const char *fmt, ...)
{
	char text[1024];
	const char *base = strrchr(file, '/');
	struct ep_fsize fsize;
	va_list ap;

	if (!ep_log_on(level, sub))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	/* A line past the limit of a log file is lost. */
	ep_fsize_begin(&fsize);
	/* One call per line: lines of several threads do not mix. */
	fprintf(log_state.out, "%s:%d:%ld %s %s %s (%s:%d)\n", log_state.host, (int)getpid(), syscall(SYS_gettid),
		level_names[level], sub_names[sub], text, base ? base + 1 : file, line);
	ep_fsize_end(&fsize);
}
