/* SPDX-License-Identifier: Apache-2.0 */
/* Our nccl.h and the one installed here agree on every value and layout; built only where there is one. */
#include <stdio.h>
#include <string.h>

#include "facts.h"

int main(void)
{
	int bad = 0, n = 0;

	for (; facts_ours[n].name; n++) {
		if (strcmp(facts_ours[n].name, facts_real[n].name) || facts_ours[n].value != facts_real[n].value) {
			fprintf(stderr, "%s: ours %ld, theirs %ld\n", facts_ours[n].name, facts_ours[n].value,
				facts_real[n].value);
			bad++;
		}
	}
	printf("# %d facts compared, %d differ\n", n, bad);
	return bad ? 1 : 0;
}
