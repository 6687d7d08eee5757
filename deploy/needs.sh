# What a script needs on this machine, looked at before it begins its work. Sourced, by sh and bash; not a command.
#
# Takes the make target that installs everything for the script, and names of programs. Ends the script with 1 and one line for each
# program that is missing, with the Debian package that has it.

# need TARGET PROGRAM...
need() {
	need_target=$1 need_missing=
	shift
	for need_program in "$@"; do
		command -v "$need_program" >/dev/null 2>&1 || need_missing="$need_missing $need_program"
	done
	[ -n "$need_missing" ] || return 0
	for need_program in $need_missing; do
		echo "$0 needs $need_program, which is not on this machine: $(need_source "$need_program")" >&2
	done
	[ "$need_target" = - ] || echo "'make $need_target' installs what is missing." >&2
	exit 1
}

# What a build of the workspace needs: a toolchain, a linker, and the C libraries with their headers.
need_build() { # TARGET
	need "$1" cargo rustc cc pkg-config
	for need_library in libmnl libnftnl; do
		pkg-config --exists "$need_library" && continue
		echo "$0 needs $need_library, which is not on this machine: Debian package $need_library-dev" >&2
		echo "'make $1' installs what is missing." >&2
		exit 1
	done
}

# What has a program.
need_source() { # PROGRAM
	case $1 in
	cargo | rustc) echo "a Rust toolchain, see https://rustup.rs" ;;
	cargo-deny) echo "'make audit' installs and runs it" ;;
	helm | hydrophone | kind) echo "'make kind-tools' installs it" ;;
	awk) echo "Debian package mawk" ;;
	cmp) echo "Debian package diffutils" ;;
	cc) echo "Debian package gcc" ;;
	c++) echo "Debian package g++" ;;
	depmod | modprobe) echo "Debian package kmod" ;;
	rpmbuild) echo "Debian package rpm" ;;
	readelf | strip | strings) echo "Debian package binutils" ;;
	xz) echo "Debian package xz-utils" ;;
	ip | ss) echo "Debian package iproute2" ;;
	setpriv | unshare) echo "Debian package util-linux" ;;
	script) echo "Debian package bsdutils" ;;
	nft) echo "Debian package nftables" ;;
	aarch64-linux-gnu-gcc | qemu-aarch64-static) echo "deploy/build-root has it" ;;
	apt-get | apt-cache) echo "Debian package apt" ;;
	dpkg-deb | dpkg-query) echo "Debian package dpkg" ;;
	dpkg-genchanges | dpkg-source) echo "Debian package dpkg-dev" ;;
	*) echo "Debian package $1" ;;
	esac
}
