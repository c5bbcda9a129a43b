/* SPDX-License-Identifier: Apache-2.0 */
/* Without libfabric: the net fabric has no device, its sentence says why, and the others do not mind. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/net.h"
#include "util/error.h"

/* An empty file in its place cannot be opened, whatever is installed. The linker reads the path at start only. */
static int start_again(char **argv)
{
	char dir[] = "/tmp/nccl_ep_fabric_XXXXXX", file[64];
	int fd;

	if (!mkdtemp(dir))
		return 1;
	snprintf(file, sizeof(file), "%s/libfabric.so.1", dir);
	fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	setenv("LD_LIBRARY_PATH", dir, 1);
	setenv("FABRIC_ABSENT", dir, 1);
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
	const char *dir = getenv("FABRIC_ABSENT");
	char file[64];
	int failed = 0;

	(void)argc;
	if (!dir)
		return start_again(argv);
	for (int i = 0; i < 2; i++) /* the second time as the first */
		failed += check("fabric", -ENODEV, "no libfabric") +
			  check("fabric:provider=tcp", -ENODEV, "libfabric.so.1") +
			  check("faulty(fabric)", -ENODEV, "install libfabric1");
	failed += check("", 0, NULL) + check("loop", 0, NULL);
	snprintf(file, sizeof(file), "%s/libfabric.so.1", dir);
	unlink(file);
	rmdir(dir);
	return failed != 0;
}
