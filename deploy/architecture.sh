# What differs between the architectures that are released. Sourced by bash; not a command.
#
# Takes the names that Debian has for architectures. Needs dpkg, and readelf of binutils, which reads the files of all of them.

ARCHITECTURES=(amd64 arm64)

# The C toolchain's name for it, which is also the folder of its libraries.
gnu_of() { # ARCHITECTURE
	case $1 in
	amd64) echo x86_64-linux-gnu ;;
	arm64) echo aarch64-linux-gnu ;;
	*) echo "$0 knows ${ARCHITECTURES[*]}, not $1" >&2; return 2 ;;
	esac
}

# Rust's name for it.
rust_of() { # ARCHITECTURE
	local gnu
	gnu=$(gnu_of "$1") || return
	echo "${gnu/-linux/-unknown-linux}"
}

# The architecture of this machine, or of the container.
own_architecture() { dpkg --print-architecture; }

# Has cargo and what it starts build for another architecture than the machine's: `cargo build --target "$(rust_of ARCHITECTURE)"`.
cross() { # ARCHITECTURE
	local gnu rust
	gnu=$(gnu_of "$1") rust=$(rust_of "$1")
	local word=${rust//-/_}
	export "CARGO_TARGET_${word^^}_LINKER=$gnu-gcc" "CC_$word=$gnu-gcc"
	export "PKG_CONFIG_ALLOW_CROSS_$word=1" "PKG_CONFIG_LIBDIR_$word=/usr/lib/$gnu/pkgconfig:/usr/share/pkgconfig"
}

# The loader and the shared libraries that programs load, each under the path where the loader finds it, without ROOT.
libraries_of() { # ARCHITECTURE ROOT PROGRAM...
	local gnu root=${2%/} name found folder queue
	local -A seen=()
	gnu=$(gnu_of "$1")
	shift 2
	queue=("$@")
	while [ ${#queue[@]} -gt 0 ]; do
		# The loader stands first, with the path that it must have.
		for name in $(readelf --wide --program-headers --dynamic "${queue[0]}" |
			sed -n 's/.*program interpreter: \(.*\)\]/\1/p; s/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
			[ -z "${seen[$(basename "$name")]:-}" ] || continue
			seen[$(basename "$name")]=1
			found=$name
			for folder in "/lib/$gnu" "/usr/lib/$gnu"; do
				if [ ! -e "$root$found" ] && [ -e "$root$folder/$name" ]; then found=$folder/$name; fi
			done
			[ -e "$root$found" ] || { echo "$root has no $name, which ${queue[0]} needs" >&2; return 1; }
			echo "$found"
			queue+=("$root$found")
		done
		queue=("${queue[@]:1}")
	done
}

# The newest glibc of which a program uses a symbol.
glibc_of() { # PROGRAM
	readelf --wide --version-info "$1" | sed -n 's/.*Name: GLIBC_\([0-9.]*\) .*/\1/p' | sort --version-sort | tail -n 1
}

# The glibc of RHEL 9 and its relatives. The one that a release is built with is newer, and a new call of it would ask for that without a word.
MAX_GLIBC=2.34

# Fails if a program needs a newer glibc than MAX_GLIBC.
check_glibc() { # PROGRAM
	local glibc
	glibc=$(glibc_of "$1")
	[ "$(printf '%s\n' "$glibc" $MAX_GLIBC | sort --version-sort | tail -n 1)" = $MAX_GLIBC ] && return
	echo "$1 needs glibc $glibc, and may need no newer one than $MAX_GLIBC: 'readelf --version-info $1' names the symbols" >&2
	return 1
}

# The installed Debian package of a library.
package_of() { # ARCHITECTURE LIBRARY
	dpkg-query -S "*/$(gnu_of "$1")/$(basename "$(realpath "$2")")" | head -n 1 | cut -d : -f 1
}
