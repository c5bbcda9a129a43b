// SPDX-License-Identifier: Apache-2.0
// Compiled at configure time: fails if the compiler has no AMD target or no linker for it.
extern "C" __attribute__((global)) void probe(const int a)
{
	(void)a;
}
