# Debian packages by name: fetched with apt, unpacked, not installed.
#
# Takes the name of a suite and names of packages; gives folders below $CACHE/SUITE, with packages of the architecture $ARCH. apt works on lists, caches and a (missing)
# status of its own there, so that the machine's apt is not touched. Signatures are checked against the archive's keyring.

suite_apt() { # SUITE COMMAND ARGUMENT...
	local home=$CACHE/$1/apt command=$2
	shift 2
	APT_CONFIG=$home/apt.conf "$command" "$@"
}

# Makes the suite's apt, and brings its lists up to date once a day.
prepare_suite() { # SUITE
	local home=$CACHE/$1/apt
	mkdir -p "$home"/{state/lists/partial,cache/archives/partial,empty}
	: >"$home/status"
	cat >"$home/debian.sources" <<-SOURCES
		Types: deb
		URIs: $MIRROR
		Suites: $1
		Components: main
		Signed-By: $KEYRING
	SOURCES
	cat >"$home/apt.conf" <<-CONF
		Dir::State "$home/state";
		Dir::State::status "$home/status";
		Dir::Cache "$home/cache";
		Dir::Etc::sourcelist "$home/debian.sources";
		Dir::Etc::sourceparts "$home/empty";
		Dir::Etc::preferences "$home/none";
		Dir::Etc::preferencesparts "$home/empty";
		Acquire::Languages "none";
		Acquire::Retries "3";
		Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
		Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
		APT::Architecture "$ARCH";
		APT::Architectures "$ARCH";
		APT::Sandbox::User "root";
		quiet "1";
	CONF
	if [ -z "$(find "$home/updated" -mmin -1440 2>/dev/null)" ]; then
		suite_apt "$1" apt-get update >"$home/update.log" 2>&1 || { cat "$home/update.log" >&2; return 1; }
		touch "$home/updated"
	fi
}

# Downloads packages and unpacks them into one folder, unless the same versions are there already.
unpack() { # SUITE FOLDER PACKAGE...
	local suite=$1 folder=$CACHE/$1/$2 debs=$CACHE/$1/debs wanted file
	shift 2
	wanted=$(suite_apt "$suite" apt-get download --print-uris "$@" | awk '{ print $2 }' | sort)
	[ -n "$wanted" ] || { echo "$suite: apt names no file for: $*" >&2; return 1; }
	[ "$(cat "$folder.list" 2>/dev/null)" != "$wanted" ] || return 0
	mkdir -p "$debs"
	(cd "$debs" && suite_apt "$suite" apt-get download "$@" >/dev/null)
	rm -rf "$folder" "$folder.list"
	mkdir -p "$folder"
	for file in $wanted; do
		dpkg-deb --extract "$debs/$file" "$folder"
	done
	printf '%s\n' "$wanted" >"$folder.list"
}

# The kernel of a suite, in $CACHE/SUITE/kernel.
fetch_kernel() { # SUITE
	local package parts
	package=$(suite_apt "$1" apt-cache depends "$(kernel_package)" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p')
	[ -n "$package" ] || { echo "$1: $(kernel_package) names no kernel" >&2; return 1; }
	# Newer packages hold nothing themselves, but depend on one with the image and one with the modules.
	mapfile -t parts < <(suite_apt "$1" apt-cache depends "$package" | sed -n 's/^ *Depends: \(linux-\(base\|binary\|modules\)-[0-9].*\)/\1/p')
	unpack "$1" kernel "$package" "${parts[@]}"
}

# Packages with everything they depend on, in a folder.
unpack_with_libraries() { # SUITE FOLDER PACKAGE...
	local suite=$1 folder=$2 packages
	shift 2
	mapfile -t packages < <(suite_apt "$suite" apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
		--no-replaces --no-enhances "$@" | grep '^[a-z]' | grep -v -e '^dpkg$' -e '^debconf' -e '^cdebconf' -e '^gcc-.*-base$' -e '^perl' -e '^python' -e ':')
	unpack "$suite" "$folder" "${packages[@]}"
}

# nft of a suite, in $CACHE/SUITE/nft.
fetch_nft() { # SUITE
	unpack_with_libraries "$1" nft nftables
}

# busybox for the guests, and what else a guest of another architecture cannot have from this machine.
fetch_tools() {
	unpack "$TOOLS_SUITE" tools busybox-static
	[ "$ARCH" = amd64 ] || unpack_with_libraries "$TOOLS_SUITE" programs $({ needed program; needed system; } | cut -d ' ' -f 2 | sort -u)
}

# qemu for this machine.
fetch_qemu() {
	local package rest
	read -r package rest < <(qemu_of)
	local CACHE=$QEMU_CACHE ARCH=amd64
	prepare_suite "$QEMU_SUITE"
	unpack_with_libraries "$QEMU_SUITE" "$package" "$package"
}
