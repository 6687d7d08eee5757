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
	run_binary "$binary" --test-threads="${THREADS:-3}" "$@" >$out 2>&1
	code=$?
	cat $out
	# The last result is the program's own; tests in namespaces of their own print theirs before it.
	note "$(sed -n 's/^test result: [A-Za-z]*\. \([0-9]* passed; [0-9]* failed\).*/\1/p' $out | tail -n 1)"
	grep -o 'NOT SHOWN: .*' $out | sort -u | sed 's/^NOT SHOWN: /not shown: /; s/$/;/' >>/run/group/reason
	if grep -q '^test result: ok. 0 passed' $out; then return 1; fi
	[ $code -eq 0 ] || run_again "$binary" $out
}

run_binary() { # BINARY ARGUMENT...
	local binary=$1
	shift
	KUBE_PROXY_BINARY=$(proxy_under_test) "/tests/$binary" "$@"
}

# Runs the tests that failed once more, each alone, as tests/again does outside the guest: a translated processor can delay a test that runs
# beside others past its deadline. More than five failures, and an end without a list of failures, fail the group.
run_again() { # BINARY LOG
	local names name
	grep -a -A 3 'panicked at' "$2" | sed 's/^/--- /'
	# The last list is the program's own.
	names=$(awk '/^failures:$/ { names = "" } /^    [^ ]+$/ { names = names $1 "\n" } END { printf "%s", names }' "$2")
	[ -n "$names" ] && [ "$(echo "$names" | wc -l)" -le 5 ] || return 1
	for name in $names; do
		echo "--- again, alone: $name ---"
		run_binary "$1" --exact "$name" --test-threads=1 >/run/group/again 2>&1 && grep -q '^test result: ok\. 1 passed' /run/group/again || {
			cat /run/group/again
			grep -a -A 3 'panicked at' /run/group/again | sed 's/^/--- /'
			return 1
		}
		note "failed beside other tests and passed alone: $name;"
	done
}

# The proxy, or what a deliberate break puts in its place.
proxy_under_test() {
	if [ -x "/guest/breaks/$BREAK" ]; then
		echo "/guest/breaks/$BREAK"
	else
		echo /usr/local/bin/kube-proxy
	fi
}
