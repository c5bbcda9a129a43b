#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD [--minutes M] [--seed S] [PART ARGS...]: the chaos campaign over the programs of a build. Parts: strike (ranks
# killed and stopped), scribble (a rank overwrites what others share with it), soak (LL and HT over transports that disorder
# puts). Without a part all run, within M minutes (2 if not given) and from seed S (1 if not given).
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
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 NCCL_EP_DEBUG=${NCCL_EP_DEBUG:-NONE}
strike=$build/test/chaos/chaos_strike scribble=$build/test/scribble/t_scribble soak=$build/test/chaos/t_chaos_soak
mapfile -t known < <(sed 's/#.*//' "$here/seeds" | tr -s ' \t' '\n' | grep .)
# A sanitizer slows every call down: 3 s more, and a tenth of the operations per second.
if grep -qs __asan_init "$strike"; then extra=3 rate=1000; else extra=0 rate=10000; fi
per_minute() { awk "BEGIN { print int($minutes * $1) }"; }

part() { # NAME COMMAND...
	printf '==== chaos: %s\n' "${*:2}"
	"${@:2}" || failed+=("$1")
}

# Strikes mostly wait for timeouts, the others compute: half of the time, and a quarter each.
all() {
	part strike "$strike" -x "$extra" -s "$seed" -n 1000000000 -T "$(per_minute 30)" -j 3 "${known[@]}"
	part scribble "$scribble" -s "$seed" -n "$(per_minute 100)"
	part soak "$soak" -s "$seed" -n "$(per_minute $((rate * 15)))"
}

case ${1:-all} in
all) all ;;
strike) part strike "$strike" -x "$extra" -s "$seed" "${@:2}" ;;
scribble) part scribble "$scribble" -s "$seed" "${@:2}" ;;
soak) part soak "$soak" -s "$seed" "${@:2}" ;;
*) echo "chaos: no part is called $1" >&2 && exit 2 ;;
esac
[ ${#failed[@]} -eq 0 ] || { echo "chaos: failed: ${failed[*]}"; exit 1; }
