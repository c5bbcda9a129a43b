#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Test programs over libibverbs and soft-RoCE, in a virtual machine that shares the host's files; `./run vm` ends here.
set -euo pipefail
here=$(pwd)
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
export PATH="$PATH:/usr/sbin:/sbin"
build=$(realpath -m "${BUILD:-build}")
vm=$build/vm
grace=60 # seconds beyond the limit of a row: the guest is emulated, maybe on a busy machine

say() { printf 'vm: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
skip() { say "skipped: $*"; exit 77; }
emulator='' kernel='' # machine.sh finds them
. test/tools/install.sh
. test/vm/machine.sh

usage() {
	cat <<-'TEXT'
	usage: ./run vm [-b] [--kernel VERSION] [--full | SHARD | ROW]...   rows of test/vm/rows (ci)
	       test/vm/run.sh [-b] [--kernel VERSION] [--setup WORDS] [--seconds N] -- PROGRAM ARGUMENT...
	  -b                use the build as it is         --list  the rows
	  --kernel VERSION  such as 6.12, from backports if needed (the distribution's)
	  --full            every row, on every available kernel
	  --setup WORDS     of test/vm/setup.sh, joined by commas (two)
	  --seconds N       time limit of the program (300)
	BUILD names the build folder (build), VM_MEMORY the guest's MiB (1024). NCCL_*, UCCL_*
	and FI_* variables are passed to the program. Exit status 77: no virtual machine available.
	TEXT
}

rows() { grep -v '^#' test/vm/rows | grep .; }

program() {
	local d
	for d in "$build"/test/* "$build"/perf; do [ ! -x "$d/$1" ] || { echo "$d/$1"; return; }; done
	command -v "$1" || echo "$1"
}

# command_of TEXT...: quoted for the shell; settings first, then the program by its path
command_of() {
	local words=()
	while [[ ${1:-} == [A-Z]*=* ]]; do words+=("$1"); shift; done
	[ ${#words[@]} = 0 ] || words=(env "${words[@]}")
	printf '%q ' exec "${words[@]}" "$(program "$1")" "${@:2}"
}

# ---- a boot: many rows, one job folder that the guest writes to ----
job='' guest=''
job_end() {
	[ -z "$guest" ] || { kill -KILL "$guest" && wait "$guest"; } 2>/dev/null || true
	[ -z "$job" ] || rm -rf "$job"
	job='' guest=''
}
trap job_end EXIT
trap 'exit 130' INT TERM

job_start() { # FOLDER, rows on stdin
	mkdir -p "$vm"
	job=$(mktemp -d "$vm/job.XXXXXX")
	cat >"$job/rows"
	: >"$job/said"
	printf 'cd %q\n' "$1" >"$job/cwd"
	printf '%s\n' "$PWD" "$build" "$1" >"$job/see"
	cp test/vm/{guest,setup,ep_info}.sh "$job"
	machine_start "$job"
}

row_seconds() { awk -F'|' -v n="$1" '$1 == n { print $2 }' "$job/rows"; }

# job_watch FUNCTION: calls it with NAME STATUS MILLISECONDS for every row that ends. Fails, naming the row, if the guest
# dies or hangs. Polls a file, because `read -t` on a pipe loses a line that is incomplete at the timeout.
job_watch() {
	local lines line seen=0 verb name rc ms deadline=$((SECONDS + grace)) current='its start' alive=1
	while :; do
		kill -0 "$guest" 2>/dev/null || alive=0
		mapfile -s $seen lines <"$job/said"
		for line in "${lines[@]}"; do
			[[ $line == *$'\n' ]] || break
			seen=$((seen + 1))
			read -r verb name rc ms <<<"$line"
			case $verb in
			begin) current=$name deadline=$((SECONDS + grace + $(row_seconds "$name"))) ;;
			end) "$1" "$name" "$rc" "$ms" ;;
			bye) return 0 ;;
			esac
		done
		[ $alive = 1 ] || { say "the guest died in $current"; return 1; }
		[ $SECONDS -lt $deadline ] || { say "the guest hangs in $current"; return 1; }
		sleep 0.2
	done
}

# ---- one program ----
run_program() {
	local name settings=() status=99 tail
	for name in $(compgen -e | grep -E '^(NCCL|UCCL|FI)_' || true); do settings+=("$name=${!name}"); done
	job_start "$here" <<<"program|$seconds|$setup|$(command_of "${settings[@]}" "$@")"
	: >"$job/program.log"
	tail -n +1 -f --pid="$guest" "$job/program.log" &
	tail=$!
	program_ended() { status=$2; }
	job_watch program_ended || tail -n 20 "$job/console.log" >&2
	sleep 0.2 # for the last lines
	kill $tail 2>/dev/null || true
	return "$status"
}

# ---- the table ----
report() { # NAME STATUS MILLISECONDS
	local word
	case $2 in
	0) word=ok passed=$((passed + 1)) ;;
	77) word=skip skipped=$((skipped + 1)) ;;
	124 | 137) word=TIMEOUT failed=$((failed + 1)) ;;
	*) word=FAIL failed=$((failed + 1)) ;;
	esac
	ended[$1]=$2
	printf '%-8s %-32s %6d.%03d s\n' $word "$1" $(($3 / 1000)) $(($3 % 1000))
	cp "$job/$1.log" "$logs/" 2>/dev/null || echo 'vm: the guest ended before' >"$logs/$1.log"
	case $word in
	skip) grep -m1 skipped "$logs/$1.log" | sed 's/^/         /' || true ;;
	FAIL | TIMEOUT) tail -n 25 "$logs/$1.log" | sed 's/^/    | /' || true ;;
	esac
}

row_lines() {
	local shard name seconds setup command words
	while IFS='|' read -r shard name seconds setup command; do
		[[ " ${wanted[*]} " == *" all "* || " ${wanted[*]} " == *" $shard "* || " ${wanted[*]} " == *" $name "* ]] || continue
		eval "words=(${command//@/$build/test/})"
		echo "$name|$seconds|$setup|$(command_of "${words[@]}")"
	done < <(rows)
}

run_rows() { # KERNEL
	local name
	declare -gA ended=()
	logs=$vm/logs-${1:-stock}
	rm -rf "$logs"
	mkdir -p "$logs"
	row_lines >"$logs/rows"
	job_start "$build" <"$logs/rows"
	job_watch report || tail -n 20 "$job/console.log" | sed 's/^/    | /'
	while IFS='|' read -r name _; do
		if [ -z "${ended[$name]:-}" ]; then report "$name" 99 0; fi
	done <"$logs/rows"
	cp "$job/console.log" "$logs/"
	job_end
}

build_first=1 kernels=('') wanted=() setup=two seconds=300 single=
while [ $# -gt 0 ] && [ -z "$single" ]; do
	case $1 in
	-b) build_first=0 ;;
	-l | --list) rows; exit 0 ;;
	-h | --help) usage; exit 0 ;;
	--kernel) kernels=("$2"); shift ;;
	--setup) setup=$2; shift ;;
	--seconds) seconds=$2; shift ;;
	--full) wanted=(all) kernels=('' 6.12) ;;
	--) single=1 ;;
	-*) usage >&2; exit 2 ;;
	*) wanted+=("$1") ;;
	esac
	shift
done
[ ${#wanted[@]} -gt 0 ] || wanted=(ci)
for w in "${wanted[@]}"; do
	[ "$w" = all ] || rows | grep -E "^($w\||[^|]*\|$w\|)" >/dev/null || { say "no shard or row named $w"; exit 2; }
done

kernel_lacks() { echo "Debian's kernel${1:+ $1} is not available here"; }
machine_pick || skip "no guest for a $(uname -m)"
machine_install || skip "$emulator, busybox-static, kmod, cpio or rdma is missing, and cannot be installed from here"
if [ -n "$single" ]; then
	kernel_get "${kernels[0]}" || skip "$(kernel_lacks "${kernels[0]}")"
	run_program "$@"
	exit
fi
if [ $build_first = 1 ]; then
	[ -f "$build/build.ninja" ] || meson setup "$build"
	mapfile -t cells < <(row_lines | grep -o "$build/test/[^ ]*\.txt" | sort -u)
	ninja -C "$build" all "${cells[@]/#"$build/"/}"
fi
passed=0 failed=0 skipped=0
for k in "${kernels[@]}"; do
	if kernel_get "$k"; then
		echo "# kernel $(cat "$kernel/release")"
		run_rows "$k"
	else
		say "skipped: $(kernel_lacks "$k")"
	fi
done
[ $((passed + failed + skipped)) -gt 0 ] || exit 77
echo "vm: $passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $passed -gt 0 ]
