# The guest's file system, as initramfs archives.
#
# Takes the built binaries and the unpacked packages; gives $WORK/base.cpio (the same for all guests: busybox, the proxy as deploy/image-root
# lays it out, tests, groups, what the list `surroundings` names) and one archive a guest (its kernel's modules, and the nft that its plan names). The kernel
# unpacks archives that follow each other in one file.

# A program with the libraries it loads: of this machine, or of Debian's packages for the guest's architecture.
copy_program() { # ROOT PROGRAM
	local path from=
	if [ "$ARCH" = amd64 ]; then
		path=$(command -v "$2")
	else
		from=$(system_root)
		# The file itself: links point at absolute paths, which mean this machine's files here.
		path=$(find "$from" -path "*bin/$2" -type f | head -n 1)
	fi
	install -D "$(realpath "$path")" "$1/usr/bin/$2"
	copy_libraries "$1" "$path" "$from"
}

# The libraries of a file, under the paths they have here, or below FROM.
copy_libraries() { # ROOT FILE [FROM]
	local library
	libraries_of "$ARCH" "${3:-/}" "$2" | while read -r library; do
		[ -e "$1$library" ] || install -D "$(realpath "${3:-}$library")" "$1$library"
	done
}

# Where the libraries lie that the proxy and the tests were linked with.
linked_with() {
	[ "$ARCH" = amd64 ] || echo "$PWD/target/debian/root"
}

# The programs and files of the list `surroundings`. Tests look for files of the repository at the path that they were built in.
add_surroundings() { # ROOT
	local name package project=$PWD
	[ "$ARCH" = amd64 ] || project=/src
	needed program | while read -r name package; do
		[ "$name" = nft ] || copy_program "$1" "$name"
	done
	for name in $(names_needed file); do
		mkdir -p "$1$project/$(dirname "$name")"
		cp -r "$name" "$1$project/$name"
	done
	for name in $(names_needed system); do
		install -D -m 644 "$(system_root)$name" "$1$name"
	done
}

# Where Debian's packages for the guest's architecture are unpacked, if that is not this machine.
system_root() {
	[ "$ARCH" = amd64 ] || echo "$CACHE/$TOOLS_SUITE/programs"
}

# What belongs to another architecture is laid out where its libraries and tools are.
at_home() { # COMMAND...
	if [ "$ARCH" = amd64 ]; then "$@"; else deploy/build-root "$@"; fi
}

build_base() {
	local root=$WORK/base binary
	rm -rf "$root"
	at_home deploy/image-root --arch "$ARCH" --binary "${PROXY#"$PWD/"}" --out "${root#"$PWD/"}" >/dev/null
	install -D "$CACHE/$TOOLS_SUITE/tools/bin/busybox" "$root/bin/busybox" 2>/dev/null ||
		install -D "$CACHE/$TOOLS_SUITE/tools/usr/bin/busybox" "$root/bin/busybox"
	add_surroundings "$root"
	for binary in "${!TESTS[@]}"; do
		install -D "${TESTS[$binary]}" "$root/tests/$binary"
		at_home "$(gnu_of "$ARCH")-strip" "${root#"$PWD/"}/tests/$binary"
		copy_libraries "$root" "${TESTS[$binary]}" "$(linked_with)"
	done
	cp -r vm-tests/guest "$root/guest"
	if [ -d "$CASES" ]; then cp -r "$CASES" "$root/conformance"; fi
	mkdir -p "$root"/{dev,etc,proc,run,sys,tmp,sbin,usr/sbin,root}
	names_needed by-group >"$root/etc/modules-by-group"
	mv "$root/guest/init" "$root/init"
	chmod 755 "$root/init"
	pack "$root" >"$WORK/base.cpio"
}

# The modules of a kernel with what they need, decompressed, and their load order in /modules/order.
copy_modules() { # SUITE ROOT
	local tree=$CACHE/$1/kernel version module line
	[ -d "$tree/lib" ] || tree=$CACHE/$1/kernel/usr
	version=$(basename "$tree"/lib/modules/*)
	depmod -b "$tree" "$version"
	mkdir -p "$2/modules"
	for module in $(names_needed module) $(names_needed by-group); do
		modprobe -d "$tree" -S "$version" --show-depends "$module" 2>/dev/null || true
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r line; do
		module=$(basename "${line%%.ko*}")
		case $line in
		*.xz) xz -dc "$line" >"$2/modules/$module.ko" ;;
		*.zst) zstd -qdc "$line" >"$2/modules/$module.ko" ;;
		*) cp "$line" "$2/modules/$module.ko" ;;
		esac
		echo "$module" >>"$2/modules/order"
	done
}

# A suite's nft under /nft/SUITE. Its loader is called `nft` there: the kernel then calls the process so, as on a node.
copy_nft() { # SUITE ROOT
	local from=$CACHE/$1/nft to=$2/nft/$1 link
	mkdir -p "$to/lib"
	cp "$(find "$from" -path '*sbin/nft' -type f)" "$to/program"
	# Links point at absolute paths, which mean this machine's files here; in one folder their last part is enough.
	find "$from" -path '*/lib*' -name '*.so*' -type f ! -path '*/gconv/*' ! -path '*/audit/*' -exec cp {} "$to/lib/" \;
	find "$from" -path '*/lib*' -name '*.so*' -type l | while read -r link; do
		[ -e "$to/lib/$(basename "$link")" ] || ln -s "$(basename "$(readlink "$link")")" "$to/lib/$(basename "$link")"
	done
	cp -L "$to"/lib/ld-linux-*.so.? "$to/nft"
	cat >"$to/run" <<-RUN
		#!/bin/sh
		exec /nft/$1/nft --library-path /nft/$1/lib /nft/$1/program "\$@"
	RUN
	chmod 755 "$to"/{nft,run}
}

# The archive of one guest, and its plan: lines of "NFT-SUITE GROUP" in the order in which they run.
build_guest() { # GUEST
	local root=$WORK/$1/part suite
	rm -rf "$root"
	mkdir -p "$root/etc"
	copy_modules "$(kernel_of "$1")" "$root"
	# Of nft only what the plan asks for: that is what was fetched.
	for suite in $(cut -d ' ' -f 1 "$WORK/$1/plan" | sort -u); do
		copy_nft "$suite" "$root"
	done
	cp "$WORK/$1/plan" "$root/etc/plan"
	printf 'BREAK=%s\n' "$BREAK" >"$root/etc/run.conf"
	pack "$root" | cat "$WORK/base.cpio" - >"$WORK/$1/initramfs"
}

pack() { # ROOT
	(cd "$1" && find . -print0 | cpio --null --create --format=newc --owner=0:0 --quiet)
}
