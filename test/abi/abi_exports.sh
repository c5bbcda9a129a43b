#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi_exports.sh LIBRARY: exactly the contract's functions and our extensions are exported, without a version; the SONAME
# is the contract's, and nothing but the C library is needed.
set -u
lib=$1
export LC_ALL=C
want="ncclEpCombine ncclEpComplete ncclEpCreateGroup ncclEpCreateHandle ncclEpDispatch ncclEpErrorClear
ncclEpGetAsyncError ncclEpGetLastError ncclEpGetVersion ncclEpGroupDestroy ncclEpGroupNetCounts ncclEpGroupWindowBytes ncclEpHandleDestroy ncclEpHandleMemSize
ncclEpHostStreamCreate ncclEpHostStreamDestroy ncclEpHostStreamSynchronize ncclEpInitHandle ncclEpMaskClean
ncclEpMaskQuery ncclEpMaskUpdate ncclEpTensorAlloc ncclEpTensorDestroy ncclEpUpdateHandle"
failed=0

is() { # WHAT IS MUST
	[ "$2" = "$3" ] && return
	failed=$((failed + 1))
	printf 'not ok: %s is\n%s\nmust be\n%s\n' "$1" "$2" "$3"
}

is "the list of exports" "$(nm -D --defined-only "$lib" | awk '{ print $3 }' | sort)" "$(echo $want | tr ' ' '\n' | sort)"
is "the SONAME" "$(readelf -d "$lib" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" libnccl_ep.so.0
other=$(readelf -d "$lib" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -Ev '^(libc|libm|libpthread|libdl|librt|ld-linux[-a-z0-9_]*)\.so')
is "what it needs beside the C library" "$other" ""
echo "$((3 - failed)) passed, $failed failed"
[ $failed -eq 0 ]
