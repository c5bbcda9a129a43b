#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In the guest: ep_info's verdict on the RDMA devices, against a program that runs LL between simulated nodes over the
# transport that it is given: ep_info.sh EP_INFO PROGRAM [SETTING]
#   EP_INFO PROGRAM         it names verbs, for all ports; and that works
#   EP_INFO PROGRAM verbs   NCCL_EP_NET=verbs with 64 KiB of locked memory: it says so, and that fails by the same reason
set -u
info=$1 program=$2 net=${3:-}
text=$(NCCL_EP_DEBUG=NONE NCCL_EP_NET=$net "$info")
verdict=$?
said=$(NCCL_EP_DEBUG=WARN "$program" verbs 2>&1)
works=$?
printf '%s\n' "$text" "ep_info: $verdict" "$said" "verbs: $works"

fail() { echo "ep_info.sh: $*" && exit 1; }
has() { grep -qE "$2" <<<"$1" || fail "not said: $2"; }
ports=(/sys/class/infiniband/*)
[ "$(grep -c '^  rxe[0-9]:1 .*ACTIVE.*RoCE v2' <<<"$text")" = ${#ports[@]} ] || fail 'not every active port is named'
if [ -z "$net" ]; then
	has "$text" '^  ranks of several hosts +verbs$'
	has "$text" '^# EP can run here'
	[ "$verdict $works" = '0 0' ] || fail 'it says that verbs works'
else
	has "$text" '^  locked memory +64 KiB'
	has "$text" '^# error: .*memlock.* 64 KiB'
	has "$text" '^# first: .*ulimit -l unlimited'
	has "$said" 'memlock.* is 64 KiB'
	[ "$verdict" != 0 ] && [ "$works" != 0 ] || fail 'it says that verbs does not work'
fi
