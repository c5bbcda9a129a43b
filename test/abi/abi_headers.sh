#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi_headers.sh SOURCE CC [CXX]: every public header compiles alone, as C11 and as C++17, without a warning; with the
# stand-in's nccl.h, with that and no CUDA headers, and with NCCL's own nccl.h where it is installed.
set -u
src=$1 cc=$2 cxx=${3:-}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0

# The compiler's and the C library's headers, without /usr/local, where CUDA may be.
bare=-nostdinc
for dir in $(LC_ALL=C $cc -E -Wp,-v -xc /dev/null 2>&1 >/dev/null | sed -n 's/^ \(\/.*\)$/\1/p' | grep -v '^/usr/local/'); do
	bare="$bare -isystem $dir"
done

try() { # NAME COMMAND...
	name=$1
	shift
	if "$@" -c -o "$tmp/o" >"$tmp/out" 2>&1; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "not ok: $name"
		cat "$tmp/out"
	fi
}

for h in nccl_ep.h nccl_ep/ep_enums.h nccl_ep_ext.h nccl_ep_net.h; do
	file=$(echo "$h" | tr / _)
	echo "#include \"$h\"" >"$tmp/$file.c"
	cp "$tmp/$file.c" "$tmp/$file.cc"
done
cat >"$tmp/use.c" <<'END'
#include "nccl_ep_ext.h"
#define USE(type, name) type make_##name(void); type make_##name(void) { return NCCL_EP_##name##_INIT; }
USE(ncclEpTensor_t, TENSOR) USE(ncclEpTensorAllocConfig_t, TENSOR_ALLOC_CONFIG) USE(ncclEpGroupConfig_t, GROUP_CONFIG)
USE(ncclEpLayoutInfo_t, LAYOUT_INFO) USE(ncclEpDispatchInputs_t, DISPATCH_INPUTS)
USE(ncclEpDispatchOutputs_t, DISPATCH_OUTPUTS) USE(ncclEpCombineInputs_t, COMBINE_INPUTS)
USE(ncclEpCombineOutputs_t, COMBINE_OUTPUTS) USE(ncclEpHandleConfig_t, HANDLE_CONFIG)
USE(ncclEpDispatchConfig_t, DISPATCH_CONFIG) USE(ncclEpCombineConfig_t, COMBINE_CONFIG)
USE(ncclEpCompleteConfig_t, COMPLETE_CONFIG) USE(ncclEpAllocConfig_t, ALLOC_CONFIG)
anyEpNetCounts_t make_counts(void); anyEpNetCounts_t make_counts(void) { return ANYEP_NET_COUNTS_INIT; }
anyEpNetTimes_t make_times(void); anyEpNetTimes_t make_times(void) { return ANYEP_NET_TIMES_INIT; }
anyEpReachCounts_t make_reach(void); anyEpReachCounts_t make_reach(void) { return ANYEP_REACH_COUNTS_INIT; }
anyEpWaitStats_t make_waits(void); anyEpWaitStats_t make_waits(void) { return ANYEP_WAIT_STATS_INIT; }
ncclEpAsyncCode_t former(void); ncclEpAsyncCode_t former(void) { return NCCL_EP_ASYNC_TIMEOUT; }
static size_t dims[2] = { 4, 8 };
ncclEpTensor_t declared = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclFloat4x2, .sizes = dims };
END
cp "$tmp/use.c" "$tmp/use.cc"

each() { # NAME FLAGS...: all files, both languages
	what=$1
	shift
	for file in nccl_ep.h nccl_ep_ep_enums.h nccl_ep_ext.h nccl_ep_net.h use; do
		try "$what: $file as C11" $cc -std=c11 -Wall -Wextra -pedantic -Werror \
			-Wno-missing-field-initializers -I"$src/include" "$@" "$tmp/$file.c"
		[ -z "$cxx" ] && continue
		# Every compiler takes designated initialisers and compound literals in C++17, but not with -pedantic.
		pedantic=-pedantic
		[ $file = use ] && pedantic=-Wno-missing-field-initializers
		try "$what: $file as C++17" $cxx -std=c++17 -Wall -Wextra $pedantic -Werror -I"$src/include" "$@" "$tmp/$file.cc"
	done
}

each "stand-in" -I"$src/include/standin"
each "stand-in, no CUDA" $bare -I"$src/include/standin"
echo '#include <nccl.h>' >"$tmp/real.c"
if $cc -fsyntax-only "$tmp/real.c" 2>/dev/null; then
	each "real nccl.h"
else
	echo "# NCCL's nccl.h is not installed"
fi
# Other builds read the version with a line-based parser.
for line in 'MAJOR 0' 'MINOR 2' 'PATCH 0'; do
	if grep -qx "#define NCCL_EP_$line" "$src/include/nccl_ep.h"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "not ok: no plain line #define NCCL_EP_$line"
	fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
