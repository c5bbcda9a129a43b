#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch.sh HOME TEST: a test of test/python on the machine's own torch, over the libraries in HOME (BUILD/python). 77 where there
# is no torch that sees a GPU.
set -eu
python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || { echo 'skipped: no torch with a GPU here'; exit 77; }
NCCL_EP_HOME=$(readlink -f "$1")
export NCCL_EP_HOME PYTHONPATH=python:python/deep:test/python PYTHONDONTWRITEBYTECODE=1 NCCL_EP_SOCKET_IFNAME=''
unset NCCL_EP_DEVICE
exec python3 "test/python/$2.py"
