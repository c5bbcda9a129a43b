/* SPDX-License-Identifier: Apache-2.0 */
/* Without a CUDA driver, or in a build without nvcc: every query fails with the reason and has no other effect. Skips
 * where there is a driver. */
#include <stdio.h>
#include <string.h>

#include "kernels/dev.h"
#include "util/error.h"

static int failed;

static void check(const char *what, int rc)
{
	const char *why = ep_last_error();

	printf("%s: %d, \"%s\"\n", what, rc, why);
	if (rc != -ENODEV || (!strstr(why, "libcuda.so.1") && !strstr(why, "built without CUDA"))) {
		fprintf(stderr, "%s: expected %d and the reason\n", what, -ENODEV);
		failed = 1;
	}
	ep_last_error_set("");
}

int main(void)
{
	const struct ep_dev_ops *row = ep_dev_row(EP_DEV_CUDA);
	struct ep_dev *dev = NULL;
	int out = -7, rc;

	if ((rc = row->count(&out)) != -ENODEV || strstr(ep_last_error(), "sees no GPU")) {
		printf("skipped: there is a CUDA driver\n");
		return 77;
	}
	check("count", rc);
	for (int i = 0; i < 2; i++) { /* the second time like the first */
		check("current", row->current(&out));
		check("open", row->open(0, &dev));
	}
	check("open of no device", row->open(-1, &dev));
	row->close(NULL);
	if (out != -7 || dev) {
		fprintf(stderr, "an output was written\n");
		failed = 1;
	}
	return failed;
}
