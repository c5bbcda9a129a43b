/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment asks of the log (level, subsystems, file) and values that a parameter cannot have: logged once,
 * and the default is used. The log reads its settings once, so every case is a process. Exit status 0 or 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/kernels/kernel_check.h"
#include "util/log.h"
#include "util/param.h"

static char folder[] = "/tmp/settings.XXXXXX";

/* Runs fn in a process whose log goes to the file, and returns what it logged. */
static const char *logged(const char *file, void (*fn)(void))
{
	static char text[8192];
	char path[128], host[64] = "";
	pid_t pid = fork();
	size_t n = 0;
	int status = 0;
	FILE *f;

	if (pid == 0) {
		snprintf(path, sizeof(path), "%s/%s", folder, file);
		setenv("NCCL_EP_DEBUG_FILE", path, 1);
		fn();
		exit(check_result("in a process"));
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
	gethostname(host, sizeof(host) - 1);
	host[strcspn(host, ".")] = '\0';
	if (strchr(file, '%'))
		snprintf(path, sizeof(path), "%s/log-%s.%d", folder, host, (int)pid);
	else
		snprintf(path, sizeof(path), "%s/%s", folder, file);
	f = fopen(path, "r");
	if (f) {
		n = fread(text, 1, sizeof(text) - 1, f);
		fclose(f);
		unlink(path);
	}
	text[n] = '\0';
	return text;
}

static void talk(void)
{
	EP_WARN(EP_NET, "a warning");
	EP_INFO(EP_NET, "info of net");
	EP_INFO(EP_BOOT, "info of boot");
	EP_TRACE(EP_NET, "a trace");
}

static void levels(void)
{
	static const struct {
		const char *level, *subs;
		bool warning, net, boot, trace;
	} rows[] = {
		{ "NONE", "ALL", false, false, false, false },	{ "VERSION", "ALL", false, false, false, false },
		{ "warn", "ALL", true, false, false, false },	{ "nonsense", "ALL", true, false, false, false },
		{ "", "ALL", true, false, false, false },	{ "INFO", "ALL", true, true, true, false },
		{ "INFO", "net", true, true, false, false },	{ "INFO", "^NET", true, false, true, false },
		{ "INFO", "GRAPH", true, false, false, false }, { "TRACE", "NET,BOOT", true, true, true, true },
		{ "ABORT", "ALL", true, true, true, true },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *text;

		setenv("NCCL_EP_DEBUG", rows[i].level, 1);
		setenv("NCCL_EP_DEBUG_SUBSYS", rows[i].subs, 1);
		text = logged(i % 2 ? "log-%h.%p" : "log", talk);
		CHECK(!strstr(text, "a warning") == !rows[i].warning && !strstr(text, "info of net") == !rows[i].net &&
			      !strstr(text, "info of boot") == !rows[i].boot &&
			      !strstr(text, "a trace") == !rows[i].trace,
		      "%s, %s: %s", rows[i].level, rows[i].subs, text);
	}
	setenv("NCCL_EP_DEBUG", "WARN", 1);
}

/* A file that cannot be opened: stderr. */
static void elsewhere(void)
{
	char line[256] = "";
	int ends[2];

	if (pipe(ends))
		return;
	if (fork() == 0) {
		dup2(ends[1], STDERR_FILENO);
		setenv("NCCL_EP_DEBUG_FILE", "/nonexistent/folder/file", 1);
		talk();
		exit(0);
	}
	close(ends[1]);
	CHECK(read(ends[0], line, sizeof(line) - 1) > 0 && strstr(line, "a warning"), "\"%s\"", line);
	close(ends[0]);
	wait(NULL);
}

static void values(void)
{
	static const char *const bad[] = { "abc", "12x", "", "-1", "99999999999999999999" };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		setenv("NCCL_EP_TIMEOUT_MS", bad[i], 1);
		CHECK(ep_param_int(EP_P_TIMEOUT_MS) == atoll(ep_param_info(EP_P_TIMEOUT_MS)->def), "\"%s\"", bad[i]);
	}
	setenv("NCCL_EP_TIMEOUT_MS", "1234", 1);
	CHECK(ep_param_int(EP_P_TIMEOUT_MS) == 1234, "a number");
	setenv("NCCL_EP_P2P_DISABLE", "perhaps", 1);
	CHECK(!ep_param_bool(EP_P_P2P_DISABLE), "perhaps");
	setenv("NCCL_EP_P2P_DISABLE", "Yes", 1);
	CHECK(ep_param_bool(EP_P_P2P_DISABLE), "Yes");
	setenv("NCCL_EP_P2P_DISABLE", "off", 1);
	CHECK(!ep_param_bool(EP_P_P2P_DISABLE), "off");
}

static void parameters(void)
{
	const char *text = logged("log", values), *first = strstr(text, "NCCL_EP_TIMEOUT_MS=abc is not a number");

	CHECK(first && !strstr(first + 1, "NCCL_EP_TIMEOUT_MS="), "not once: %s", text);
	CHECK(strstr(text, "NCCL_EP_P2P_DISABLE=perhaps is not 0 or 1"), "%s", text);
}

int main(void)
{
	if (!mkdtemp(folder))
		return 1;
	levels();
	elsewhere();
	parameters();
	rmdir(folder);
	return check_result("settings");
}
