# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154 # vm and guest are shared with run.sh
# What a guest needs: the emulator, and one of Debian's kernels, unpacked, never installed, kept in $vm. Sourced by
# run.sh, which defines say() and have().

# uname -m|emulator|its package|Debian's architecture|serial port|board|CPU when emulated
machines=(
	'aarch64|qemu-system-aarch64|qemu-system-arm|arm64|ttyAMA0|virt,gic-version=max|max,pauth=off'
	'x86_64|qemu-system-x86_64|qemu-system-x86|amd64|ttyS0|q35|max'
)
# Pointer authentication, used by every function of Debian's arm64, costs TCG three quarters of its speed.
# rxe requests crc32_generic by name only, so it is not in its dependencies.
modules=(virtio_pci 9pnet_virtio 9p veth dummy sch_netem crc32_generic ib_uverbs rdma_ucm rdma_rxe)

machine_pick() {
	local row
	for row in "${machines[@]}"; do
		IFS='|' read -r arch emulator emulator_package debian serial board cpu <<<"$row"
		[ "$arch" != "$(uname -m)" ] || return 0
	done
	return 1
}

busybox_static() { have busybox && ! ldd "$(command -v busybox)" >/dev/null 2>&1; }
have_verbs() { compgen -G '/usr/lib*/*/libibverbs/librxe-*' || compgen -G '/usr/lib*/libibverbs/librxe-*'; }

machine_install() {
	install_deps "have $emulator|$emulator_package" 'busybox_static|busybox-static' 'have modprobe|kmod' 'have cpio|cpio' \
		'have xz|xz-utils' 'have rdma|iproute2' 'have_verbs|ibverbs-providers' -- 'have ibv_rc_pingpong|ibverbs-utils'
	have "$emulator" && busybox_static && have modprobe && have cpio && have rdma
}

# kernel_package PREFIX [APT-OPTION...]: the distribution's default kernel; with a prefix the newest of that version in
# any of its archives
kernel_package() {
	local which=()
	[ -n "$1" ] || which=(--no-all-versions)
	apt-cache "${@:2}" show "${which[@]}" "linux-image-$debian" 2>/dev/null |
		sed -n "s/^Depends:.*\(linux-image-${1//./\\.}[^ ,]*-$debian\).*/\1/p" | sort -V | tail -n 1
}

# The backports of the system's mirror, if not configured: with separate lists, so that the system's are unchanged.
backports_options() {
	local name mirror
	name=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") || return 1
	mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $name" | head -n 1)
	[ -n "$mirror" ] || return 1
	mkdir -p "$vm/apt/lists/partial" "$vm/apt/cache/archives/partial"
	echo "deb $mirror $name-backports main" >"$vm/apt/sources.list"
	apt_options+=(-o "Dir::Etc::sourcelist=$vm/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
		-o "Dir::State::lists=$vm/apt/lists" -o "Dir::Cache=$vm/apt/cache")
	apt-get -qq "${apt_options[@]}" update >&2
}

# kernel_download PREFIX: prints the name of the .deb in $vm
kernel_download() {
	local package apt_options=(-o APT::Sandbox::User=root -o Acquire::http::Timeout=20 -o Acquire::Retries=2)
	package=$(kernel_package "$1")
	if [ -z "$package" ] && [ -z "$1" ] && may_install; then apt update && package=$(kernel_package ''); fi
	if [ -z "$package" ] && [ -n "$1" ] && backports_options; then package=$(kernel_package "$1" "${apt_options[@]}"); fi
	[ -n "$package" ] || return 1
	if ! compgen -G "$vm/${package}_*.deb" >/dev/null; then
		say "fetching $package"
		(cd "$vm" && apt-get -qq "${apt_options[@]}" download "$package" >&2) || return 1
	fi
	compgen -G "$vm/${package}_*.deb" | tail -n 1
}

# archive_modules TREE TO: an initrd of busybox and the modules, in load order
archive_modules() {
	local tree=$1 root=$1/root release name file
	[ -d "$tree/lib" ] || ln -s usr/lib "$tree/lib"
	release=$(ls "$tree/lib/modules")
	mkdir -p "$root"/{bin,dev,files,host,modules,proc,sys}
	cp "$(command -v busybox)" "$root/bin/busybox"
	ln -s busybox "$root/bin/sh"
	depmod -b "$tree" "$release"
	modprobe -d "$tree" -S "$release" --show-depends -a "${modules[@]}" |
		awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$tree/list"
	while read -r file; do
		name=$(basename "$file" .xz)
		case $file in *.xz) xz -dc "$file" >"$root/modules/$name" ;; *) cp "$file" "$root/modules/$name" ;; esac
		echo "$name" >>"$root/modules/order"
	done <"$tree/list"
	(cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$2"
}

# kernel_get PREFIX: creates $kernel/linux and $kernel/modules.gz, unless they exist from an earlier run.
kernel_get() {
	local deb tree
	kernel=$vm/kernel-${1:-stock}
	mkdir -p "$vm"
	exec 9>"$vm/lock"
	flock -w 300 9
	if [ ! -f "$kernel/modules.gz" ]; then
		deb=$(kernel_download "$1") || return 1
		rm -rf "$vm"/unpack.*
		tree=$(mktemp -d "$vm/unpack.XXXXXX")
		mkdir -p "$kernel"
		if dpkg-deb -x "$deb" "$tree"; then
			archive_modules "$tree" "$kernel/modules.part" && cp "$tree"/boot/vmlinuz-* "$kernel/linux" &&
				ls "$tree/lib/modules" >"$kernel/release" && mv "$kernel/modules.part" "$kernel/modules.gz"
		else
			rm -f "$deb"
		fi
		rm -rf "$tree"
	fi
	exec 9>&-
	[ -f "$kernel/modules.gz" ]
}

share() { echo "local,id=$1,path=$2,security_model=none,multidevs=remap$3"; }

# Where a hypervisor lends KVM to its guests badly, a kernel stops before its first line. One without a root ends at once.
kvm=''
kvm_works() {
	if [ -z "$kvm" ]; then
		kvm=no
		[ ! -w /dev/kvm ] || ! timeout 20 "$emulator" -M "$board" -accel kvm -cpu host -m 256 -nodefaults \
			-no-user-config -display none -no-reboot -kernel "$kernel/linux" -append 'quiet panic=-1' \
			</dev/null >/dev/null 2>&1 || kvm=yes
		[ "$kvm" = yes ] || [ ! -e /dev/kvm ] || say 'KVM does not work here: the guest is emulated'
	fi
	[ "$kvm" = yes ]
}

# machine_start JOB: in the background, as $guest; it ends with this process
machine_start() {
	local job=$1 fast=(-accel 'tcg,thread=multi,tb-size=256' -cpu "$cpu") quick here
	! kvm_works || fast=(-accel kvm -cpu host)
	quick='quiet loglevel=4 panic=-1 oops=panic mitigations=off audit=0 apparmor=0 cryptomgr.notests'
	here=$(dirname "${BASH_SOURCE[0]}")
	(cd "$here" && echo init | cpio -o -H newc --quiet | gzip -1) | cat "$kernel/modules.gz" - >"$job/initrd"
	setpriv --pdeathsig KILL "$emulator" -M "$board" "${fast[@]}" -smp 2 -m "${VM_MEMORY:-1024}" \
		-nodefaults -no-user-config -display none -no-reboot -serial stdio \
		-kernel "$kernel/linux" -initrd "$job/initrd" -append "console=$serial $quick" \
		-fsdev "$(share files / ,readonly=on)" -device virtio-9p-pci,fsdev=files,mount_tag=files \
		-fsdev "$(share job "$job" '')" -device virtio-9p-pci,fsdev=job,mount_tag=job \
		</dev/null >"$job/console.log" 2>&1 &
	guest=$!
}
