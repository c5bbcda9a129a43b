#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ./run fuzz [TARGET...] [--runs N | --seconds N] [--jobs N] [--seed N]
# Runs the targets of build-fuzz/ (all, or those named): N inputs or N seconds in all, shared evenly; 60 seconds unless
# told. What they learn stays in build-fuzz/corpus. Exit status 1 if one of them crashed: its input is in
# build-fuzz/crashes, and belongs into test/fuzz/seeds/TARGET once the fault is mended.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

build=build-fuzz seconds=60 runs='' jobs=$(nproc) seed=1 targets=()
number() { [[ "${2:-}" =~ ^[0-9]+$ ]] || { echo "fuzz: $1 needs a number" >&2; exit 2; }; echo "$2"; }
while [ $# -gt 0 ]; do
	case $1 in
	--runs) runs=$(number "$@") && shift 2 ;;
	--seconds) seconds=$(number "$@") && shift 2 ;;
	--jobs) jobs=$(number "$@") && shift 2 ;;
	--seed) seed=$(number "$@") && shift 2 ;;
	-*) echo "fuzz: no option $1" >&2 && exit 2 ;;
	*) targets+=("$1") && shift ;;
	esac
done
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd "$build/test/fuzz" && find . -name 'fuzz_*' -type f -printf '%f\n' | sed 's/fuzz_//' | sort)
for t in "${targets[@]}"; do
	[ -x "$build/test/fuzz/fuzz_$t" ] || { echo "fuzz: no target $t" >&2; exit 2; }
done

if [ -n "$runs" ]; then
	limit="-runs=$(((runs + ${#targets[@]} - 1) / ${#targets[@]}))"
else
	limit="-max_total_time=$((seconds * (jobs < ${#targets[@]} ? jobs : ${#targets[@]}) / ${#targets[@]} + 1))"
fi

# one TARGET: prints a row; the log has all the rest
one() {
	local t=$1 rc=0 seeds=() log="$build/logs/$1.log" start
	mkdir -p "$build/corpus/$t" "$build/crashes/$t" "$build/logs"
	[ ! -d "test/fuzz/seeds/$t" ] || seeds=("test/fuzz/seeds/$t")
	start=$(date +%s)
	"$build/test/fuzz/fuzz_$t" "$limit" -seed="$seed" -max_len=1024 -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=512 \
		-print_final_stats=1 -artifact_prefix="$build/crashes/$t/" "$build/corpus/$t" "${seeds[@]}" >"$log" 2>&1 || rc=1
	printf '%-10s %10d inputs %6d s %3d crashes\n' "$t" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
		$(($(date +%s) - start)) $rc
	[ $rc = 0 ] || grep -E 'not so|ERROR|SUMMARY|Test unit written' "$log" | sed 's/^/# /'
}
export -f one
export build limit seed
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'one {}' | tee "$build/rows"
awk -v m=${#targets[@]} '/ inputs / { n += $2; bad += $6 } END { printf "%d inputs over %d targets, %d crashes\n", n, m, bad; exit bad > 0 }' "$build/rows"
