/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the names by which the library looks up its kernels, a line each. Fails where tools that find NCCL EP's
 * kernels by name would not find ours: those of HT contain dispatch_kernel and combine_kernel, those of LL dispatch and
 * combine.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/gx/both.h"

static const struct {
	const char *kernel, *name;
} kernels[] = {
#define EP_KERNEL(name, args) { #name, EP_KERNEL_NAME(name) },
#include "kernels/list.h"
#undef EP_KERNEL
};

static const struct {
	const char *prefix, *part;
} wanted[] = {
	{ "ht_dispatch", "dispatch_kernel" },
	{ "ht_combine", "combine_kernel" },
	{ "ht_far_dispatch", "dispatch_kernel" },
	{ "ht_far_combine", "combine_kernel" },
	{ "ll_dispatch", "dispatch" },
	{ "ll_combine", "combine" },
};

int main(void)
{
	int bad = 0;

	for (size_t w = 0; w < sizeof(wanted) / sizeof(wanted[0]); w++) {
		int found = 0;

		for (size_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); k++) {
			if (strncmp(kernels[k].kernel, wanted[w].prefix, strlen(wanted[w].prefix)))
				continue;
			found++;
			if (!strstr(kernels[k].name, wanted[w].part)) {
				fprintf(stderr, "%s does not contain %s\n", kernels[k].name, wanted[w].part);
				bad++;
			}
		}
		if (!found) {
			fprintf(stderr, "there is no kernel %s\n", wanted[w].prefix);
			bad++;
		}
	}
	for (size_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); k++)
		printf("%s\n", kernels[k].name);
	return bad ? 1 : 0;
}
