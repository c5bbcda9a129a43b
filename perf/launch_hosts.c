/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "perf/launch_env.h"

/* The first entry of a bracket, [at, end): up to a comma, and of a range its beginning, with its zeros. */
static size_t entry_length(const char *at, const char *end)
{
	size_t n = 0;

	while (at + n < end && at[n] != ',' && at[n] != '-')
		n++;
	return n;
}

int launch_first_host(const char *list, char *out, size_t size)
{
	char host[LAUNCH_HOST];
	size_t used = 0;

	while (list && *list && *list != ',') {
		const char *from = list, *end = list + 1;
		size_t n = 1;

		if (*list == ']')
			return -1;
		if (*list == '[') {
			end = strchr(list, ']');
			from = list + 1;
			n = end ? entry_length(from, end) : 0;
			if (!n)
				return -1;
			end++;
		}
		if (used + n >= sizeof(host))
			return -1;
		memcpy(host + used, from, n);
		used += n;
		list = end;
	}
	if (!used || used >= size)
		return -1;
	memcpy(out, host, used);
	out[used] = '\0';
	return 0;
}
