#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi_exports.sh LIBRARY EXPORTS [NEEDED]: the library exports exactly the symbols of EXPORTS, unversioned; its SONAME is
# NCCL EP's; it needs the C library only, and the library NEEDED.
set -u
lib=$1 exports=$2 needed=${3:-libc}
export LC_ALL=C
failed=0

is() { # WHAT IS MUST
	[ "$2" = "$3" ] && return
	failed=$((failed + 1))
	printf 'not ok: %s is\n%s\nmust be\n%s\n' "$1" "$2" "$3"
}

# A versioned symbol would show as name@@VERSION.
is "the list of exports" "$(${NM:-nm} -D --with-symbol-versions --defined-only "$lib" | awk '{ print $3 }' | sort)" "$(cat "$exports")"
is "the SONAME" "$(${READELF:-readelf} -d "$lib" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" libnccl_ep.so.0
other=$(${READELF:-readelf} -d "$lib" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -Ev "^(libc|libm|libpthread|libdl|librt|ld-linux[-a-z0-9_]*|$needed)\.so")
is "the list of libraries besides the C library" "$other" ""
echo "$((3 - failed)) passed, $failed failed"
[ $failed -eq 0 ]
