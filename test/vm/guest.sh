#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the guest: runs the rows one after the other. It reports through files in /run/job: a line in `said` when a row
# begins and when it ends, and NAME.log.
job=/run/job
. $job/setup.sh
. $job/cwd
net=''

say() { echo "$*" >>$job/said; }
now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }

# net_want NAME: kept from row to row
net_want() {
	[ "$1" != "$net" ] || return 0
	net=''
	net_clear && "net_$1" && net=$1
}

# Each row runs in its own pid namespace, so that leftover processes end with it.
row_run() { # SECONDS MEMLOCK COMMAND
	local wrap=(unshare --pid --fork --kill-child --mount-proc)
	[ "$2" = unlimited ] || wrap+=(setpriv --bounding-set=-ipc_lock)
	ulimit -l "$2"
	ulimit -n 8192 # 16 ranks of one process, with a communicator for each number of ranks, have over 1024 files open
	exec "${wrap[@]}" timeout -k 5 "$1" bash -c "$3"
}

row() { # NAME SECONDS SETUP COMMAND
	local word words loss='' memlock=unlimited down='' flap='' wire='' rc=0 before
	IFS=, read -ra words <<<"$3"
	for word in "${words[@]}"; do
		case $word in
		none | one | two | four) net_want "$word" || return 99 ;;
		loss=* | memlock=* | flap=* | down=*) printf -v "${word%%=*}" %s "${word#*=}" ;;
		down) down=all ;;
		wire) wire=1 ;;
		*) echo "vm: unknown set-up $word"; return 99 ;;
		esac
	done
	[ -z "$loss" ] || ports_loss "$loss" || return 99
	[ -z "$down" ] || ports_down "$down" || return 99
	if [ -n "$flap" ]; then ports_flap "$flap" & fi
	before=$(crossed)
	(
		if [ -n "$wire" ]; then export NET_SPREAD=1 NCCL_EP_NET_DEVICE=rxe0,rxe1; fi
		row_run "$2" "$memlock" "$4"
	) </dev/null || rc=$?
	if [ $rc = 0 ] && [ -n "$wire" ] && [ $(($(crossed) - before)) -lt 50 ]; then
		echo 'vm: nothing crossed the wire between the two devices'
		rc=98
	fi
	wait
	[ -z "$down" ] || ports_up
	[ -z "$loss" ] || ports_clean
	return $rc
}

ip link set lo up
while IFS='|' read -r name seconds setup command <&3; do
	say "begin $name"
	start=$(now_ms)
	row "$name" "$seconds" "$setup" "$command" >"$job/$name.log" 2>&1
	say "end $name $? $(($(now_ms) - start))"
done 3<$job/rows
say bye
