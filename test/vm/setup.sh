# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The guest's networks by name, and further settings of a row. Sourced by guest.sh.
#   none        no RDMA device
#   one         rxe0 on a dummy
#   two         rxe0 and rxe1 on the two ends of a veth pair
#   four        two such pairs that cannot reach each other: rxe0 and rxe1, rxe2 and rxe3
#   wire        ranks alternate between these two (NET_SPREAD for the rigs, NCCL_EP_NET_DEVICE for groups, which would
#               use the first, as software devices have no location); the row fails if nothing crossed the pair
#   loss=N%     packet loss of every device, in each direction
#   memlock=N   KiB that a process may lock, without CAP_IPC_LOCK
#   down        the ports are down; down=v0: that one, and with it the other end
#   flap=N      the ports go down for half a second, N seconds after the start of the row

# One process for many lines: starting one takes 30 ms in an emulated guest.
net_none() { :; }

net_one() {
	ip -batch - <<-'TEXT' && rdma link add rxe0 type rxe netdev d0
	link add d0 address 02:00:00:00:11:01 mtu 9000 type dummy
	addr add 10.11.0.1/24 dev d0
	link set d0 up
	addr add fd11::1/64 dev d0 nodad
	TEXT
}

# Both addresses are local: the default first rule would route every packet through lo, which has no RDMA device. So
# packets that leave by a device are looked up first in a table with that device only.
net_pairs() { # NUMBER
	local i p a b
	for ((p = 0; p < $1; p++)); do
		a=$((2 * p)) b=$((2 * p + 1))
		echo "link add v$a address $mac$a mtu 9000 type veth peer name v$b address $mac$b mtu 9000"
		echo "addr add 10.11.$p.1/24 dev v$a"
		echo "addr add 10.11.$p.2/24 dev v$b"
	done | ip -batch - || return
	for i in all $(ends); do
		echo 1 >"/proc/sys/net/ipv4/conf/$i/accept_local"
		echo 0 >"/proc/sys/net/ipv4/conf/$i/rp_filter"
	done
	for i in -4 -6; do
		{
			for p in $(ends); do echo "rule add pref 1${p#v} oif $p lookup 10${p#v}"; done
			echo $'rule add pref 20 lookup local\nrule del pref 0'
		} | ip $i -batch - || return
	done
	ports_up || return
	for i in $(ends); do rdma link add "rxe${i#v}" type rxe netdev "$i" || return; done
}
net_two() { net_pairs 1; }
net_four() { net_pairs 2; }

mac=02:00:00:00:11:0
ends() { for d in v0 v1 v2 v3; do [ ! -e "/sys/class/net/$d" ] || echo "$d"; done; }

# Routes, neighbours and IPv6 addresses are lost when a port goes down. A device is its own neighbour, too: rxe
# recognises loopback traffic by the hardware address.
up_one() { ip -batch - <<<$'link set d0 up\naddr replace fd11::1/64 dev d0 nodad'; }
up_pairs() {
	local i p d n ends
	ends=$(ends)
	{
		for d in $ends; do echo "link set $d up"; done
		for d in $ends; do
			i=${d#v} p=$((${d#v} / 2))
			echo "addr replace fd11:0:0:$p::$((i % 2 + 1))/64 dev $d nodad"
			echo "route replace 10.11.$p.0/24 dev $d src 10.11.$p.$((i % 2 + 1)) table 10$i"
			echo "route replace fd11:0:0:$p::/64 dev $d table 10$i"
			for n in 1 2; do
				echo "neigh replace 10.11.$p.$n lladdr $mac$((2 * p + n - 1)) dev $d"
				echo "neigh replace fd11:0:0:$p::$n lladdr $mac$((2 * p + n - 1)) dev $d"
			done
		done
	} | ip -batch -
}

netdevs() { [ ! -e /sys/class/net/d0 ] || echo d0; ends; }
ports_down() { if [ "$1" = all ]; then netdevs; else echo "$1"; fi | sed 's/.*/link set & down/' | ip -batch -; }
ports_up() { if [ -e /sys/class/net/v0 ]; then up_pairs; else up_one; fi; }
ports_flap() { sleep "$1" && ports_down all && sleep 0.5 && ports_up; }
ports_loss() { local d; for d in $(netdevs); do tc qdisc replace dev "$d" root netem loss "$1" || return; done; }
ports_clean() { local d; for d in $(netdevs); do tc qdisc del dev "$d" root; done; }

# Deleting a link deletes its routes and its RDMA device; rules stay.
net_clear() {
	local i d ends
	ends=$(ends)
	if [ -e /sys/class/net/d0 ]; then ip link del d0; fi
	[ -n "$ends" ] || return 0
	for d in v0 v2; do [ ! -e "/sys/class/net/$d" ] || ip link del $d || return; done
	for i in -4 -6; do
		{
			echo 'rule add pref 0 lookup local'
			for d in $ends; do echo "rule del pref 1${d#v}"; done
			echo 'rule del pref 20'
		} | ip $i -batch - || return
	done
}

# Packets sent by the ends of pairs; a few are the kernel's own (ARP).
crossed() {
	local d n sum=0
	for d in $(ends); do
		read -r n <"/sys/class/net/$d/statistics/tx_packets"
		sum=$((sum + n))
	done
	echo $sum
}
