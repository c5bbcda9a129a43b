#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Device tests on a machine with an NVIDIA GPU; `./run gpu` ends here. Works offline: compilers, meson, ninja, nvcc and
# the driver are all it needs. A shard takes under 8 minutes and can be run alone.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
export PATH="$PATH:/usr/local/cuda/bin"
build=${BUILD:-build-gpu}
logs=$build/gpu-logs

# shard|name|seconds|how|program and arguments
#   how: plain, mps (processes share the GPU under a daemon of our own), ipc (mps, windows by CUDA IPC), memcheck,
#   racecheck, memcheck-mps
rows=(
	'dev|devices|60|plain|gpu_dev'
	'dev|windows|90|plain|gpu_share'
	'dev|capture|60|plain|gpu_capture'
	'dev|launch|60|plain|gpu_launch'
	'threads|rowsig|300|plain|gpu_rowsig cuda'
	'threads|rowsig-fail|120|plain|gpu_rowsig_fail cuda'
	'threads|standin|60|plain|standin_gpu'
	'procs|windows-mps|120|mps|gpu_share'
	'procs|rowsig-mps|240|mps|gpu_rowsig_procs cuda'
	'procs|rowsig-ipc|240|ipc|gpu_rowsig_procs cuda'
	'memcheck|devices-memcheck|120|memcheck|gpu_dev'
	'memcheck|capture-memcheck|120|memcheck|gpu_capture'
	'memcheck|launch-memcheck|120|memcheck|gpu_launch'
	'memcheck|rowsig-memcheck|420|memcheck|gpu_rowsig cuda'
	'memcheck-procs|rowsig-procs-memcheck|420|memcheck-mps|gpu_rowsig_procs cuda'
	'racecheck|launch-racecheck|240|racecheck|gpu_launch'
)
default=(dev threads procs memcheck)

usage() {
	echo "usage: ./run gpu [-b] [-l] [SHARD | TEST]...   (default: ${default[*]}; all: every shard)"
	echo '  -b  use the build as it is    -l  list the shards'
	printf '%s\n' "${rows[@]}" | awk -F'|' '{ printf "  %-16s %-24s %4ds  %-14s %s\n", $1, $2, $3, $4, $5 }'
}

say() { printf 'gpu: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# Only what is needed, for the GPUs that are here: a minute on a small machine becomes seconds.
configure_and_build() {
	local caps flags=(-Dcuda=enabled -Dhip=disabled -Dpython=disabled)
	caps=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '.' | sort -un | paste -sd,) || caps=
	[[ $caps =~ ^[0-9,]+$ ]] && flags+=("-Darchs_cuda=$caps")
	if [ -f "$build/build.ninja" ]; then
		meson configure "$build" "${flags[@]}" >/dev/null
	else
		meson setup "$build" "${flags[@]}" || { say "configuring failed; $build/meson-logs/meson-log.txt has more"; return 1; }
	fi
	ninja -C "$build" gpu
}

# ---- a daemon of our own: its directories are temporary, its end is certain ----
mps_dir=
mps_start() {
	[ -z "$mps_dir" ] || return 0
	have nvidia-cuda-mps-control || return 1
	mps_dir=$(mktemp -d)
	mkdir "$mps_dir/pipe" "$mps_dir/log"
	mps_env=(CUDA_MPS_PIPE_DIRECTORY="$mps_dir/pipe" CUDA_MPS_LOG_DIRECTORY="$mps_dir/log")
	env "${mps_env[@]}" timeout 30 nvidia-cuda-mps-control -d || { say 'the MPS daemon does not start'; mps_stop; return 1; }
}

mps_stop() {
	[ -n "$mps_dir" ] || return 0
	local pid
	pid=$(cat "$mps_dir"/pipe/*.pid 2>/dev/null || true)
	echo 'quit -t 5' | env "${mps_env[@]}" timeout 15 nvidia-cuda-mps-control >/dev/null 2>&1 || true
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		if [ -z "$pid" ] || ! kill -0 "$pid" 2>/dev/null; then break; fi
		sleep 0.3
	done
	[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
	rm -rf "$mps_dir"
	mps_dir=
}
trap mps_stop EXIT
trap 'exit 130' INT TERM

# The tests provoke errors of the driver on purpose, so those are not reported; bad accesses are.
sanitizer() { echo "compute-sanitizer --tool $1 --target-processes all --report-api-errors no --error-exitcode 99"; }

# run_one NAME SECONDS HOW COMMAND...: 0 passed, 77 skipped, else failed
run_one() {
	local name=$1 seconds=$2 how=$3 rc=0 wrap=()
	# Rank threads need a queue of the GPU each. Processes have their own, and under MPS more than a few exhaust the GPU.
	local vars=(CUDA_DEVICE_MAX_CONNECTIONS=32)
	shift 3
	case $how in
	mps | ipc | memcheck-mps)
		mps_start || { echo 'skipped: no MPS here' >"$logs/$name.log"; return 77; }
		vars=("${mps_env[@]}" CUDA_DEVICE_MAX_CONNECTIONS=2)
		;;&
	ipc) vars+=(NCCL_EP_CUDA_VMM=0) ;;
	memcheck | memcheck-mps | racecheck)
		have compute-sanitizer || { echo 'skipped: no compute-sanitizer here' >"$logs/$name.log"; return 77; }
		read -ra wrap <<<"$(sanitizer "${how%-mps}")"
		;;
	esac
	env "${vars[@]}" timeout -k 5 "$seconds" "${wrap[@]}" "$build/test/gpu/$1" "${@:2}" >"$logs/$name.log" 2>&1 </dev/null || rc=$?
	# A client that died badly spoils the daemon for the next one.
	case $how in mps | ipc | memcheck-mps) [ $rc = 0 ] || mps_stop ;; esac
	return $rc
}

build_first=1 wanted=()
for arg; do
	case $arg in
	-b) build_first=0 ;;
	-l | -h | --help) usage; exit 0 ;;
	all) mapfile -t -O "${#wanted[@]}" wanted < <(printf '%s\n' "${rows[@]}" | cut -d'|' -f1 | uniq) ;;
	-*) usage >&2; exit 2 ;;
	*) wanted+=("$arg") ;;
	esac
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${default[@]}")
for w in "${wanted[@]}"; do
	printf '%s\n' "${rows[@]}" | grep -qE "^($w\||[^|]*\|$w\|)" || { say "there is no shard or test $w"; usage >&2; exit 2; }
done

[ $build_first = 0 ] || configure_and_build
mkdir -p "$logs"
passed=0 failed=0 skipped=0
for row in "${rows[@]}"; do
	IFS='|' read -r shard name seconds how command <<<"$row"
	[[ " ${wanted[*]} " == *" $shard "* || " ${wanted[*]} " == *" $name "* ]] || continue
	read -ra words <<<"$command"
	start=$(date +%s%N) rc=0
	run_one "$name" "$seconds" "$how" "${words[@]}" || rc=$?
	took=$((($(date +%s%N) - start) / 1000000))
	case $rc in
	0) word=ok passed=$((passed + 1)) ;;
	77) word=skip skipped=$((skipped + 1)) ;;
	124 | 137) word=TIMEOUT failed=$((failed + 1)) ;;
	*) word=FAIL failed=$((failed + 1)) ;;
	esac
	printf '%-8s %-16s %-24s %6d.%03d s\n' "$word" "$shard" "$name" $((took / 1000)) $((took % 1000))
	case $word in
	skip) grep -m1 'skipped' "$logs/$name.log" | sed 's/^/         /' || true ;;
	FAIL | TIMEOUT) tail -n 25 "$logs/$name.log" | sed 's/^/    | /' ;;
	esac
done
echo "gpu: $passed passed, $failed failed, $skipped skipped"
# A machine without a GPU has shown nothing.
[ $failed = 0 ] && [ $passed -gt 0 ]
