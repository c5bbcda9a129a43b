# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Installs packages for the scripts that people run: sourced, after say() and have() are defined. A list has entries
# "probe|packages": packages are installed where the probe fails, so that a prepared machine needs no network.

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o Dpkg::Use-Pty=0 -o Acquire::http::Timeout=20 "$@" </dev/null >/dev/null; }
known() { [ -n "$(apt-cache show --no-all-versions "$1" 2>/dev/null)" ]; }
first_known() { local p; for p; do known "$p" && { echo "$p"; return; }; done; return 1; }

may_install() {
	have apt-get || return 1
	[ "$(id -u)" = 0 ] && return
	have sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }
}

# install_deps NEED... -- WANT...
install_deps() {
	local row kind=need need=() want=() p
	for row; do
		if [ "$row" = -- ]; then kind=want; continue; fi
		eval "${row%%|*}" >/dev/null 2>&1 && continue
		if [ $kind = need ]; then need+=("${row#*|}"); else want+=("${row#*|}"); fi
	done
	[ $((${#need[@]} + ${#want[@]})) -gt 0 ] || return 0
	if ! may_install; then
		[ ${#need[@]} -eq 0 ] || say "missing, and cannot be installed from here: ${need[*]}"
		[ ${#want[@]} -eq 0 ] || say "continuing without: ${want[*]}"
		return 0
	fi
	local words
	for p in "${need[@]%% *}" "${want[@]%% *}"; do
		known "$p" || { apt update || say 'apt-get update failed'; break; }
	done
	read -ra words <<<"${need[*]}"
	apt_install "${words[@]}"
	local list=()
	for p in "${want[@]}"; do
		read -ra words <<<"$p"
		if p=$(first_known "${words[@]}"); then list+=("$p"); else say "no such package here, continuing without: ${words[*]}"; fi
	done
	apt_install "${list[@]}"
}

# The package lists may be older than the archive: refresh once and try again. What is still missing shows at first use.
apt_install() {
	[ $# -gt 0 ] || return 0
	say "installing $*"
	apt install --no-install-recommends "$@" || { apt update && apt install --no-install-recommends "$@"; } ||
		say "could not install: $*"
}
