# What the groups share. Sourced; not a group.

# Ends the group: it does not apply to this guest, for this reason.
not_applicable() { # REASON
	echo "$1" | tee /run/group/reason
	exit 77
}

# Says something that goes into the table beside the verdict.
note() { # TEXT
	echo "$1" | tee -a /run/group/reason
}

kernel_is_at_least() { # MAJOR MINOR
	local release=$(uname -r) major minor
	major=${release%%.*}
	minor=${release#*.}
	minor=${minor%%.*}
	[ "$major" -gt "$1" ] || { [ "$major" -eq "$1" ] && [ "$minor" -ge "$2" ]; }
}

# The oldest kernel that the proxy accepts.
needs_supported_kernel() {
	kernel_is_at_least 5 13 || not_applicable "kernel older than 5.13 (see old-kernel)"
}

# The oldest nft that can list maps of typed concatenations; older ones abort.
needs_supported_nft() {
	local version
	version=$(nft --version | awk '{ print $2 }')
	case $version in
	v0.* | v1.0.0) not_applicable "nft ${version#v} is older than 1.0.1, the oldest that can list the rules" ;;
	esac
}

# The cases of ../shared/conformance, where the machine that built the guest has them.
needs_cases() {
	[ -d /conformance ] || not_applicable "there were no conformance cases beside the repository"
	# All of them take as long as everything else; `make test` runs all.
	export CONFORMANCE_CASES=/conformance CONFORMANCE_ONE_IN=4
}

# Loads a module that changes what other tests see.
needs_module() { # NAME
	[ -e "/modules/$1.ko" ] || not_applicable "this kernel package has no $1 module"
	lsmod | grep -q "^$1 " || insmod "/modules/$1.ko" || { note "$1.ko does not load"; exit 1; }
}

# The flags that leave out tests of other layouts.
in_layout() { # LAYOUT
	local layout
	for layout in maps chains service_chains; do
		[ "$layout" = "$1" ] || printf ' --skip ::%s' "$layout"
	done
}

# Runs a test binary; the first filter that no test matches fails it.
run_tests() { # BINARY ARGUMENT...
	local binary=$1 out=/run/group/out code
	shift
	# More threads than processors: tests mostly wait for what must not come.
	# A translated processor needs its time, most of all to read large maps back.
	export TEST_PATIENCE_SECONDS=300
	KUBE_PROXY_BINARY=$(proxy_under_test) "/tests/$binary" --test-threads="${THREADS:-3}" "$@" >$out 2>&1
	code=$?
	cat $out
	# The last result is the program's own; tests in namespaces of their own print theirs before it.
	note "$(sed -n 's/^test result: [A-Za-z]*\. \([0-9]* passed; [0-9]* failed\).*/\1/p' $out | tail -n 1)"
	grep -o 'NOT SHOWN: .*' $out | sort -u | sed 's/^NOT SHOWN: /not shown: /; s/$/;/' >>/run/group/reason
	[ $code -eq 0 ] && ! grep -q '^test result: ok. 0 passed' $out
}

# The proxy, or what a deliberate break puts in its place.
proxy_under_test() {
	if [ -x "/guest/breaks/$BREAK" ]; then
		echo "/guest/breaks/$BREAK"
	else
		echo /usr/local/bin/kube-proxy
	fi
}
