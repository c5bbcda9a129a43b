/* SPDX-License-Identifier: Apache-2.0 */
/* Runs over the net sm (test/gpu/net_sm.c): its kernel and those of all ranks wait for each other on one GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dev.h"
#include "perf/ep_perf.h"
#include "test/gpu/net_sm.h"

unsigned perf_nic_sms(const char *net)
{
	const char *at = net, *option;

	while (at && (at = strstr(at, "sm"))) {
		if ((at == net || at[-1] == '(') && strchr(":)", at[2])) {
			option = strstr(at, "sms=");
			return option ? (unsigned)strtoul(option + 4, NULL, 10) : SM_SMS;
		}
		at += 2;
	}
	return 0;
}

int perf_nic_fits(const struct perf_opts *opts, unsigned nic, unsigned gpu)
{
	unsigned long wanted = (unsigned long)opts->ranks * (unsigned)opts->sms + nic;

	if (!nic)
		return 0;
	if (opts->processes)
		fprintf(stderr, "ep_perf: net sm connects threads: -t instead of -g\n");
	else if (!opts->sms)
		fprintf(stderr, "ep_perf: net sm needs SMs of its own: pass -m, so that %d x m + %u is at most %u\n",
			opts->ranks, nic, gpu);
	else if (wanted > gpu)
		fprintf(stderr,
			"ep_perf: %d ranks x %d SMs and %u of net sm are %lu, but the GPU has %u: kernels that wait "
			"for "
			"each other must run at once; pass a smaller -m, or sms= in NCCL_EP_NET\n",
			opts->ranks, opts->sms, nic, wanted, gpu);
	else
		return 0;
	return -1;
}

int perf_nic_check(const struct perf_opts *opts)
{
	unsigned nic = perf_nic_sms(getenv("NCCL_EP_NET")), sms;
	struct ep_dev *dev;

	if (!nic)
		return 0;
	if (ep_dev_row(ep_dev_gpu_kind())->open(0, &dev))
		return -1;
	sms = dev->sms;
	dev->ops->close(dev);
	return perf_nic_fits(opts, nic, sms);
}
