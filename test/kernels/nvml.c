/* SPDX-License-Identifier: Apache-2.0 */
/* Multiprocessors of a whole GPU, from NVML's count of cores: over a model of NVML; with "absent", without any. */
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int failed;

static void expect(const char *what, uint8_t uuid, const char *bus, int capability, unsigned sms)
{
	uint8_t bytes[16];
	struct ep_nvml_query query = { .uuid = bytes, .bus = bus, .major = capability / 10, .minor = capability % 10 };
	const char *why = NULL;
	unsigned got;

	memset(bytes, uuid, sizeof(bytes));
	got = ep_nvml_sms(&query, &why);
	printf("%s: %u%s%s\n", what, got, got ? "" : ", ", got ? "" : why);
	if (got != sms || (!got && !why)) {
		fprintf(stderr, "%s: %u multiprocessors, not %u\n", what, got, sms);
		failed = 1;
	}
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "absent")) {
		if (dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
			printf("skipped: there is an NVML\n");
			return 77;
		}
		expect("without NVML", 0x10, "0000:18:00.0", 90, 0);
		return failed;
	}
	expect("by UUID", 0x10, "", 90, 132);
	expect("by address", 0, "0000:18:00.0", 90, 132);
	expect("a UUID that NVML does not know", 0x77, "0000:18:00.0", 90, 132);
	expect("64 cores each", 0x20, "", 80, 108);
	expect("a GPU newer than the table", 0x10, "", 150, 0);
	expect("a slice", 0x30, "0000:18:00.0", 90, 16);
	expect("a GPU that does not say", 0x40, "", 90, 0);
	expect("an unknown GPU", 0x77, "0000:99:00.0", 90, 0);
	expect("no name at all", 0, "", 90, 0);
	return failed;
}
