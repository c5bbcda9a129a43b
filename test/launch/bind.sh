#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bind.sh BIND EP_PERF HOW: two ranks, bound to a core each by openmpi or mpich. BIND is bind.c; ep_perf's engines leave
# these cores, and its values are right. Exit status 77 where HOW is missing or cannot bind.
set -uo pipefail
bind=$1 perf=$2 how=$3
skip() { echo "skipped: $*"; exit 77; }
fail() { printf 'FAILED: %s: %s\n%s\n' "$how" "$1" "$out"; exit 1; }

command -v "mpirun.$how" >/dev/null || skip "mpirun.$how is not installed"
cores=$(sort -u /sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list 2>/dev/null | wc -l)
[ "$cores" -ge 2 ] || skip 'needs two cores'
for name in $(compgen -e | grep -E '^(SLURM|OMPI|PMI|PMIX|MPI)_'); do unset "$name"; done
case $how in
openmpi)
	start=(mpirun.openmpi --bind-to core)
	[ "$(id -u)" != 0 ] || start+=(--allow-run-as-root)
	;;
mpich) start=(mpirun.mpich -bind-to core) ;;
*) echo "unknown: $how" && exit 2 ;;
esac

for cpus in '' inherit; do
	out=$(NCCL_EP_ENGINE_CPUS=$cpus "${start[@]}" -n 2 "$bind" 2>&1)
	rc=$?
	[ $rc != 77 ] || skip "$how does not bind here"
	[ $rc = 0 ] && [ "$(grep -c '^ok: rank on' <<<"$out")" = 2 ] || fail "NCCL_EP_ENGINE_CPUS=$cpus: exit status $rc"
	[ "$(sort -u <<<"$out" | grep -c '^ok')" = 2 ] || fail 'both ranks are on one core'
	echo "$out"
done

out=$(NCCL_EP_DEBUG=INFO NCCL_EP_RANKS_PER_NODE=1 NCCL_EP_BOOTSTRAP_TIMEOUT_MS=20000 NCCL_EP_TIMEOUT_MS=20000 \
	"${start[@]}" -n 2 "$perf" -a ll -D host -b 4 -e 4 -n 3 -w 1 -H 256 -x 16 2>&1) || fail "ep_perf: exit status $?"
[ "$(grep -c 'leaves the core that the process is bound to' <<<"$out")" -ge 2 ] || fail 'engines of ep_perf stayed'
grep -q 'Out of bounds values : 0 OK' <<<"$out" || fail 'wrong values'
echo passed
