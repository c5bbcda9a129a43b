/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_TEST_THREAD_FIND_H
#define EP_TEST_THREAD_FIND_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/* The thread of this process whose name begins so; 0: none, which sched_getaffinity takes for the caller. */
static inline pid_t thread_find(const char *name)
{
	struct dirent *entry;
	DIR *dir = opendir("/proc/self/task");
	pid_t found = 0;

	while (dir && !found && (entry = readdir(dir))) {
		char path[300], text[32] = "";
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		f = fopen(path, "r");
		if (f && fgets(text, sizeof(text), f) && !strncmp(text, name, strlen(name)))
			found = atoi(entry->d_name);
		if (f)
			fclose(f);
	}
	if (dir)
		closedir(dir);
	return found;
}

#endif
