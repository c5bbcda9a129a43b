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
