/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs need a flush before a CPU's store tells kernels of a NIC's writes: a table. Exit status 0 or 1. */
#include "kernels/cuda/nic.h"
#include "test/kernels/kernel_check.h"

int main(void)
{
	static const struct {
		const char *what;
		struct ep_cuda_nic nic;
		bool flush, ordered;
	} rows[] = {
		{ "A100", { 8, true, false }, true, false }, /* whatever the attribute says */
		{ "A100, unordered", { 8, false, false }, true, false },
		{ "V100 on POWER9", { 7, true, true }, true, false },
		{ "H100", { 9, true, false }, false, true },
		{ "H100, unordered", { 9, false, false }, false, false },
		{ "GH200", { 9, true, true }, true, false },
		{ "B200", { 10, true, false }, false, true },
		{ "GB200", { 10, true, true }, true, false },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		CHECK(ep_cuda_nic_flush(rows[i].nic) == rows[i].flush &&
			      ep_cuda_nic_ordered(rows[i].nic) == rows[i].ordered,
		      "%s", rows[i].what);
	return check_result("cuda_nic");
}
