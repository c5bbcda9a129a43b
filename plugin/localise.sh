#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# localise.sh OUT.a EXPORTS.map IN.a... [--no-whole-archive LIB.a]: one archive with one object whose only global symbols
# are those of the map: all of the inputs, and of the library what they need.
set -eu
out=$1 map=$2
shift 2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
sed -n 's/^[[:space:]]*\([A-Za-z0-9_]\{1,\}\);.*/\1/p' "$map" >"$tmp/keep"
test -s "$tmp/keep"
"${LD:-ld}" -r --whole-archive "$@" -o "$tmp/nccl_ep.o"
"${OBJCOPY:-objcopy}" --keep-global-symbols="$tmp/keep" "$tmp/nccl_ep.o"
rm -f "$out"
"${AR:-ar}" rcs "$out" "$tmp/nccl_ep.o"
