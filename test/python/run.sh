#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [WHEEL]: builds the wheels of nccl_ep, nccl.ep and deep_ep, installs them one after the other in an empty virtual
# environment, and runs there what needs an installed package or torch. Torch and tools have an environment of their own,
# which is kept and has none of our packages. Everything is under build-python/. A given WHEEL is not built.
# Exit status 77 and the reason where packages cannot be had.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
dir=build-python
tests=test/python
export NCCL_EP_SOCKET_IFNAME='' NCCL_EP_TIMEOUT_MS=30000 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
unset NCCL_EP_HOME PYTHONPATH

passed=0 failed=0 skipped=0 names=()
stage() { # NAME COMMAND...
	local name=$1 start=$SECONDS
	shift
	printf '==== %s\n' "$name"
	if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) names+=("$name") && printf '==== %s FAILED\n' "$name"; fi
	printf '==== %s: %d s\n' "$name" $((SECONDS - start))
}
skip() { echo "python: skipped: $*" >&2 && exit 77; }

# Without device code, which ./run test compiles: nvcc alone takes minutes.
build_wheel() {
	rm -rf "$dir/wheel" && mkdir -p "$dir/wheel"
	"$dir/torch/bin/pip" wheel -q . --no-deps -w "$dir/wheel" -Cbuild-dir="$dir/wheel-build" \
		-Csetup-args=-Dcuda=disabled -Csetup-args=-Dhip=disabled
}

# Newer torch than 2.10 brings the CUDA stack on ARM64, too.
torch_venv() {
	[ -x "$dir/torch/bin/pip" ] || python3 -m venv "$dir/torch"
	"$dir/torch/bin/pip" install -q 'torch==2.10.*' numpy packaging mypy
}

# Their Python files only: nothing of it is called.
nvidia_fetch() {
	[ -d "$dir/nvidia/nccl/ep" ] || "$dir/torch/bin/pip" install -q --no-deps --target "$dir/nvidia" nccl-extensions==0.1.0 \
		nccl4py==0.6.0 'cuda-core~=1.0' 'cuda-bindings~=13.0' cuda-pathfinder packaging
}

# Its dependencies are here already, and must stay what they are.
megatron_fetch() { "$dir/torch/bin/pip" install -q --no-deps megatron-core==0.16.1; }

clean_venv() {
	rm -rf "$dir/clean"
	python3 -m venv "$dir/clean" && clean_install "$wheel"
}

# From nowhere else: what the wheel requires must be there.
clean_install() { "$dir/clean/bin/pip" install -q --no-index "$1"; }

# setuptools builds beside the sources, so from a copy.
pure_add() { # FOLDER
	rm -rf "${dir:?}/$1" && cp -r "python/$1" "$dir/$1" &&
		"$dir/torch/bin/pip" wheel -q "./$dir/$1" --no-deps -w "$dir/$1/wheel" && clean_install "$dir/$1"/wheel/*.whl
}

# Makes torch's environment visible in the clean one, behind its own packages: 900 MB need no second copy.
torch_share() {
	"$dir/torch/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$dir/torch.pth" &&
		mv "$dir/torch.pth" "$("$dir/clean/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
}

mkdir -p "$dir"
torch_venv || skip 'torch, numpy and mypy could not be installed'
wheel=${1:-}
if [ -z "$wheel" ]; then
	build_wheel || { echo 'the wheel could not be built' >&2 && exit 1; }
	wheel=$(ls "$dir"/wheel/*.whl)
fi
clean_venv || { echo "$wheel could not be installed in an empty environment" >&2 && exit 1; }
stage 'wheel' "$dir/clean/bin/python" $tests/wheel.py "$wheel"
stage 'wheel: round trips' "$dir/clean/bin/python" $tests/round_trips.py
pure_add nccl || { echo 'the wheel of nccl.ep could not be built or installed' >&2 && exit 1; }
stage 'wheel: nccl.ep' "$dir/clean/bin/python" $tests/nccl_names.py "$dir"/nccl/wheel/*.whl
torch_share
stage 'torch' "$dir/clean/bin/python" $tests/with_torch.py
stage 'training' "$dir/clean/bin/python" doc/train.py
stage 'training: two nodes of two' env NCCL_EP_RANKS_PER_NODE=2 "$dir/clean/bin/python" doc/train.py
pure_add deep || { echo 'the wheel of deep_ep could not be built or installed' >&2 && exit 1; }
stage 'wheel: deep_ep' "$dir/clean/bin/python" $tests/deep_wheel.py "$dir"/deep/wheel/*.whl
stage 'deep_ep: surface' "$dir/clean/bin/python" $tests/deep_surface.py
stage 'deep_ep: high throughput' "$dir/clean/bin/python" $tests/deep_ht.py
stage 'deep_ep: low latency' "$dir/clean/bin/python" $tests/deep_ll.py
stage 'deep_ep: host cost' "$dir/clean/bin/python" $tests/deep_cost.py
stage 'numpy: tensors' "$dir/clean/bin/python" $tests/tensors.py
stage 'numpy: surface' "$dir/clean/bin/python" $tests/surface.py meson.build
if nvidia_fetch; then
	stage "NVIDIA's names" "$dir/clean/bin/python" $tests/against_nvidia.py "$dir/nvidia"
else
	skipped=$((skipped + 1)) && echo "NVIDIA's nccl.ep could not be had: not compared with ours"
fi
for name in primus sglang vllm; do
	stage "calls of $name" "$dir/clean/bin/python" $tests/pattern_$name.py
done
if megatron_fetch; then
	stage 'Megatron' "$dir/clean/bin/python" $tests/megatron_layer.py
else
	skipped=$((skipped + 1)) && echo 'megatron-core could not be had: its layer was not run'
fi
stage 'types' "$dir/torch/bin/mypy" --python-version 3.10 --ignore-missing-imports --cache-dir="$dir/mypy" python/nccl_ep \
	python/deep/deep_ep
[ $failed = 0 ] || (IFS=, && echo "failed: ${names[*]}")
printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped
[ $failed = 0 ]
