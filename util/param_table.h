/* SPDX-License-Identifier: Apache-2.0 */
/* EP_PARAM(id, name, type, default, min, max, fallback names, sentence); included several times, so no guard. */
EP_PARAM(DEBUG, "NCCL_EP_DEBUG", EP_T_STR, "WARN", 0, 0, "NCCL_DEBUG", "Log level: NONE, VERSION, WARN, INFO or TRACE.")
EP_PARAM(DEBUG_FILE, "NCCL_EP_DEBUG_FILE", EP_T_STR, "", 0, 0, "NCCL_DEBUG_FILE",
	 "File the log is appended to instead of stderr; %h is the host, %p the process id.")
EP_PARAM(DEBUG_SUBSYS, "NCCL_EP_DEBUG_SUBSYS", EP_T_STR, "ALL", 0, 0, "",
	 "Subsystems whose INFO and TRACE lines are printed: INIT, BOOT, COMM, DEV, GROUP, ...; ^LIST means all but "
	 "those.")
EP_PARAM(SOCKET_IFNAME, "NCCL_EP_SOCKET_IFNAME", EP_T_STR, "", 0, 0, "NCCL_SOCKET_IFNAME UCCL_SOCKET_IFNAME",
	 "Interfaces of the bootstrap: prefixes by comma, =NAME exact, ^PREFIX excluded; empty picks the best that is "
	 "up.")
EP_PARAM(SOCKET_FAMILY, "NCCL_EP_SOCKET_FAMILY", EP_T_STR, "", 0, 0, "NCCL_SOCKET_FAMILY",
	 "AF_INET or AF_INET6 to use only that family for the bootstrap; empty allows both.")
EP_PARAM(BOOTSTRAP_TIMEOUT_MS, "NCCL_EP_BOOTSTRAP_TIMEOUT_MS", EP_T_INT, "60000", 1, 86400000, "",
	 "How long ranks wait for each other while a communicator or group is created.")
EP_PARAM(PEER_LOST_MS, "NCCL_EP_PEER_LOST_MS", EP_T_INT, "30000", 3000, 86400000, "",
	 "A host that acknowledges nothing for so long is lost, and its ranks are dead.")
EP_PARAM(TIMEOUT_MS, "NCCL_EP_TIMEOUT_MS", EP_T_INT, "0", 0, 86400000, "",
	 "Deadline of every wait of an operation; 0 takes the group's timeout_ns, else 100 s.")
EP_PARAM(DEVICE, "NCCL_EP_DEVICE", EP_T_STR, "auto", 0, 0, "",
	 "Device of communicators made by the stand-in: auto, host or cuda. A communicator of NCCL always brings its "
	 "GPU.")
EP_PARAM(HOST_ISA, "NCCL_EP_HOST_ISA", EP_T_STR, "auto", 0, 0, "",
	 "Vectors of the CPU device's kernels on x86-64: base, avx2, avx512, or auto: avx2 where the CPU has it.")
EP_PARAM(RANKS_PER_NODE, "NCCL_EP_RANKS_PER_NODE", EP_T_INT, "0", 0, 1048576, "",
	 "Splits the ranks into pretended nodes of this size (the last may be smaller), to run multi-node paths on one "
	 "box.")
EP_PARAM(P2P_DISABLE, "NCCL_EP_P2P_DISABLE", EP_T_BOOL, "0", 0, 0, "NCCL_P2P_DISABLE",
	 "1 makes every rank a node of its own, so that the network path is used inside a node too.")
EP_PARAM(MAX_SMS, "NCCL_EP_MAX_SMS", EP_T_INT, "0", 0, 65536, "",
	 "Upper limit of multiprocessors (blocks) per operation; 0 takes the group's max_num_sms, else the automatic "
	 "choice.")
EP_PARAM(CUDA_VMM, "NCCL_EP_CUDA_VMM", EP_T_BOOL, "1", 0, 0, "",
	 "0 shares windows on NVIDIA GPUs by cuMemAlloc and CUDA IPC instead of virtual memory handles.")
EP_PARAM(NET, "NCCL_EP_NET", EP_T_STR, "", 0, 0, "",
	 "Net between nodes: NAME, NAME:option=value,... or a wrapper NAME(INNER):...; A|B, ^A (all but A) or empty: "
	 "the first that works between all ranks.")
EP_PARAM(NET_DEVICE, "NCCL_EP_NET_DEVICE", EP_T_STR, "", 0, 0, "",
	 "Devices of the net this rank may take, by comma, as ep_info -n lists them; empty: those nearest by PCIe.")
EP_PARAM(RAILS, "NCCL_EP_RAILS", EP_T_INT, "0", 0, 8, "",
	 "Devices of the net a rank uses at once; 0 takes up to 4 that are equally near and that no other rank of the "
	 "host needs.")
EP_PARAM(ENGINES, "NCCL_EP_ENGINES", EP_T_INT, "0", 0, 8, "UCCL_NUM_PROXY_THREADS",
	 "Engine threads a rank uses between nodes; 0 takes 1 on the CPU and on small machines, else 2.")
EP_PARAM(GDR, "NCCL_EP_GDR", EP_T_BOOL, "1", 0, 0, "",
	 "0 sends rows of a GPU through memory of the CPU also where the NIC could read and write the GPU's.")
EP_PARAM(RING_ENTRIES, "NCCL_EP_RING_ENTRIES", EP_T_INT, "0", 0, 16777216, "",
	 "Commands a ring between kernels and an engine holds, rounded up to a power of two; 0 takes 1024 or, for a "
	 "GPU, 2048.")
EP_PARAM(NET_PLUGIN, "NCCL_EP_NET_PLUGIN", EP_T_STR, "", 0, 0, "",
	 "External nets, by comma: X is the library X or libnccl_ep_net-X.so; none means none.")
EP_PARAM(FABRIC_PROVIDER, "NCCL_EP_FABRIC_PROVIDER", EP_T_STR, "", 0, 0, "",
	 "libfabric provider of the net fabric: efa, cxi, tcp, shm, ...; empty takes the first of efa, cxi, tcp with a "
	 "device.")
EP_PARAM(IB_HCA, "NCCL_EP_IB_HCA", EP_T_STR, "", 0, 0, "NCCL_IB_HCA UCCL_IB_HCA",
	 "NICs of the net verbs: prefixes by comma, NAME:port, =NAME exact, ^ in front for all but those; empty: all.")
EP_PARAM(IB_GID_INDEX, "NCCL_EP_IB_GID_INDEX", EP_T_INT, "-1", -1, 255, "NCCL_IB_GID_INDEX UCCL_IB_GID_INDEX",
	 "Entry of the GID table the net verbs uses; -1 picks RoCE v2 with an IPv4 address, then with an IPv6 address.")
EP_PARAM(IB_ADDR_FAMILY, "NCCL_EP_IB_ADDR_FAMILY", EP_T_STR, "", 0, 0, "NCCL_IB_ADDR_FAMILY",
	 "AF_INET or AF_INET6 to pick only GIDs of that family; empty allows both.")
EP_PARAM(IB_QPS_PER_CONNECTION, "NCCL_EP_IB_QPS_PER_CONNECTION", EP_T_INT, "1", 1, 128, "NCCL_IB_QPS_PER_CONNECTION",
	 "Queue pairs to a peer, 8 at most, fewer as ranks grow; with more than one the net is unordered.")
EP_PARAM(IB_TC, "NCCL_EP_IB_TC", EP_T_INT, "0", 0, 255, "NCCL_IB_TC UCCL_IB_TC", "Traffic class of the net verbs.")
EP_PARAM(IB_SL, "NCCL_EP_IB_SL", EP_T_INT, "0", 0, 15, "NCCL_IB_SL UCCL_IB_SL", "Service level of the net verbs.")
EP_PARAM(IB_TIMEOUT, "NCCL_EP_IB_TIMEOUT", EP_T_INT, "18", 1, 31, "NCCL_IB_TIMEOUT",
	 "A NIC sends again what was not acknowledged for 4.096 us times two to this power (18: 1.07 s).")
EP_PARAM(IB_RETRY_CNT, "NCCL_EP_IB_RETRY_CNT", EP_T_INT, "7", 0, 7, "NCCL_IB_RETRY_CNT",
	 "How often a NIC sends again before the peer is lost.")
EP_PARAM(IB_PKEY, "NCCL_EP_IB_PKEY", EP_T_INT, "0", 0, 65535, "NCCL_IB_PKEY",
	 "Entry of the partition key table the net verbs uses.")
EP_PARAM(IB_MTU, "NCCL_EP_IB_MTU", EP_T_INT, "0", 0, 4096, "",
	 "Largest packet of the net verbs: 256, 512, 1024, 2048 or 4096 bytes; 0 takes what both ports can.")
EP_PARAM(MAX_INFLIGHT_BYTES, "NCCL_EP_MAX_INFLIGHT_BYTES", EP_T_INT, "-1", -1, 1099511627776,
	 "UCCL_IB_MAX_INFLIGHT_BYTES",
	 "Bytes a rank has in flight at once over the net verbs; 0: no limit, -1: as the NIC's profile says.")
EP_PARAM(MAX_INFLIGHT_LL, "NCCL_EP_MAX_INFLIGHT_LL", EP_T_INT, "-1", -1, 1048576, "UCCL_IB_MAX_INFLIGHT_LOW_LATENCY",
	 "The same for puts, of LL operations.")
EP_PARAM(MAX_INFLIGHT_HT, "NCCL_EP_MAX_INFLIGHT_HT", EP_T_INT, "-1", -1, 1048576, "UCCL_IB_MAX_INFLIGHT_NORMAL",
	 "The same for puts, of HT operations.")
