#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# archive.sh LIBNCCL_EP.A LIBNCCL.SO CC: the whole archive links into another library, which then exports the API and no
# internal symbol.
set -eu
archive=$1 nccl=$2 cc=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# Built with the shared libsodium the archive needs it, as its pkg-config file says.
sodium=
if ${NM:-nm} -u "$archive" | grep -q sodium_init; then sodium=-lsodium; fi
echo 'int other(void); int other(void) { return 1; }' >"$tmp/other.c"
$cc -shared -fPIC -o "$tmp/libother.so" "$tmp/other.c" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -Wl,-z,defs \
	"$nccl" -lpthread -ldl -lm $sodium
names=$(${NM:-nm} -D --defined-only "$tmp/libother.so" | awk '{ print $3 }' | grep -v '^_' | sort)
echo "$names" | grep -qx ncclEpDispatch
inside=$(echo "$names" | grep -vE '^((ncclEp|anyEp)[A-Z]|other$)' || true)
[ -z "$inside" ] || { echo "the archive exports internal symbols: $inside"; exit 1; }
echo "archive: $(echo "$names" | grep -cE '^(ncclEp|anyEp)') symbols, no internal ones"
