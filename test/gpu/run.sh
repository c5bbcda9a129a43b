#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Device tests on a machine with an NVIDIA GPU; `./run gpu` ends here. Works offline: compilers, meson, ninja, nvcc and
# the driver are all it needs. Each shard takes under 8 minutes and can be run alone. The shard cpu is the CPU suite on
# that machine, which needs neither nvcc nor a GPU.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
export PATH="$PATH:/usr/local/cuda/bin"
build=${BUILD:-build-gpu}
logs=$build/gpu-logs

# shard|name|seconds|how|program and arguments
#   how: plain, mps (processes share the GPU under our own MPS daemon), ipc (mps, windows by CUDA IPC), memcheck,
#   racecheck, memcheck-mps, racecheck-mps, table and table-mps (the output is shown), nccl (with the real library),
#   suite (of meson), te and te-mps (on the library as it is installed)
#   @FILE: in the build's test folder; words of a cell are joined by commas; leading VARIABLE=value set the environment
rows=(
	'dev|devices|60|plain|gpu_dev'
	'dev|windows|90|plain|gpu_share'
	'dev|capture|60|plain|gpu_capture'
	'dev|launch|60|plain|gpu_launch'
	'dev|ring-push|120|plain|gpu_ring_push cuda'
	'dev|ring-full|60|plain|gpu_ring_full cuda'
	'check|check-threads|60|plain|LD_LIBRARY_PATH=@../plugin info_check.sh @../perf/ep_info GPU -t 1 2 4'
	'check|check-nodes|60|plain|NCCL_EP_RANKS_PER_NODE=2 NCCL_EP_NET=loop LD_LIBRARY_PATH=@../plugin info_check.sh @../perf/ep_info GPU -t 4'
	'check|check-procs|90|mps|LD_LIBRARY_PATH=@../plugin info_check.sh @../perf/ep_info GPU -g 1 2 4'
	'check|check-nccl|60|nccl|info_check.sh @../perf/ep_info GPU -t 1'
	'threads|rowsig|300|plain|gpu_rowsig cuda'
	'threads|rowsig-fail|120|plain|gpu_rowsig_fail cuda'
	'threads|standin|60|plain|standin_gpu'
	'nccl|example-nccl|60|nccl|example 1'
	'nccl|both-nccl-first|60|plain|gpu_both %NCCL% @../plugin/libnccl.so.2'
	'nccl|both-nccl-last|60|plain|gpu_both @../plugin/libnccl.so.2 %NCCL%'
	'procs|windows-mps|120|mps|gpu_share'
	'procs|reach-mps|240|mps|gpu_reach'
	'procs|rowsig-mps|240|mps|gpu_rowsig_procs cuda'
	'procs|rowsig-ipc|240|ipc|gpu_rowsig_procs cuda'
	'mps|mps-shares|300|table-mps|mps_shares.sh @../perf/ep_perf @gpu/mps_place'
	'll|ll-matrix|300|plain|t_ll_matrix -f @ll/ll_cells_2.txt'
	'll|ll-staged|120|plain|t_ll_staged'
	'll|ll-graph|300|plain|t_ll_staged -G 1000'
	'll|ll-bits|60|plain|t_ll_bits -x 0x58259bb62e888db0'
	'll|ll-fma|60|plain|t_ll_fma'
	'll|ll-handles|60|plain|t_ll_handles'
	'll|ll-soak|120|plain|t_ll_soak -n 1000'
	'll|ll-filler-1|120|plain|t_ll_matrix -F 120 -r ranks=1,sms=4,hidden=7168,topk=8,local=8,tmax=16'
	'll|ll-filler-2|120|plain|t_ll_matrix -F 120 -r ranks=2,sms=4,hidden=7168,topk=8,local=5,tmax=16'
	'll-procs|ll-matrix-mps|300|mps|t_ll_matrix -g -f @ll/ll_cells_2.txt'
	'll-procs|ll-bits-mps|60|mps|t_ll_bits -g -x 0x58259bb62e888db0'
	'll-procs|ll-fma-mps|60|mps|t_ll_fma -g'
	'll-procs|ll-staged-mps|120|mps|t_ll_staged -g'
	'll-procs|ll-soak-mps|120|mps|t_ll_soak -g 4 -n 1000'
	'll-nodes|ll-nodes-matrix|300|plain|t_ll_matrix -f @ll/ll_cells_net_2.txt'
	'll-nodes|ll-nodes-many|120|plain|t_ll_matrix -f @ll/ll_cells_many.txt'
	'll-nodes|ll-nodes-staged|120|plain|t_ll_staged -N 2'
	'll-nodes|ll-nodes-graph|300|plain|t_ll_staged -N 2 -G 100'
	'll-nodes|ll-nodes-open|60|plain|t_link_open'
	'll-nodes|ll-nodes-soak|120|plain|t_ll_soak -N 2 -n 300 -k faulty'
	'll-nodes|ll-direct-matrix|300|plain|NCCL_EP_NET_PLUGIN=@gpu/libnet_copy.so t_ll_matrix -k copy:strict=1 -f @ll/ll_cells_net_2.txt'
	'll-nodes|ll-direct-dmabuf|300|plain|NCCL_EP_NET_PLUGIN=@gpu/libnet_copy.so t_ll_soak -N 2 -n 300 -k copy:dmabuf=1'
	'll-nodes|ll-direct-graph|300|plain|NCCL_EP_NET_PLUGIN=@gpu/libnet_copy.so t_ll_staged -N 2 -G 100 -k copy:strict=1'
	'll-nodes|ll-direct-refused|300|plain|NCCL_EP_NET_PLUGIN=@gpu/libnet_copy.so t_ll_soak -N 2 -n 100 -k copy:refuse=1'
	'net-sm|sm-pace|60|plain|NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_net_sm_pace sms=8'
	'net-sm|sm-wider|60|plain|NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_net_sm_wider sms=8'
	'net-sm|sm-moves|120|plain|NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_net_moves sm sm:unordered=1 sm:rate=400,latency=5000 sm:sms=1,warps=4 sm:idle=0'
	'net-sm|sm-order|60|plain|NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_net_order sm sm:unordered=1 sm:rate=400,latency=5000'
	'net-sm|sm-matrix|300|plain|NCCL_EP_COMM_SMS=8 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ll_matrix -k sm:rate=400,latency=5000 -f @ll/ll_cells_net_2.txt'
	'net-sm|sm-matrix-unordered|300|plain|NCCL_EP_COMM_SMS=8 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ll_matrix -k sm:unordered=1,latency=5000 -f @ll/ll_cells_net_2.txt'
	'net-sm|sm-many|120|plain|NCCL_EP_COMM_SMS=8 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ll_matrix -k sm:rate=400,latency=5000 -f @ll/ll_cells_many.txt'
	'net-sm|sm-many-unordered|120|plain|NCCL_EP_COMM_SMS=8 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ll_matrix -k sm:unordered=1,latency=5000 -f @ll/ll_cells_many.txt'
	'net-sm|sm-many-memcheck|180|memcheck|NCCL_EP_COMM_SMS=8 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ll_matrix -k sm:latency=5000 -r ranks=4,nodes=2,net=loop,sms=2,hidden=512,topk=8,local=5,tmax=100'
	'net-sm|sm-graph|300|plain|NCCL_EP_COMM_SMS=8 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ll_staged -N 2 -G 100 -k sm:rate=400,latency=5000'
	'net-sm|sm-graph-unordered|300|plain|NCCL_EP_COMM_SMS=8 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ll_staged -N 2 -G 100 -k sm:unordered=1'
	'net-sm|sm-soak|120|plain|NCCL_EP_COMM_SMS=8 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ll_soak -N 2 -n 300 -k sm:rate=100,latency=2000'
	'net-sm|sm-moves-memcheck|180|memcheck|NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_net_moves sm sm:unordered=1'
	'net-sm|sm-memcheck|180|memcheck|NCCL_EP_COMM_SMS=8 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ll_matrix -k sm:latency=5000 -r ranks=2,nodes=2,net=loop,sms=4,hidden=7168,topk=8,local=5,tmax=16'
	'net-sm|sm-memcheck-unordered|180|memcheck|NCCL_EP_COMM_SMS=8 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ll_matrix -k sm:unordered=1 -r ranks=4,nodes=2,net=loop,sms=4,hidden=512,layout=rm,topk=3,tmax=5,staged=2'
	'net-sm|sm-racecheck|180|racecheck|NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_net_moves sm:sms=2,warps=5'
	'll-nodes|ll-nodes-matrix-mps|300|mps|t_ll_matrix -g -f @ll/ll_cells_net_2.txt'
	'll-nodes|ll-nodes-many-racecheck|180|racecheck|t_ll_matrix -r ranks=4,nodes=2,net=loop,sms=2,hidden=512,topk=8,local=5,tmax=100'
	'll-nodes|ll-nodes-graph-mps|300|mps|t_ll_staged -g -N 2 -G 100 -k unordered'
	'll|destroy-running|120|plain|t_destroy_running'
	'll-procs|destroy-running-mps|120|mps|t_destroy_running -g'
	'threads|barrier|120|plain|t_barrier'
	'threads|barrier-nodes|120|plain|t_barrier -N 2'
	'procs|barrier-mps|120|mps|t_barrier -g'
	'procs|barrier-nodes-mps|120|mps|t_barrier -g -N 1 -k unordered'
	'ht|ht-matrix|300|plain|t_ht_matrix -f @ht/ht_cells_2.txt'
	'ht|ht-overflow|120|plain|t_ht_overflow'
	'ht|ht-groups|120|plain|t_ht_groups -n 1000'
	'ht|ht-bits|60|plain|t_ht_bits -x 0x8134d6cb9cbf2ca3'
	'ht|ht-graph|300|plain|t_ht_graph'
	'ht|ht-filler-1|120|plain|t_ht_matrix -F 120 -r ranks=1,sms=4,hidden=7168,topk=8,local=8,tmax=16'
	'ht|ht-filler-2|120|plain|t_ht_matrix -F 120 -r ranks=2,sms=4,hidden=7168,topk=8,local=5,tmax=16,tensors=window'
	'ht-procs|ht-matrix-mps|300|mps|t_ht_matrix -g -f @ht/ht_cells_2.txt'
	'ht-procs|ht-overflow-mps|120|mps|t_ht_overflow -g'
	'ht|ht-count|60|plain|t_ht_count'
	'ht|ht-unlike|60|plain|t_ht_unlike'
	'ht-procs|ht-count-mps|60|mps|t_ht_count -g'
	'ht-procs|ht-unlike-mps|60|mps|t_ht_unlike -g'
	'ht-procs|ht-groups-mps|120|mps|t_ht_groups -g 4 -n 1000'
	'ht-procs|ht-bits-mps|60|mps|t_ht_bits -g -x 0x8134d6cb9cbf2ca3'
	'ht-procs|ht-graph-mps|300|mps|t_ht_graph -g'
	'ht-procs|ht-churn-mps|120|mps|t_ht_churn -g 4 -n 60'
	'ht-procs|ht-churn-plain-mps|120|mps|t_ht_churn -g 4 -n 60 -p'
	'torch|torch-segments|300|mps|torch_churn.py'
	'torch|torch-expandable|300|mps|torch_churn.py --expandable'
	'ht|ht-host-memory|300|plain|NCCL_EP_P2P_DISABLE=1 t_ht_matrix -n 60 -s 7'
	'ht-procs|ht-host-memory-mps|300|mps|NCCL_EP_P2P_DISABLE=1 t_ht_matrix -g -n 60 -s 7'
	'memcheck|ll-memcheck-1|120|memcheck|t_ll_matrix -r ranks=1,sms=4,hidden=7168,topk=8,local=8,tmax=16'
	'memcheck|ll-memcheck-2|120|memcheck|t_ll_matrix -r ranks=2,sms=4,hidden=7168,topk=8,local=5,tmax=16,staged=2'
	'memcheck|ll-memcheck-4|120|memcheck|t_ll_matrix -r ranks=4,sms=4,layout=rm,hidden=512,quant=ds,topk=3,tmax=5,handles=nest'
	'memcheck|ll-scales-memcheck|120|memcheck|t_ll_matrix -r ranks=2,nodes=2,net=loop,sms=4,hidden=7168,quant=ds,scales=columns,topk=8,local=5,tmax=16'
	'memcheck|ll-nodes-memcheck|120|memcheck|t_ll_matrix -r ranks=2,nodes=2,net=loop,sms=4,hidden=7168,topk=8,local=5,tmax=16'
	'memcheck|ht-memcheck-1|120|memcheck|t_ht_matrix -r ranks=1,sms=4,hidden=7168,topk=8,local=8,tmax=16'
	'memcheck|ht-memcheck-2|120|memcheck|t_ht_matrix -r ranks=2,sms=4,layout=em,align=16,hidden=512,topk=3,tmax=16,tensors=window'
	'memcheck|ht-memcheck-4|120|memcheck|t_ht_matrix -r ranks=4,sms=4,hidden=129,topk=3,tmax=5,tensors=mixed,overflow=drop,recv=tight,handles=nest'
	'memcheck|ht-memcheck-count|120|memcheck|t_ht_matrix -r ranks=2,sms=4,layout=em,align=16,hidden=512,topk=3,tmax=16,quant=fwd,qtok=e4m3,qscale=uint8,back=fwd,pass=both,count=64,pinned=1'
	'memcheck-procs|ht-memcheck-stage|180|memcheck-mps|t_ht_matrix -g -r ranks=2,sms=4,layout=em,hidden=64,quant=fwd,qtok=e4m3,qscale=fp32,zero_copy=off,recv=eager'
	'memcheck-procs|ht-memcheck-mps|180|memcheck-mps|t_ht_matrix -g -r ranks=2,sms=4,hidden=512,topk=3,tmax=16,tensors=mixed'
	'memcheck-procs|ht-churn-memcheck|180|memcheck-mps|t_ht_churn -n 5 -p'
	'memcheck-procs|ht-graph-memcheck|240|memcheck-mps|t_ht_graph -g -w -n 3'
	'memcheck-procs|ll-graph-memcheck|180|memcheck-mps|t_ll_staged -g -G 5'
	'memcheck-procs|ll-nodes-memcheck-mps|180|memcheck-mps|t_ll_matrix -g -r ranks=4,nodes=2,net=unordered,sms=4,hidden=512,layout=rm,topk=3,tmax=5,staged=2'
	'memcheck-procs|ll-nodes-graph-memcheck|180|memcheck-mps|t_ll_staged -g -N 2 -G 3'
	'racecheck|ll-nodes-racecheck|120|racecheck|t_ll_matrix -r ranks=2,nodes=2,net=loop,sms=4,hidden=512,topk=2,tmax=5'
	'racecheck|ll-racecheck-1|120|racecheck|t_ll_matrix -r ranks=1,sms=4,hidden=512,topk=2,tmax=5'
	'racecheck|ll-racecheck-2|120|racecheck-mps|t_ll_matrix -g -r ranks=2,sms=4,hidden=512,topk=2,tmax=5'
	'racecheck|ll-fp8-racecheck|120|racecheck|t_ll_matrix -r ranks=2,sms=4,hidden=1024,quant=ds,topk=2,tmax=5'
	'racecheck|ll-scales-racecheck|120|racecheck|t_ll_matrix -r ranks=2,sms=4,hidden=1024,quant=ds_round,scales=exponents,topk=2,tmax=5'
	'racecheck|ht-racecheck-1|120|racecheck|t_ht_matrix -r ranks=1,sms=4,hidden=512,topk=2,tmax=5'
	'racecheck|ht-racecheck-2|120|racecheck|t_ht_matrix -r ranks=2,sms=4,hidden=512,topk=2,tmax=5'
	'racecheck|ht-racecheck-em|120|racecheck|t_ht_matrix -r ranks=2,sms=4,layout=em,align=4,hidden=512,topk=2,tmax=5,zero_copy=off'
	'ht-nodes|ht-nodes-matrix|300|plain|t_ht_matrix -f @ht/ht_cells_net_2.txt'
	'ht-nodes|ht-nodes-graph|300|plain|t_ht_graph -N 2'
	'ht-nodes|ht-nodes-groups|120|plain|t_ht_groups -N 2 -n 100'
	'ht-nodes|ht-nodes-filler|120|plain|t_ht_matrix -F 110 -r nodes=2,per=2,net=loop,sms=1,hidden=7168,topk=8,local=5,tmax=16,tensors=window'
	'ht-nodes|ht-direct-matrix|300|plain|NCCL_EP_COMM_SMS=4 NCCL_EP_NET_PLUGIN=@gpu/libnet_copy.so t_ht_matrix -k copy:strict=1 -f @ht/ht_cells_net_2.txt'
	'ht-nodes|ht-sm-matrix|300|plain|NCCL_EP_COMM_SMS=7 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ht_matrix -k sm:rate=400,latency=5000 -f @ht/ht_cells_net_2.txt'
	'ht-nodes|ht-sm-matrix-unordered|300|plain|NCCL_EP_COMM_SMS=7 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so t_ht_matrix -k sm:unordered=1,latency=5000 -f @ht/ht_cells_net_2.txt'
	'ht-nodes|ht-nodes-matrix-mps|300|mps|t_ht_matrix -g -f @ht/ht_cells_net_2.txt'
	'memcheck|ht-nodes-memcheck|120|memcheck|t_ht_matrix -r nodes=2,per=1,net=loop,sms=4,hidden=7168,topk=8,local=5,tmax=16'
	'memcheck-procs|ht-nodes-memcheck-mps|180|memcheck-mps|t_ht_matrix -g -r nodes=2,per=2,net=unordered,sms=4,layout=em,align=16,hidden=512,topk=3,tmax=16,pass=both'
	'racecheck|ht-nodes-racecheck|120|racecheck|t_ht_matrix -r nodes=2,per=1,net=loop,sms=4,hidden=512,topk=2,tmax=5'
	'perf|ll-1-rank|120|table|ep_perf -a ll -D cuda -t 1 -b 1 -e 128 -f 2 -x 32 -n 200 -w 50'
	'perf|ll-1-rank-graph|60|table|ep_perf -a ll -D cuda -t 1 -b 128 -e 128 -x 32 -n 200 -w 50 -G 1'
	'perf|ll-1-rank-fp8|60|table|ep_perf -a ll -D cuda -t 1 -b 128 -e 128 -x 32 -n 200 -w 50 -q ds'
	'perf|ll-8-threads|120|table|ep_perf -a ll -D cuda -t 8 -m 16 -b 128 -e 128 -x 256 -n 100 -w 20'
	'perf|ll-8-processes|120|table-mps|ep_perf -a ll -D cuda -g 8 -m 16 -b 128 -e 128 -x 256 -n 100 -w 20'
	'perf|ht-4-windows|120|table|ep_perf -a ht -D cuda -t 4 -m 24 -z -n 50 -w 10'
	'perf|ht-4-plain|120|table|ep_perf -a ht -D cuda -t 4 -m 24 -n 50 -w 10'
	'perf|ht-4-windows-12|120|table|ep_perf -a ht -D cuda -t 4 -m 12 -z -n 50 -w 10'
	'perf|ht-4-backward|120|table|ep_perf -a ht -D cuda -t 4 -m 24 -z --bwd -n 50 -w 10'
	'perf|ht-4-expert|120|table|ep_perf -a ht -D cuda -t 4 -m 24 -z -l expert --align 16 -n 50 -w 10'
	'perf|ht-4-graph|120|table|ep_perf -a ht -D cuda -t 4 -m 24 -z -G --graph-update -n 50 -w 10'
	'perf|ht-4-windows-mps|120|table-mps|ep_perf -a ht -D cuda -g 4 -m 24 -z -n 50 -w 10'
	'perf|ht-4-plain-mps|120|table-mps|ep_perf -a ht -D cuda -g 4 -m 24 -n 50 -w 10'
	'perf|ht-4-separate-mps|120|table-mps|ep_perf -a ht -D cuda -g 4 -m 24 --separate -n 50 -w 10'
	'perf|ht-8-windows|120|table|ep_perf -a ht -D cuda -t 8 -m 16 -z -n 50 -w 10'
	'perf|ht-8-plain|120|table|ep_perf -a ht -D cuda -t 8 -m 16 -n 50 -w 10'
	'perf|ht-2-plain|120|table|ep_perf -a ht -D cuda -t 2 -m 24 -n 50 -w 10'
	'perf|ht-1-plain|120|table|ep_perf -a ht -D cuda -t 1 -m 16 -x 32 -n 50 -w 10'
	'perf|ll-nodes-perf|120|table|NCCL_EP_RANKS_PER_NODE=4 ep_perf -a ll -D cuda -t 8 -m 16 -b 1 -e 128 -f 8 -x 256 -n 100 -w 20'
	'perf|ll-nodes-perf-graph|120|table|NCCL_EP_RANKS_PER_NODE=4 ep_perf -a ll -D cuda -t 8 -m 16 -b 128 -e 128 -x 256 -n 100 -w 20 -G 1'
	'perf|ll-nodes-perf-mps|120|table-mps|NCCL_EP_RANKS_PER_NODE=4 ep_perf -a ll -D cuda -g 8 -m 16 -b 1 -e 128 -f 8 -x 256 -n 100 -w 20'
	'perf-ht-sm|ht-4-near|120|table|ep_perf -a ht -D cuda -t 4 -m 20 -z -n 50 -w 10'
	'perf-ht-sm|ht-4-sm-ordered|120|table|NCCL_EP_RANKS_PER_NODE=2 NCCL_EP_NET=sm:rate=400,latency=5000,sms=16,relaxed=1 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ht -D cuda -t 4 -m 20 -z -n 50 -w 10'
	'perf-ht-sm|trace-overlap|120|table|NCCL_EP_NET=sm:rate=400,latency=5000,sms=16,relaxed=1 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so trace_overlap.py @../perf/ep_perf -a ht -D cuda -t 4 -m 20 -z -b 1024 -e 1024 -n 20 -w 5'
	'perf-ht-sm|ht-4-sm-ordered-graph|120|table|NCCL_EP_RANKS_PER_NODE=2 NCCL_EP_NET=sm:rate=400,latency=5000,sms=16,relaxed=1 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ht -D cuda -t 4 -m 20 -z -n 50 -w 10 -G --graph-update'
	'perf-ht-sm|ht-4-sm-unordered|120|table|NCCL_EP_RANKS_PER_NODE=2 NCCL_EP_NET=sm:rate=400,latency=5000,sms=16,unordered=1 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ht -D cuda -t 4 -m 20 -z -n 50 -w 10'
	'perf-ht-sm|ht-4-sm-unordered-graph|120|table|NCCL_EP_RANKS_PER_NODE=2 NCCL_EP_NET=sm:rate=400,latency=5000,sms=16,unordered=1 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ht -D cuda -t 4 -m 20 -z -n 50 -w 10 -G --graph-update'
	'perf-ht-sm|ht-4-loop|120|table|NCCL_EP_RANKS_PER_NODE=2 NCCL_EP_NET=loop ep_perf -a ht -D cuda -t 4 -m 20 -z -n 50 -w 10'
	'perf-ht-sm|ht-8-near|120|table|ep_perf -a ht -D cuda -t 8 -m 14 -z -n 50 -w 10'
	'perf-ht-sm|ht-8-sm-ordered|120|table|NCCL_EP_RANKS_PER_NODE=4 NCCL_EP_NET=sm:rate=200,latency=5000,sms=16,relaxed=1 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ht -D cuda -t 8 -m 14 -z -n 50 -w 10'
	'perf-ht-sm|ht-8-sm-ordered-graph|120|table|NCCL_EP_RANKS_PER_NODE=4 NCCL_EP_NET=sm:rate=200,latency=5000,sms=16,relaxed=1 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ht -D cuda -t 8 -m 14 -z -n 50 -w 10 -G --graph-update'
	'perf-ht-sm|ht-8-sm-unordered|120|table|NCCL_EP_RANKS_PER_NODE=4 NCCL_EP_NET=sm:rate=200,latency=5000,sms=16,unordered=1 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ht -D cuda -t 8 -m 14 -z -n 50 -w 10'
	'perf-ht-sm|ht-8-sm-unordered-graph|120|table|NCCL_EP_RANKS_PER_NODE=4 NCCL_EP_NET=sm:rate=200,latency=5000,sms=16,unordered=1 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ht -D cuda -t 8 -m 14 -z -n 50 -w 10 -G --graph-update'
	'perf-ht-sm|ht-8-loop|120|table|NCCL_EP_RANKS_PER_NODE=4 NCCL_EP_NET=loop ep_perf -a ht -D cuda -t 8 -m 14 -z -n 50 -w 10'
	'perf-sm|far-one|480|table|far_targets.py one @../perf/ep_perf %BESIDE%'
	'perf-sm|far-one-mps|480|table-mps|far_targets.py one --processes @../perf/ep_perf %BESIDE%'
	'perf-sm|far-many|480|table|far_targets.py many @../perf/ep_perf %BESIDE%'
	'perf-sm|sm-8|120|table|NCCL_EP_RANKS_PER_NODE=4 NCCL_EP_NET=sm:rate=400,latency=5000,sms=16 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ll -D cuda -t 8 -m 14 -b 128 -e 128 -x 256 -n 100 -w 20'
	'perf-sm|sm-8-unordered|120|table|NCCL_EP_RANKS_PER_NODE=4 NCCL_EP_NET=sm:rate=400,latency=5000,sms=16,unordered=1 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ll -D cuda -t 8 -m 14 -b 128 -e 128 -x 256 -n 100 -w 20'
	'perf-sm|sm-8-unpaced|120|table|NCCL_EP_RANKS_PER_NODE=4 NCCL_EP_NET=sm:sms=16 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ll -D cuda -t 8 -m 14 -b 128 -e 128 -x 256 -n 100 -w 20'
	'perf-sm|sm-8-graph|120|table|NCCL_EP_RANKS_PER_NODE=4 NCCL_EP_NET=sm:rate=400,latency=5000,sms=16 NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so ep_perf -a ll -D cuda -t 8 -m 14 -b 128 -e 128 -x 256 -n 100 -w 20 -G 1'
	'perf-sm|sm-net|60|table|NCCL_EP_NET_PLUGIN=@gpu/libnet_sm.so net_perf -n sm:sms=16 -b 7168 -e 57344 -i 2000'
	'perf|rings|60|table|ring_perf -D cuda'
	'perf|rings-16|60|table|ring_perf -D cuda -r 16 -p 128'
	'memcheck|ring-memcheck|120|memcheck|gpu_ring_full cuda'
	'memcheck|devices-memcheck|120|memcheck|gpu_dev'
	'memcheck|capture-memcheck|120|memcheck|gpu_capture'
	'memcheck|launch-memcheck|120|memcheck|gpu_launch'
	'memcheck-procs|rowsig-memcheck|300|memcheck-mps|gpu_rowsig_procs cuda'
	'racecheck|launch-racecheck|120|racecheck|gpu_launch'
	'callers|te-pattern|120|te|t_te_pattern'
	'callers|te-pattern-mps|180|te-mps|t_te_pattern -g'
	'callers|trtllm-pattern|120|plain|t_trtllm_pattern @../plugin/libnccl_ep.so'
	'callers|trtllm-pattern-mps|120|mps|t_trtllm_pattern -g @../plugin/libnccl_ep.so'
	'callers|flashinfer-pattern|120|plain|t_flashinfer_pattern @../plugin/libnccl_ep.so'
	'callers|flashinfer-pattern-mps|120|mps|t_flashinfer_pattern -g @../plugin/libnccl_ep.so'
	'memcheck-procs|trtllm-memcheck|120|memcheck-mps|t_trtllm_pattern -g -n 2 @../plugin/libnccl_ep.so'
	'memcheck-procs|flashinfer-memcheck|180|memcheck-mps|t_flashinfer_pattern -g -n 2 @../plugin/libnccl_ep.so'
	'callers|nccl-extensions|120|plain|nccl_extensions.py run build-wheels @../plugin/libnccl_ep.so @../plugin/libnccl.so.2'
	'callers|nccl-extensions-mps|180|mps|nccl_extensions.py run build-wheels @../plugin/libnccl_ep.so @../plugin/libnccl.so.2 --ranks 2'
	'python|python-torch|120|mps|torch.sh @../python with_torch'
	'python|deep-ht|180|mps|torch.sh @../python deep_ht'
	'python|deep-ll|180|mps|torch.sh @../python deep_ll'
	'python|deep-cost|120|table-mps|torch.sh @../python deep_cost'
	'python|calls-vllm|180|mps|torch.sh @../python pattern_vllm'
	'python|calls-sglang|180|mps|torch.sh @../python pattern_sglang'
	'python|calls-primus|180|mps|torch.sh @../python pattern_primus'
	'cpu|cpu-suite|600|suite|cpu'
)
default=(cpu dev check threads nccl procs mps ll ll-procs ll-nodes net-sm ht ht-procs ht-nodes callers torch python perf perf-sm perf-ht-sm memcheck memcheck-procs racecheck)

usage() {
	echo "usage: ./run gpu [-b] [-l] [SHARD | TEST]...   (default: ${default[*]}; all: every shard)"
	echo '  -b  use the build as it is    -l  list the shards    CPU_TESTS: of the shard cpu, only these tests'
	echo '  BESIDE: the ep_perf of another build, which runs in turns with this one in far-one and far-many'
	printf '%s\n' "${rows[@]}" | awk -F'|' '{ printf "  %-16s %-24s %4ds  %-14s %s\n", $1, $2, $3, $4, $5 }'
}

say() { printf 'gpu: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# Builds only what is needed, for the GPUs present: seconds instead of a minute on a small machine.
configure_and_build() {
	local caps flags=(-Dcuda=enabled -Dhip=disabled)
	caps=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '.' | sort -un | paste -sd,) || caps=
	[[ $caps =~ ^[0-9,]+$ ]] && flags+=("-Darchs_cuda=$caps")
	if [ -f "$build/build.ninja" ]; then
		meson configure "$build" "${flags[@]}" >/dev/null
	else
		meson setup "$build" "${flags[@]}" || { say "configuring failed; $build/meson-logs/meson-log.txt has more"; return 1; }
	fi
	ninja -C "$build" gpu
}

# The CPU tests in a build of their own: plain programs, and those of Criterion where that is installed.
meson_suite() { # SUITE
	local dir=$build-$1 jobs=$(($(nproc) / 4)) names=() rc=0
	read -ra names <<<"${CPU_TESTS:-}"
	[ -f "$dir/build.ninja" ] || meson setup "$dir" -Dcuda=disabled -Dhip=disabled -Dmpi=disabled || return 1
	ninja -C "$dir" || return 1
	rm -f "$dir/meson-logs/$1.json"
	meson test -C "$dir" --print-errorlogs --logbase "$1" --suite "$1" --num-processes $((jobs > 0 ? jobs : 1)) \
		"${names[@]}" || rc=1
	python3 test/tools/summary.py --label "$1" "$dir/meson-logs/$1.json" || rc=1
	return $rc
}
export -f meson_suite
export build

# ---- our own MPS daemon, in temporary directories, always stopped at exit ----
mps_dir=
mps_start() {
	[ -z "$mps_dir" ] || return 0
	have nvidia-cuda-mps-control || return 1
	mps_dir=$(mktemp -d)
	mkdir "$mps_dir/pipe" "$mps_dir/log"
	mps_env=(CUDA_MPS_PIPE_DIRECTORY="$mps_dir/pipe" CUDA_MPS_LOG_DIRECTORY="$mps_dir/log")
	env "${mps_env[@]}" timeout 30 nvidia-cuda-mps-control -d || { say 'the MPS daemon failed to start'; mps_stop; return 1; }
}

mps_stop() {
	[ -n "$mps_dir" ] || return 0
	local pid
	pid=$(cat "$mps_dir"/pipe/*.pid 2>/dev/null || true)
	echo 'quit -t 5' | env "${mps_env[@]}" timeout 15 nvidia-cuda-mps-control >/dev/null 2>&1 || true
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		if [ -z "$pid" ] || ! kill -0 "$pid" 2>/dev/null; then break; fi
		sleep 0.3
	done
	[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
	rm -rf "$mps_dir"
	mps_dir=
}
trap mps_stop EXIT
trap 'exit 130' INT TERM

# Rank threads that allocate while others run can wait for each other under a sanitizer, which makes such calls wait for
# the GPU; processes (-mps) do not.
# The tests provoke driver errors, so API errors are not reported; bad accesses are.
sanitizer() { echo "compute-sanitizer --tool $1 --target-processes all --report-api-errors no --error-exitcode 99"; }

# The real library: the loader's, or that of a Python package.
real_nccl() {
	ldconfig -p | awk '$1 == "libnccl.so.2" { print $NF; exit }' | grep . ||
		find /usr/lib /usr/local /opt -name libnccl.so.2 -not -path '*/nccl_ep_standin/*' 2>/dev/null | head -n 1
}
nccl=$(real_nccl)
nccl=${nccl:-libnccl-not-found.so.2}

program() { for d in "$build"/test/* "$build"/perf test/callers test/gpu; do [ ! -x "$d/$1" ] || { echo "$d/$1"; return; }; done; echo "$build/test/gpu/$1"; }

# run_one NAME SECONDS HOW COMMAND...: 0 passed, 77 skipped, else failed
run_one() {
	local name=$1 seconds=$2 how=$3 rc=0 wrap=() settings=()
	# Rank threads need a hardware queue each. Processes have their own, and under MPS many connections exhaust the GPU.
	local vars=(CUDA_DEVICE_MAX_CONNECTIONS=32 NCCL_EP_DEVICE=cuda)
	shift 3
	if [ "$how" = suite ]; then
		timeout -k 5 "$seconds" bash -c "meson_suite $1" >"$logs/$name.log" 2>&1 </dev/null
		return
	fi
	while [[ $1 == [A-Z]*=* ]]; do settings+=("$1"); shift; done
	case $how in
	mps | ipc | memcheck-mps | racecheck-mps | table-mps | te-mps)
		mps_start || { echo 'skipped: no MPS here' >"$logs/$name.log"; return 77; }
		vars=("${mps_env[@]}" CUDA_DEVICE_MAX_CONNECTIONS=2 NCCL_EP_DEVICE=cuda)
		;;&
	ipc) vars+=(NCCL_EP_CUDA_VMM=0) ;;
	te | te-mps) wrap=(test/callers/te.sh "$build") ;;
	nccl)
		[ -e "$nccl" ] || { echo 'skipped: no NCCL here' >"$logs/$name.log"; return 77; }
		vars+=("LD_LIBRARY_PATH=$(dirname "$nccl"):${LD_LIBRARY_PATH:-}")
		;;
	memcheck | memcheck-mps | racecheck | racecheck-mps)
		have compute-sanitizer || { echo 'skipped: no compute-sanitizer here' >"$logs/$name.log"; return 77; }
		read -ra wrap <<<"$(sanitizer "${how%-mps}")"
		;;
	esac
	env "${vars[@]}" "${settings[@]}" timeout -k 5 "$seconds" "${wrap[@]}" "$(program "$1")" "${@:2}" >"$logs/$name.log" 2>&1 </dev/null || rc=$?
	# A client that crashed can leave the daemon unusable for the next one.
	case $how in mps | ipc | memcheck-mps | racecheck-mps | te-mps) [ $rc = 0 ] || mps_stop ;; esac
	return $rc
}

build_first=1 wanted=()
for arg; do
	case $arg in
	-b) build_first=0 ;;
	-l | -h | --help) usage; exit 0 ;;
	all) mapfile -t -O "${#wanted[@]}" wanted < <(printf '%s\n' "${rows[@]}" | cut -d'|' -f1 | uniq) ;;
	-*) usage >&2; exit 2 ;;
	*) wanted+=("$arg") ;;
	esac
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${default[@]}")
for w in "${wanted[@]}"; do
	# No pipe: grep -q leaves early, and pipefail would then report the writer.
	grep -qE "^($w\||[^|]*\|$w\|)" <<<"$(printf '%s\n' "${rows[@]}")" || { say "no shard or test named $w"; usage >&2; exit 2; }
done

if [ $build_first = 1 ] && [ "${wanted[*]}" != cpu ]; then configure_and_build; fi
mkdir -p "$logs"
passed=0 failed=0 skipped=0
for row in "${rows[@]}"; do
	IFS='|' read -r shard name seconds how command <<<"$row"
	[[ " ${wanted[*]} " == *" $shard "* || " ${wanted[*]} " == *" $name "* ]] || continue
	command=${command//@/$build/test/}
	command=${command//%BESIDE%/${BESIDE:-}}
	read -ra words <<<"${command//%NCCL%/$nccl}"
	# Words of a cell; options of a net (after a colon) keep their commas.
	for i in "${!words[@]}"; do [[ ${words[i]} != *=*,* || ${words[i]} == *:* ]] || words[i]=${words[i]//,/ }; done
	start=$(date +%s%N) rc=0
	run_one "$name" "$seconds" "$how" "${words[@]}" || rc=$?
	took=$((($(date +%s%N) - start) / 1000000))
	case $rc in
	0) word=ok passed=$((passed + 1)) ;;
	77) word=skip skipped=$((skipped + 1)) ;;
	124 | 137) word=TIMEOUT failed=$((failed + 1)) ;;
	*) word=FAIL failed=$((failed + 1)) ;;
	esac
	printf '%-8s %-16s %-24s %6d.%03d s\n' "$word" "$shard" "$name" $((took / 1000)) $((took % 1000))
	case $word in
	ok)
		[[ $how != table* ]] || cat "$logs/$name.log"
		[ "$how" != suite ] || tail -n 2 "$logs/$name.log"
		;;
	skip) grep -m1 'skipped' "$logs/$name.log" | sed 's/^/         /' || true ;;
	FAIL | TIMEOUT) tail -n 25 "$logs/$name.log" | sed 's/^/    | /' ;;
	esac
done
echo "gpu: $passed passed, $failed failed, $skipped skipped"
# All skipped is a failure: nothing was tested.
[ $failed = 0 ] && [ $passed -gt 0 ]
