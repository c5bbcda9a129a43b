/* SPDX-License-Identifier: Apache-2.0 */
/* EP_PARAM(id, name, type, default, min, max, fallback names, description); included several times: no guard. */
EP_PARAM(DEBUG, "NCCL_EP_DEBUG", EP_T_STR, "WARN", 0, 0, "NCCL_DEBUG", "Log level: NONE, VERSION, WARN, INFO or TRACE.")
EP_PARAM(DEBUG_FILE, "NCCL_EP_DEBUG_FILE", EP_T_STR, "", 0, 0, "NCCL_DEBUG_FILE",
	 "File the log is appended to instead of stderr; %h is the host name, %p the process id.")
EP_PARAM(DEBUG_SUBSYS, "NCCL_EP_DEBUG_SUBSYS", EP_T_STR, "ALL", 0, 0, "",
	 "Subsystems whose INFO and TRACE lines are printed: INIT, BOOT, COMM, DEV, GROUP, ...; ^LIST: all but those.")
EP_PARAM(SOCKET_IFNAME, "NCCL_EP_SOCKET_IFNAME", EP_T_STR, "", 0, 0, "NCCL_SOCKET_IFNAME UCCL_SOCKET_IFNAME",
	 "Interfaces of the bootstrap: comma-separated prefixes, =NAME exact, ^PREFIX excluded; empty: the best that "
	 "is up.")
EP_PARAM(SOCKET_FAMILY, "NCCL_EP_SOCKET_FAMILY", EP_T_STR, "", 0, 0, "NCCL_SOCKET_FAMILY",
	 "AF_INET or AF_INET6: only that address family for the bootstrap; empty: both.")
EP_PARAM(BOOTSTRAP_TIMEOUT_MS, "NCCL_EP_BOOTSTRAP_TIMEOUT_MS", EP_T_INT, "60000", 1, 86400000, "",
	 "How long ranks wait for each other in a call that creates or destroys a communicator or group.")
EP_PARAM(PEER_LOST_MS, "NCCL_EP_PEER_LOST_MS", EP_T_INT, "30000", 3000, 86400000, "",
	 "If a host acknowledges nothing for this long, its ranks are dead.")
EP_PARAM(TIMEOUT_MS, "NCCL_EP_TIMEOUT_MS", EP_T_INT, "0", 0, 86400000, "",
	 "Deadline of every wait in an operation; 0: the group's timeout_ns, else 100 s.")
EP_PARAM(DUMP_DIR, "NCCL_EP_DUMP_DIR", EP_T_STR, "", 0, 0, "",
	 "Folder to which every rank of a group that fails writes what it was doing, for ep_info --dump; empty: none.")
EP_PARAM(TRACE, "NCCL_EP_TRACE", EP_T_STR, "", 0, 0, "",
	 "File to which every rank adds a trace of its operations when a group ends, for ui.perfetto.dev; empty: none.")
EP_PARAM(DEVICE, "NCCL_EP_DEVICE", EP_T_STR, "auto", 0, 0, "",
	 "Device of the stand-in's communicators: auto, host or cuda. With NCCL's communicators the device is NCCL's.")
EP_PARAM(HOST_ISA, "NCCL_EP_HOST_ISA", EP_T_STR, "auto", 0, 0, "",
	 "Vectors of the host device's kernels on x86-64: base, avx2 or avx512; auto: the widest that the CPU has.")
EP_PARAM(
	RANKS_PER_NODE, "NCCL_EP_RANKS_PER_NODE", EP_T_STR, "", 0, 0, "",
	"Splits a machine into nodes of this many ranks (the last may be smaller), or of a list of sizes such as 2,1,4 "
	"(the last repeats), to run multi-node paths on it.")
EP_PARAM(P2P_DISABLE, "NCCL_EP_P2P_DISABLE", EP_T_BOOL, "0", 0, 0, "NCCL_P2P_DISABLE",
	 "1: no rank maps another's memory: LL uses the network inside a node too, HT goes through host memory.")
EP_PARAM(COMM_SMS, "NCCL_EP_COMM_SMS", EP_T_INT, "0", 0, 65536, "NCCL_EP_MAX_SMS",
	 "SMs (blocks) of every operation, before the group's configuration; unset: dispatch_num_sms, combine_num_sms, "
	 "max_num_sms, else automatic.")
EP_PARAM(DISPATCH_SMS, "NCCL_EP_DISPATCH_SMS", EP_T_INT, "0", 0, 65536, "", "SMs of dispatch, before NCCL_EP_COMM_SMS.")
EP_PARAM(COMBINE_SMS, "NCCL_EP_COMBINE_SMS", EP_T_INT, "0", 0, 65536, "", "The same for combine.")
EP_PARAM(PREPROCESS_NUM_SMS, "NCCL_EP_PREPROCESS_NUM_SMS", EP_T_INT, "0", 0, 65536, "",
	 "The same for HT's ncclEpUpdateHandle, which uses up to 128.")
EP_PARAM(CUDA_VMM, "NCCL_EP_CUDA_VMM", EP_T_BOOL, "1", 0, 0, "",
	 "0: share windows on NVIDIA GPUs by cuMemAlloc and CUDA IPC instead of virtual memory handles.")
EP_PARAM(NET, "NCCL_EP_NET", EP_T_STR, "", 0, 0, "",
	 "Transport between nodes: NAME, NAME:option=value,..., a wrapper NAME(INNER):..., A|B, ^A (all but A); empty: "
	 "the first available on every rank.")
EP_PARAM(NET_DEVICE, "NCCL_EP_NET_DEVICE", EP_T_STR, "", 0, 0, "",
	 "Comma-separated network devices this rank may use, as ep_info -n lists them; empty: the nearest by PCIe.")
EP_PARAM(RAILS, "NCCL_EP_RAILS", EP_T_INT, "0", 0, 8, "",
	 "Network devices a rank uses at once; 0: up to 4 that are equally near and that no other rank of the host "
	 "needs.")
EP_PARAM(ENGINES, "NCCL_EP_ENGINES", EP_T_INT, "0", 0, 8, "UCCL_NUM_PROXY_THREADS",
	 "Engine threads per rank for traffic between nodes; 0: 1 on the host device and on small machines, else 2.")
EP_PARAM(ENGINE_CPUS, "NCCL_EP_ENGINE_CPUS", EP_T_STR, "", 0, 0, "",
	 "CPUs for engine threads, as a list such as 0-3,8; inherit: those of the process; empty: those near the NIC "
	 "that the process may use, or, if it is bound to one core, others.")
EP_PARAM(ENGINE_NAP, "NCCL_EP_ENGINE_NAP", EP_T_BOOL, "1", 0, 0, "",
	 "0: engine threads never sleep, not even between operations; each then keeps a CPU busy.")
EP_PARAM(GDR, "NCCL_EP_GDR", EP_T_INT, "1", 0, 2, "",
	 "1: a NIC accesses device memory where it can, unless it is on another CPU socket; 2: there, too; 0: staged "
	 "through host memory.")
EP_PARAM(NET_FORCE_FLUSH, "NCCL_EP_NET_FORCE_FLUSH", EP_T_BOOL, "0", 0, 0, "NCCL_NET_FORCE_FLUSH",
	 "1: flush what a NIC wrote to device memory before every signal, also on GPUs that do not need it.")
EP_PARAM(RING_ENTRIES, "NCCL_EP_RING_ENTRIES", EP_T_INT, "0", 0, 16777216, "",
	 "Commands per ring between kernels and an engine, rounded up to a power of two; 0: 1024 or, for a GPU, 2048.")
EP_PARAM(NET_PLUGIN, "NCCL_EP_NET_PLUGIN", EP_T_STR, "", 0, 0, "",
	 "Comma-separated external transports: X is the library X or libnccl_ep_net-X.so; none: no external transport.")
EP_PARAM(FABRIC_PROVIDER, "NCCL_EP_FABRIC_PROVIDER", EP_T_STR, "", 0, 0, "",
	 "libfabric provider of the fabric transport: efa, cxi, tcp, shm, ...; empty: the first of efa, cxi, tcp with "
	 "a device.")
EP_PARAM(IB_HCA, "NCCL_EP_IB_HCA", EP_T_STR, "", 0, 0, "NCCL_IB_HCA UCCL_IB_HCA",
	 "NICs of the verbs transport: comma-separated prefixes, NAME:port, =NAME exact, ^ in front: all but those; "
	 "empty: all.")
EP_PARAM(IB_GID_INDEX, "NCCL_EP_IB_GID_INDEX", EP_T_INT, "-1", -1, 255, "NCCL_IB_GID_INDEX UCCL_IB_GID_INDEX",
	 "GID table index of the verbs transport; -1: RoCE v2 with an IPv4 address, else with an IPv6 address.")
EP_PARAM(IB_ADDR_FAMILY, "NCCL_EP_IB_ADDR_FAMILY", EP_T_STR, "", 0, 0, "NCCL_IB_ADDR_FAMILY",
	 "AF_INET or AF_INET6: only GIDs of that family; empty: both.")
EP_PARAM(IB_QPS_PER_CONNECTION, "NCCL_EP_IB_QPS_PER_CONNECTION", EP_T_INT, "1", 1, 128, "NCCL_IB_QPS_PER_CONNECTION",
	 "Queue pairs per peer, at most 8, fewer with many ranks; with more than one the transport is unordered.")
EP_PARAM(IB_TC, "NCCL_EP_IB_TC", EP_T_INT, "-1", -1, 255, "NCCL_IB_TC UCCL_IB_TC",
	 "Traffic class of the verbs transport; -1: from the NIC's profile.")
EP_PARAM(IB_SL, "NCCL_EP_IB_SL", EP_T_INT, "-1", -1, 15, "NCCL_IB_SL UCCL_IB_SL",
	 "Service level of the verbs transport; -1: from the NIC's profile.")
EP_PARAM(IB_TIMEOUT, "NCCL_EP_IB_TIMEOUT", EP_T_INT, "18", 1, 31, "NCCL_IB_TIMEOUT",
	 "Retransmission timeout of the NIC: 4.096 us times two to this power (18: 1.07 s); lowered where all "
	 "retransmissions would take longer than NCCL_EP_PEER_LOST_MS.")
EP_PARAM(IB_RETRY_CNT, "NCCL_EP_IB_RETRY_CNT", EP_T_INT, "7", 0, 7, "NCCL_IB_RETRY_CNT",
	 "Retransmissions by the NIC before the peer is lost.")
EP_PARAM(IB_PKEY, "NCCL_EP_IB_PKEY", EP_T_INT, "0", 0, 65535, "NCCL_IB_PKEY",
	 "Partition key table index of the verbs transport.")
EP_PARAM(IB_MTU, "NCCL_EP_IB_MTU", EP_T_INT, "0", 0, 4096, "",
	 "Path MTU of the verbs transport: 256, 512, 1024, 2048 or 4096 bytes; 0: the largest both ports support.")
EP_PARAM(MAX_INFLIGHT_BYTES, "NCCL_EP_MAX_INFLIGHT_BYTES", EP_T_INT, "-1", -1, 1099511627776,
	 "UCCL_IB_MAX_INFLIGHT_BYTES",
	 "Maximum bytes in flight per rank over the verbs transport; 0: no limit (HT: 16 MiB), -1: from the NIC's "
	 "profile.")
EP_PARAM(MAX_INFLIGHT_LL, "NCCL_EP_MAX_INFLIGHT_LL", EP_T_INT, "-1", -1, 1048576, "",
	 "Maximum puts in flight per rank, for LL operations; 0 and -1 as above.")
EP_PARAM(MAX_INFLIGHT_RING, "NCCL_EP_MAX_INFLIGHT_RING", EP_T_INT, "-1", -1, 1048576,
	 "UCCL_IB_MAX_INFLIGHT_LOW_LATENCY",
	 "Maximum puts in flight per command ring, for LL operations; 0 and -1 as above.")
EP_PARAM(MAX_INFLIGHT_HT, "NCCL_EP_MAX_INFLIGHT_HT", EP_T_INT, "-1", -1, 1048576, "UCCL_IB_MAX_INFLIGHT_NORMAL",
	 "Maximum puts in flight per rank, for HT operations; 0 and -1 as above.")
