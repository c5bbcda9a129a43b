# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Prepares a cross build for ./run: sourced, after test/tools/install.sh. From ARM64 to x86-64, elsewhere to ARM64.

case $(uname -m) in
x86_64) cross_cpu=aarch64 cross_deb=arm64 ;;
*) cross_cpu=x86_64 cross_deb=amd64 ;;
esac
cross_triple=$cross_cpu-linux-gnu
cross_root=$PWD/build-sysroot-$cross_cpu
cross_needs=(
	"have $cross_triple-gcc|gcc-${cross_triple//_/-}"
	"[ -e /usr/$cross_triple/lib/libc.so ]|libc6-dev-$cross_deb-cross"
	"have qemu-$cross_cpu|qemu-user"
)

# Packages of the other architecture, unpacked into a folder: apt is asked with lists of its own, so that this machine
# gets no second architecture, and no root is needed.
cross_download() { # PACKAGE...
	local apt=$cross_root/apt options
	have apt-get && have dpkg-deb || return 1
	mkdir -p "$apt/lists/partial" "$apt/archives/partial"
	: >"$apt/status"
	options=(-qq -o APT::Architecture="$cross_deb" -o APT::Architectures="$cross_deb" -o Dir::State::Lists="$apt/lists"
		-o Dir::State::status="$apt/status" -o Dir::Cache="$apt" -o APT::Sandbox::User=root -o Acquire::http::Timeout=20)
	apt-get "${options[@]}" update && (cd "$apt" && apt-get "${options[@]}" download "$@") >&2 || return 1
	for deb in "$apt"/*.deb; do dpkg-deb -x "$deb" "$cross_root" || return 1; done
	rm -rf "$apt"
}

# What ranks need to meet (libsodium) beside the C library of the cross compiler, where the guest's loader looks for it
cross_sysroot() {
	local lib=$cross_root/usr/lib/$cross_triple
	[ -e "$lib/libsodium.a" ] || cross_download libsodium-dev libsodium23 || { rm -rf "$cross_root"; return 1; }
	mkdir -p "$cross_root/lib"
	ln -sfn "/usr/$cross_triple/lib" "$cross_root/lib/$cross_triple"
	ln -sfn "/usr/$cross_triple/lib" "$cross_root/lib64"
	for file in "/usr/$cross_triple/lib"/ld-linux*; do ln -sfn "$file" "$cross_root/lib/"; done
	cat >"$cross_root/here.ini" <<-TEXT
	[binaries]
	c = [$(have ccache && echo "'ccache', ")'$cross_triple-gcc', '-isystem', '$cross_root/usr/include', '-B$lib']
	exe_wrapper = ['qemu-$cross_cpu', '-L', '$cross_root']
	TEXT
}

# Fails with the reason, where there is no cross build here.
cross_ready() {
	case $(uname -m) in x86_64 | aarch64) ;; *) echo "no cross build from $(uname -m)"; return 1 ;; esac
	have "$cross_triple-gcc" || { echo "$cross_triple-gcc is missing"; return 1; }
	[ -e "/usr/$cross_triple/lib/libc.so" ] || { echo "the C library for $cross_deb is missing"; return 1; }
	have "qemu-$cross_cpu" || { echo "qemu-$cross_cpu is missing"; return 1; }
	cross_sysroot || { echo "libsodium for $cross_deb cannot be downloaded"; return 1; }
}
