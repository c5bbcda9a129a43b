#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# launch.sh EP_PERF NET_PERF EP_INFO HOW: ep_perf with 4 ranks started by HOW, and net_perf with 2, print one table without
# a wrong value, and a rank that fails ends all of them with a status and a message. ep_info --check says so before: its
# map of the ranks, and which rank has another NCCL_EP_NET. Exit status 77 where HOW is missing.
#   openmpi, mpich, torchrun   the real launcher
#   srun, ray                  the variables that srun and Ray set, by hand
#   hosts                      the same as ray, 2 + 2 ranks in two network namespaces joined by a veth; needs root and ip
set -uo pipefail
perf=$(readlink -f "$1") net=$(readlink -f "$2") info=$(readlink -f "$3") how=$4 # absolute: nsenter changes the folder
dir=$(mktemp -d)
trap 'rm -rf "$dir"; [ -z "${there:-}" ] || kill -9 "$there"' EXIT # the first of a pid namespace ignores others
failed=0
fail() { # with the output of the run, once
	echo "FAILED: $how: $*"
	cat "$dir/out" "$dir/err"
	truncate -s 0 "$dir/out" "$dir/err"
	failed=1
}
skip() { echo "skipped: $*"; exit 77; }
want() { command -v "$1" >/dev/null || skip "$1 is not installed"; }

# Nothing of a launcher around this test.
for name in $(compgen -e | grep -E '^(SLURM|OMPI|PMI|PMIX|MPI|TORCHELASTIC)_|^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)$'); do
	unset "$name"
done
port=$((21000 + $$ % 9000))
export NCCL_EP_BOOTSTRAP_TIMEOUT_MS=20000 NCCL_EP_TIMEOUT_MS=20000

# ranks COMMAND...: $n processes; COMMAND sees $rank
ranks() {
	local pids=() rank rc=0
	for ((rank = n - 1; rank >= 0; rank--)); do
		rank=$rank "$@" &
		pids+=($!)
	done
	for rank in "${pids[@]}"; do wait "$rank" || rc=$?; done
	return $rc
}
# shellcheck disable=SC2317 # called by ranks
srun_rank() {
	env SLURM_JOB_ID=$((port % 7919)) SLURM_STEP_ID=0 SLURM_PROCID="$rank" SLURM_STEP_NUM_TASKS=$n SLURM_LOCALID="$rank" \
		SLURM_STEP_NODELIST='127.0.0.[1-2]' "$@"
}
# shellcheck disable=SC2317
ray_rank() {
	[ "$rank" != "${dies:-}" ] || set -- timeout -s KILL 1 "$@"
	env RANK="$rank" WORLD_SIZE=$n MASTER_ADDR="${master:-127.0.0.1}" MASTER_PORT=$port NCCL_EP_TOKEN="$dir" "$@"
}
# Ranks 0 and 2 here, 1 and 3 there.
# shellcheck disable=SC2317
host_rank() { if ((rank % 2)); then ray_rank nsenter -t "$there" -n -p -m "$@"; else ray_rank "$@"; fi; }

hosts_make() {
	[ "$(id -u)" = 0 ] || skip 'needs root for network namespaces'
	want ip && want nsenter
	compgen -G '/usr/lib*/*/libfabric.so.1' >/dev/null || compgen -G '/usr/lib*/libfabric.so.1' >/dev/null ||
		skip 'no libfabric: no transport between hosts'
	unshare --net --pid --fork --mount-proc sleep 120 >/dev/null 2>&1 &
	there=$!
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		inner=$(pgrep -P $there) && break
		sleep 0.1
	done
	there=$inner
	ip link set lo up && ip link add v0 type veth peer name v1 netns "$there" && ip addr add 10.79.0.1/24 dev v0 &&
		ip link set v0 up && nsenter -t "$there" -n sh -c 'ip link set lo up && ip addr add 10.79.0.2/24 dev v1 && ip link set v1 up' ||
		skip 'no network namespaces here'
	# The kernel reports a new link's carrier with up to a second of delay, on each side.
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		ip link show v0 | grep -q 'state UP' && nsenter -t "$there" -n ip link show v1 | grep -q 'state UP' && return
		sleep 0.3
	done
}

case $how in
openmpi)
	want mpirun.openmpi
	by='by mpirun (Open MPI)'
	start=(mpirun.openmpi --oversubscribe)
	[ "$(id -u)" != 0 ] || start+=(--allow-run-as-root)
	count=-n
	;;
mpich) want mpirun.mpich && by='by mpirun (MPICH)' start=(mpirun.mpich) count=-n ;;
torchrun) want torchrun && by='by torchrun' start=(torchrun --master-port "$port" --no-python) count=--nproc-per-node ;;
srun) by='by srun' start=(ranks srun_rank) ;;
ray) by='by RANK and WORLD_SIZE' start=(ranks ray_rank) ;;
hosts)
	[ "${inside:-}" = 1 ] || exec env inside=1 unshare --net "$0" "$@"
	hosts_make
	by='by RANK and WORLD_SIZE' start=(ranks host_rank) master=10.79.0.1
	;;
*) echo "unknown: $how" && exit 2 ;;
esac

# launch RANKS COMMAND...: sets rc
launch() {
	n=$1
	"${start[@]}" ${count:+"$count" "$n"} "${@:2}" >"$dir/out" 2>"$dir/err"
	rc=$?
}
run() { launch 4 "$perf" -D host -n 3 -w 1 -H 256 -x 16 "$@"; }

launch 4 "$info" --check -D host
[ $rc = 0 ] || fail "ep_info --check: exit status $rc"
[ "$(grep -c "^# ep_info.* 4 ranks as processes $by" "$dir/out")" = 1 ] || fail "ep_info --check: not one map \"$by\""
[ "$(grep -c '^ .* ok$' "$dir/out")" = 4 ] || fail 'ep_info --check: not 4 ranks'
map='^# node 0: .*: ranks 0-3$'
[ "$how" != hosts ] || map='^# node 1: .*: ranks 1, 3$'
grep -q "$map" "$dir/out" || fail 'ep_info --check: wrong nodes'
[ "$(grep -v '^$' "$dir/out" | tail -n 1)" = '# first: nothing to do' ] || fail 'ep_info --check: wrong verdict'
# One rank has another transport, for ep_info and for a program. Ranks of one node need none.
[ "$how" = hosts ] || export NCCL_EP_RANKS_PER_NODE=2
cat >"$dir/odd" <<'END'
#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${RANK:-$SLURM_PROCID}}}" != 2 ] || export NCCL_EP_NET=nosuch
exec "$@"
END
chmod +x "$dir/odd"
launch 4 "$dir/odd" "$info" --check -D host
[ $rc != 0 ] || fail 'ep_info --check with another NCCL_EP_NET: exit status 0'
grep -q '^# error: rank 2 (.*"nosuch"' "$dir/out" || fail 'ep_info --check: rank 2 is not blamed'
grep -q '^# first: .*NCCL_EP_NET.*rank 2 (' "$dir/out" || fail 'ep_info --check: what to do is not said'
NCCL_EP_DEBUG=NONE launch 4 "$dir/odd" "$perf" -D host -b 8 -e 8 -H 256 -x 16
[ $rc != 0 ] || fail 'ep_perf with another NCCL_EP_NET: exit status 0'
unset NCCL_EP_RANKS_PER_NODE

for mode in ll ht; do
	run -a $mode -b 4 -e 8
	[ $rc = 0 ] || fail "$mode: exit status $rc"
	[ "$(grep -c '^# ep_perf' "$dir/out")" = 1 ] || fail "$mode: not one table"
	grep -q "4 processes $by" "$dir/out" || fail "$mode: not \"$by\""
	grep -q '^ *8  combine .* 0$' "$dir/out" || fail "$mode: no row of 8 tokens"
	grep -q 'Out of bounds values : 0 OK' "$dir/out" || fail "$mode: wrong values"
	if [ "$how" = hosts ]; then
		grep -q '^# net ' "$dir/out" || fail "$mode: two hosts, but no transport between them"
	fi
done

transport=loop
[ "$how" != hosts ] || transport=fabric:provider=tcp
launch 2 "$net" -n $transport -b 64 -e 4096 -f 64 -i 200
[ $rc = 0 ] || [ $rc = 77 ] || fail "net_perf: exit status $rc"
if [ $rc = 0 ]; then
	[ "$(grep -c "^# net_perf.* 2 ranks as processes $by" "$dir/out")" = 1 ] || fail 'net_perf: not one table'
	grep -q '^ *4096 .* 0$' "$dir/out" || fail 'net_perf: no row of 4096 bytes'
	grep -q 'Out of bounds values : 0 OK' "$dir/out" || fail 'net_perf: wrong values'
	launch 3 "$net" -i 10
	[ $rc != 0 ] && [ "$(grep -c 'must start 2 ranks, not 3' "$dir/err")" = 1 ] || fail 'net_perf with 3 ranks'
fi

# More rows than max_recv_tokens_per_rank: a call fails on every rank.
NCCL_EP_DEBUG=NONE run -a ht -e 8 --max-recv 8
[ $rc != 0 ] || fail 'ranks that failed have exit status 0'
grep -q 'ep_perf: rank [0-3]: .*max_recv_tokens_per_rank' "$dir/err" || fail 'no message of the failed call'
# Killed in the middle: here no launcher ends the others.
if [ "$how" = ray ]; then
	start_s=$SECONDS
	NCCL_EP_DEBUG=NONE dies=2 launch 4 "$perf" -D host -b 8 -e 8 -H 256 -x 16 -n 100000
	[ $rc != 0 ] || fail 'a rank was killed, the exit status is 0'
	[ "$(grep -c 'ep_perf: rank [013]: ' "$dir/err")" = 3 ] || fail 'not every survivor said why it ended'
	grep -q 'rank 2' "$dir/err" || fail 'nobody named the killed rank'
	((SECONDS - start_s < 15)) || fail "survivors took $((SECONDS - start_s)) s to end"
fi
# Ranks by itself, and by the launcher.
run -t 2
[ $rc != 0 ] || fail '-t under a launcher'
[ "$(grep -c 'leave both out' "$dir/err")" = 1 ] || fail 'not one message about -t'
[ $failed = 0 ] && echo passed
exit $failed
