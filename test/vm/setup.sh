# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The guest's networks by name, and further settings of a row. Sourced by guest.sh.
#   none        no RDMA device
#   one         rxe0 on a dummy
#   two         rxe0 and rxe1 on the two ends of a veth pair
#   wire        ranks alternate between these two (NET_SPREAD for the rigs, NCCL_EP_NET_DEVICE for groups, which would
#               use the first, as software devices have no location); the row fails if nothing crossed the pair
#   loss=N%     packet loss of every device, in each direction
#   memlock=N   KiB that a process may lock, without CAP_IPC_LOCK
#   down        the ports are down
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
net_two() {
	local i
	ip -batch - <<-'TEXT' || return
	link add v0 address 02:00:00:00:11:01 mtu 9000 type veth peer name v1 address 02:00:00:00:11:02 mtu 9000
	addr add 10.11.0.1/24 dev v0
	addr add 10.11.0.2/24 dev v1
	TEXT
	for i in all v0 v1; do
		echo 1 >"/proc/sys/net/ipv4/conf/$i/accept_local"
		echo 0 >"/proc/sys/net/ipv4/conf/$i/rp_filter"
	done
	for i in -4 -6; do
		ip $i -batch - <<-'TEXT' || return
		rule add pref 10 oif v0 lookup 100
		rule add pref 11 oif v1 lookup 101
		rule add pref 20 lookup local
		rule del pref 0
		TEXT
	done
	ports_up && rdma link add rxe0 type rxe netdev v0 && rdma link add rxe1 type rxe netdev v1
}

# Routes, neighbours and IPv6 addresses are lost when a port goes down. A device is its own neighbour, too: rxe
# recognises loopback traffic by the hardware address.
up_one() { ip -batch - <<<$'link set d0 up\naddr replace fd11::1/64 dev d0 nodad'; }
up_two() {
	ip -batch - <<-'TEXT'
	link set v0 up
	link set v1 up
	addr replace fd11::1/64 dev v0 nodad
	addr replace fd11::2/64 dev v1 nodad
	route replace 10.11.0.0/24 dev v0 src 10.11.0.1 table 100
	route replace 10.11.0.0/24 dev v1 src 10.11.0.2 table 101
	route replace fd11::/64 dev v0 table 100
	route replace fd11::/64 dev v1 table 101
	neigh replace 10.11.0.1 lladdr 02:00:00:00:11:01 dev v0
	neigh replace 10.11.0.2 lladdr 02:00:00:00:11:02 dev v0
	neigh replace 10.11.0.1 lladdr 02:00:00:00:11:01 dev v1
	neigh replace 10.11.0.2 lladdr 02:00:00:00:11:02 dev v1
	neigh replace fd11::1 lladdr 02:00:00:00:11:01 dev v0
	neigh replace fd11::2 lladdr 02:00:00:00:11:02 dev v0
	neigh replace fd11::1 lladdr 02:00:00:00:11:01 dev v1
	neigh replace fd11::2 lladdr 02:00:00:00:11:02 dev v1
	TEXT
}

netdevs() { for d in d0 v0 v1; do [ ! -e "/sys/class/net/$d" ] || echo "$d"; done; }
ports_down() { netdevs | sed 's/.*/link set & down/' | ip -batch -; }
ports_up() { if [ -e /sys/class/net/v0 ]; then up_two; else up_one; fi; }
ports_flap() { sleep "$1" && ports_down && sleep 0.5 && ports_up; }
ports_loss() { local d; for d in $(netdevs); do tc qdisc replace dev "$d" root netem loss "$1" || return; done; }
ports_clean() { local d; for d in $(netdevs); do tc qdisc del dev "$d" root; done; }

# Deleting a link deletes its routes and its RDMA device; rules stay.
net_clear() {
	local i
	if [ -e /sys/class/net/d0 ]; then ip link del d0; fi
	[ -e /sys/class/net/v0 ] || return 0
	ip link del v0
	for i in -4 -6; do
		ip $i -batch - <<<$'rule add pref 0 lookup local\nrule del pref 10\nrule del pref 11\nrule del pref 20' || return
	done
}

# Packets sent by either end of the pair; a few are the kernel's own (ARP).
crossed() {
	local a=0 b=0
	read -r a 2>/dev/null </sys/class/net/v0/statistics/tx_packets
	read -r b 2>/dev/null </sys/class/net/v1/statistics/tx_packets
	echo $((a + b))
}
