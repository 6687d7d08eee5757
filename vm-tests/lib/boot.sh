# Boots a guest and judges what it printed.
#
# A guest is called KERNEL.NUMBER. Takes $WORK/GUEST with the archive and the plan; gives the console in $WORK/GUEST/console and lines
# of "KERNEL NFT-SUITE GROUP VERDICT SECONDS REASON" in $WORK/GUEST/results. A verdict that the plan asks for and the guest did not give is a
# failure, and so is every warning, error or hang in the kernel's log.

# What the kernel prints when something is wrong with it.
KERNEL_TROUBLE='WARNING: (CPU|possible|suspicious)|\bBUG: |\bOops\b|general protection fault|soft lockup|hard LOCKUP|rcu.*(stall|starved)|Kernel panic|blocked for more than [0-9]+ seconds|KASAN|refcount_t:|list_(add|del) corruption'

# no_timer_check: on a busy machine the timer of a translated processor looks broken to a kernel that boots.
KERNEL_LINE='quiet loglevel=5 panic=-1 oops=panic reboot=t mitigations=off no_timer_check random.trust_cpu=on'

# qemu with its own libraries and firmware.
machine() { # ACCELERATOR KERNEL ARGUMENT...
	local accelerator=$1 package program board console qemu vmlinuz cpu=max
	read -r package program board console < <(qemu_of)
	qemu=$QEMU_CACHE/$QEMU_SUITE/$package/usr
	vmlinuz=$(find "$CACHE/$2/kernel" -name 'vmlinuz*' | head -n 1)
	shift 2
	# The plain processor: a boot with `max` did not come to its end once.
	[ "$accelerator" = kvm ] || cpu=qemu64,+ssse3,+sse4.1,+sse4.2
	[ "$ARCH" = amd64 ] || cpu=cortex-a72
	export QEMU_MODULE_DIR=$qemu/lib/x86_64-linux-gnu/qemu
	exec "$qemu/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$qemu/lib/x86_64-linux-gnu" "$qemu/bin/$program" \
		-L "$qemu/share/qemu" -L "$qemu/share/seabios" -M "$board" -cpu "$cpu" -accel "$accelerator" -smp "$CPUS" -m 3072 \
		-nodefaults -no-user-config -display none -serial stdio -no-reboot -kernel "$vmlinuz" "$@" </dev/null 2>&1
}

# "kvm" if a kernel gets as far as its panic about a missing root file system in a few seconds with it, else "tcg". That
# /dev/kvm can be opened is not enough: inside some virtual machines guests are then very slow, or end.
accelerator() { # KERNEL
	if [ "$ARCH" = amd64 ] && [ -w /dev/kvm ] && (export -f machine qemu_of; export ARCH CACHE QEMU_CACHE QEMU_SUITE CPUS; timeout 10 bash -c \
		"machine kvm $1 -append 'console=ttyS0 panic=-1 reboot=t'" 2>/dev/null) 2>/dev/null | grep -a 'Kernel panic' >/dev/null; then
		echo kvm
	else
		echo tcg
	fi
}

kernel_of() { # GUEST
	echo "${1%.*}"
}

boot() { # GUEST ACCELERATOR
	local work=$WORK/$1 code=0
	(export -f machine qemu_of; export ARCH CACHE QEMU_CACHE QEMU_SUITE CPUS; echo "$BASHPID" >"$work/pid"; exec timeout "$BOOT_SECONDS" bash -c \
		"machine $2 $(kernel_of "$1") -initrd '$work/initramfs' -append 'console=$(qemu_of | cut -d ' ' -f 4) $KERNEL_LINE'") |
		sed -u 's|\r||g' | tee "$work/console" | show "$1" || code=$?
	rm -f "$work/pid"
	[ "$code" -eq 0 ] || echo "qemu ended with $code (124: more than $BOOT_SECONDS seconds)" | tee -a "$work/console"
}

# Ends the guests that run: a run that is stopped leaves none behind.
end_guests() {
	local file
	for file in "$WORK"/*/pid; do
		if [ -e "$file" ]; then kill "$(cat "$file")" 2>/dev/null || true; fi
	done
}

# The console, or only its verdicts.
show() { # GUEST
	if $VERBOSE; then cat; else grep --line-buffered -a -E '^(GUEST|VERDICT|---)' || true; fi | sed -u "s|^|[$1] |"
}

judge() { # GUEST
	local console=$WORK/$1/console kernel suite group line trouble
	kernel=$(kernel_of "$1")
	trouble=$(grep -a -E "$KERNEL_TROUBLE" "$console" | head -n 1 | tr -d '|' || true)
	while read -r suite group; do
		line=$(grep -a "^VERDICT $suite $group " "$console" | tail -n 1 | cut -d ' ' -f 4- || true)
		echo "$kernel $suite $group ${line:-fail - no verdict}"
	done <"$WORK/$1/plan"
	echo "$kernel $kernel kernel-log $([ -z "$trouble" ] && echo "pass -" || echo "fail - $trouble")"
	grep -aqx END "$console" || echo "$kernel $kernel end fail - guest $1 did not come to its end"
}
