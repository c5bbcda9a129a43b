#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# te.sh BUILD PROGRAM [ARGUMENT...]: installs the build as it is into a temporary folder and runs the program on that
# copy, as TransformerEngine finds it: NCCL_EP_HOME is the prefix, the library is in lib and include/nccl_ep beside it.
set -eu
build=$1 program=$2
shift 2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
meson install -C "$build" --no-rebuild --quiet --tags runtime,devel --destdir "$tmp" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
home=$(dirname "$(dirname "$(find "$tmp" -name nccl_ep.h)")")
for file in lib/libnccl_ep.so lib/libnccl_ep.so.0 include/nccl_ep.h include/nccl_ep/ep_enums.h; do
	[ -e "$home/$file" ] || { echo "no $file in the installation: does $build have an option libdir?"; exit 1; }
done
NCCL_EP_HOME=$home "$program" "$@"
