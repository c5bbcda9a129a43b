#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD [--minutes M] [--seed S] [PART ARGS...]: the chaos campaign over the programs of a build. Parts: strike
# (ranks killed and stopped). Without a part all run, within M minutes (2 if not given) and from seed S (1 if not given).
set -uo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
build=$1 minutes=2 seed=1 failed=()
shift
while [ $# -gt 0 ]; do
	case $1 in
	--minutes) minutes=$2 && shift 2 ;;
	--seed) seed=$2 && shift 2 ;;
	*) break ;;
	esac
done
# A group that failed keeps its windows until the process ends: others may still write there.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
# A sanitizer slows every call down: 3 s more.
extra=$(grep -qs __asan_init "$build/test/chaos/chaos_strike" && echo 3 || echo 0)
mapfile -t known < <(sed 's/#.*//' "$here/seeds" | tr -s ' \t' '\n' | grep .)
seconds() { awk "BEGIN { print int($minutes * 60 * $1) }"; }

part() { # NAME COMMAND...
	printf '==== chaos: %s\n' "${*##*/}"
	"${@:2}" || failed+=("$1")
}

all() {
	part strike "$build/test/chaos/chaos_strike" -x "$extra" -s "$seed" -n 1000000000 -T "$(seconds 1)" -j 3 "${known[@]}"
}

case ${1:-all} in
all) all ;;
strike) part strike "$build/test/chaos/chaos_strike" -x "$extra" -s "$seed" "${@:2}" ;;
*) echo "chaos: no part is called $1" >&2 && exit 2 ;;
esac
[ ${#failed[@]} -eq 0 ] || { echo "chaos: failed: ${failed[*]}"; exit 1; }
