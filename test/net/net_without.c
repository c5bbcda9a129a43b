/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_without NET LIBRARY PACKAGE: without the library that a net loads at run time it has no device, its message says
 * what to install, and other nets are not affected.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/net.h"
#include "util/error.h"

/* An empty file hides an installed library. The dynamic linker reads LD_LIBRARY_PATH at start only. */
static int start_again(char **argv)
{
	char dir[] = "/tmp/nccl_ep_without_XXXXXX", file[128];
	int fd;

	if (!mkdtemp(dir))
		return 1;
	snprintf(file, sizeof(file), "%s/%s", dir, argv[2]);
	fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	setenv("LD_LIBRARY_PATH", dir, 1);
	setenv("NET_WITHOUT", dir, 1);
	if (fd >= 0)
		execv("/proc/self/exe", argv);
	unlink(file);
	rmdir(dir);
	return 1;
}

static int check(const char *spec, int want, const char *says)
{
	struct ep_net *net = NULL;
	int rc = ep_net_open(spec, &net), failed;

	failed = rc != want || !net != !!want || (says && !strstr(ep_last_error(), says));
	printf("%s: %d, \"%s\"\n", spec, rc, rc ? ep_last_error() : "");
	ep_net_close(net);
	return failed;
}

int main(int argc, char **argv)
{
	const char *dir = getenv("NET_WITHOUT");
	char path[128], wrapped[64], install[64];
	int failed = 0;

	if (argc != 4)
		return 1;
	if (!dir)
		return start_again(argv);
	snprintf(wrapped, sizeof(wrapped), "faulty(%s)", argv[1]);
	snprintf(install, sizeof(install), "install %s", argv[3]);
	for (int i = 0; i < 2; i++) /* the result must not change */
		failed += check(argv[1], -ENODEV, argv[2]) + check(wrapped, -ENODEV, install);
	failed += check("", 0, NULL) + check("loop", 0, NULL);
	snprintf(path, sizeof(path), "%s/%s", dir, argv[2]);
	unlink(path);
	rmdir(dir);
	return failed != 0;
}
