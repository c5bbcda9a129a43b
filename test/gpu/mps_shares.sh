#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Processes that share a GPU under MPS, each limited to a percentage of its SMs: the blocks of every rank, and HT's times
# against those of unlimited processes with as many blocks. 15 runs of about 4 s. Needs a running MPS daemon. What MPS does
# to any program (mps_place.cu): `doubled` blocks share an SM; `stores`: what plain stores of as many blocks take against
# unlimited ones, as the SMs of a part are neighbours. HT may take 3 % more, and in dispatch what stores take more.
# usage: mps_shares.sh PATH/ep_perf PATH/mps_place
set -euo pipefail
perf=$1
place=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

fail() { echo "FAILED: $*"; failed=1; }

# measure RANKS PERCENT SMS: sets seen, all, blocks, dispatch, combine (in us)
measure() {
	local said
	CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$2 NCCL_EP_DEBUG=INFO NCCL_EP_DEBUG_SUBSYS=GROUP NCCL_EP_DEBUG_FILE='' \
		"$perf" -a ht -D cuda -g "$1" -m "$3" -z -c 0 -n 100 -w 20 >"$dir/out" 2>"$dir/log" ||
		{ tail -n 20 "$dir/log"; fail "ep_perf with $1 ranks at $2 %"; exit 1; }
	said=$(sed -n 's/.*it sees: \([0-9]*\) of \([0-9]*\), blocks of a launch: \([0-9]*\).*/\1 \2 \3/p' "$dir/log")
	[ "$(wc -l <<<"$said")" = "$1" ] || fail "not every one of $1 ranks told its blocks: $said"
	[ "$(sort -u <<<"$said" | wc -l)" = 1 ] || fail "ranks at the same percentage differ: $said"
	read -r seen all blocks <<<"$(head -n 1 <<<"$said")"
	dispatch=$(awk '$1 ~ /^[0-9]/ && $2 == "dispatch" { print $4 }' "$dir/out")
	combine=$(awk '$1 ~ /^[0-9]/ && $2 == "combine" { print $4 }' "$dir/out")
}

# An equal part of the GPU, or what the rank sees of it if that is less; where the parts fill the GPU, a tenth of it stays
# free, and of each part half of that or a fifth.
check_blocks() { # RANKS PERCENT
	local want=$((all / $1)) spare=$((all / 10)) own=$((seen / 5))
	if ((seen < all && $1 * seen > all - spare)); then
		((own <= spare / 2)) || own=$((spare / 2))
		want=$(((all - spare) * seen / ($1 * seen)))
		((want <= seen - own)) || want=$((seen - own))
	fi
	((want <= seen)) || want=$seen
	((all > 0)) || fail "NVML does not say how many SMs the GPU has"
	((blocks == want)) || fail "$1 ranks at $2 %: $blocks blocks, not $want of $seen seen and $all in all"
}

slower() { awk -v a="$1" -v b="$2" -v x="${3:-1}" 'BEGIN { exit !(a > 1.03 * (x > 1 ? x : 1) * b) }'; }

# placed RANKS PERCENT BLOCKS: sets doubled and stores
placed() {
	local gbps free
	read -r doubled gbps <<<"$(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$2 "$place" "$1" "$3")"
	read -r _ free <<<"$(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 "$place" "$1" "$3")"
	if [ -z "$gbps" ] || [ -z "$free" ]; then
		fail "mps_place $1 $3 at $2 %"
		gbps=1 free=1
	fi
	stores=$(awk -v a="$free" -v b="$gbps" 'BEGIN { printf "%.2f", a / b }')
}

# check_times RANKS PERCENT: until a run is not slower, at most three, as one may be disturbed
declare -A unlimited=() # "dispatch combine" of ranks that see all of the GPU, by "ranks blocks"
check_times() {
	local n=$1 p=$2 b=$blocks try row ref
	for try in 1 2 3; do
		((try == 1)) || measure "$n" "$p" "$b"
		row=("$dispatch" "$combine")
		if [ "$try" -gt 1 ] || [ -z "${unlimited[$n $b]:-}" ]; then
			measure "$n" 100 "$b"
			unlimited[$n $b]="$dispatch $combine"
		fi
		read -ra ref <<<"${unlimited[$n $b]}"
		slower "${row[0]}" "${ref[0]}" || slower "${row[1]}" "${ref[1]}" || break
	done
	placed "$n" "$p" "$b"
	printf '%7d %8d %8d %8d %8d %8s %8s   %9.1f %9.1f   %9.1f %9.1f\n' "$n" "$p" "$part" "$all" "$b" "$doubled" "$stores" \
		"${row[@]}" "${ref[@]}"
	! slower "${row[0]}" "${ref[0]}" "$stores" || fail "$n ranks at $p %: dispatch takes ${row[0]} us, unlimited ${ref[0]}"
	! slower "${row[1]}" "${ref[1]}" || fail "$n ranks at $p %: combine takes ${row[1]} us, unlimited ${ref[1]}"
}

echo '#                                                                 limited (us)         unlimited, same blocks (us)'
echo '#  ranks  percent     seen       of   blocks  doubled   stores    dispatch   combine    dispatch   combine'
for ranks in 2 4 8; do
	for percent in 100 50 25 12; do
		measure "$ranks" "$percent" 1024
		part=$seen
		check_blocks "$ranks" "$percent"
		[ "$percent" != 100 ] || unlimited[$ranks $blocks]="$dispatch $combine"
		check_times "$ranks" "$percent"
	done
done
exit $failed
