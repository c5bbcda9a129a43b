// SPDX-License-Identifier: Apache-2.0
// Compiled while configuring: a compiler that cannot do this has no AMD target or no linker for it.
extern "C" __attribute__((global)) void probe(const int a)
{
	(void)a;
}
