/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86-64's baseline has vectors of 16 bytes and no fused multiply-add, and compilers may use no more. So the kernels
 * are compiled again for wider ones, and the CPU decides. Results have the same bits: every element of a sum is added
 * in the same order, and fused where gx_fma says so, nowhere else (-ffp-contract=off); base calls the C library's fmaf.
 * Copies are the C library's memcpy, which chooses for itself.
 */
#include <pthread.h>
#include <strings.h>

#include "kernels/host/launch.h"
#include "util/log.h"
#include "util/param.h"

extern const struct gx_host_kernel gx_host_kernels_avx2[EP_KERNELS], gx_host_kernels_avx512[EP_KERNELS];

static bool has_base(void)
{
	return true;
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/* Widest first. */
static const struct {
	const char *name;
	const struct gx_host_kernel *kernels;
	bool (*here)(void);
} levels[] = {
	{ "avx512", gx_host_kernels_avx512, has_avx512 },
	{ "avx2", gx_host_kernels_avx2, has_avx2 },
	{ "base", gx_host_kernels, has_base },
};
#define LEVELS (sizeof(levels) / sizeof(levels[0]))

static const struct gx_host_kernel *chosen;

static void choose(void)
{
	const char *want = ep_param_str(EP_P_HOST_ISA);
	bool any = !strcasecmp(want, "auto");

	for (size_t i = 0; i < LEVELS; i++)
		if ((any || !strcasecmp(want, levels[i].name)) && levels[i].here()) {
			EP_INFO(EP_DEV, "host device: kernels for %s", levels[i].name);
			chosen = levels[i].kernels;
			return;
		}
	EP_WARN(EP_DEV,
		"NCCL_EP_HOST_ISA=%s: expected auto, base, avx2 or avx512, as far as this CPU has it; using base",
		want);
	chosen = gx_host_kernels;
}

gx_host_fn gx_host_pick(unsigned kernel)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, choose);
	return chosen[kernel].run;
}
