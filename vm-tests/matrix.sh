# What the matrix is made of. Sourced by `run`; everything a newcomer may want to change stands here.

MIRROR=http://deb.debian.org/debian
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# Debian suites, each with its kernel and its nft, from the oldest to the newest. The kernel is the one that linux-image-cloud-amd64
# depends on: the same source and version as linux-image-amd64, without drivers of hardware.
SUITES=(bullseye bookworm trixie sid)
kernel_package() { echo "linux-image-cloud-$ARCH"; }

# The suite whose kernel the proxy refuses: one guest is enough for saying so.
TOO_OLD=bullseye

# The suite whose statically linked busybox is the guest's userland.
TOOLS_SUITE=bookworm

# The suite whose qemu boots the guests. Under that of bookworm, 7.2, test programs and kernels from 6.12 on faulted here; newer ones did not.
QEMU_SUITE=trixie
# What it has for each architecture of guests: the package, the program, and the machine with its console.
qemu_of() {
	case $ARCH in
	amd64) echo qemu-system-x86 qemu-system-x86_64 q35 ttyS0 ;;
	arm64) echo qemu-system-arm qemu-system-aarch64 virt ttyAMA0 ;;
	*) echo "no guests are known for $ARCH" >&2; return 2 ;;
	esac
}

# Groups that run once a kernel, with that suite's nft. `guest/groups/NAME` is the group.
# A layout of the ruleset is one word here and one file there: its tests have the layout at the end of their names.
GROUPS_PER_KERNEL=(old-kernel netlink restart upgrade room expiry foreign-writes nodes load packets packets-chains packets-service-chains commands leftovers sctp flowtable conformance conformance-chains)
# Groups that run on every kernel with every suite's nft: a node's nft need not be as old as its kernel.
GROUPS_PER_NFT=(listing listing-chains)

# Which groups share a guest: kernels are booted once for each line, and several guests run side by side. Groups that no line names
# are in the last guest.
GUESTS=(
	"packets commands foreign-writes sctp load listing flowtable conformance"
	"old-kernel netlink restart upgrade room expiry leftovers nodes packets-chains packets-service-chains listing-chains conformance-chains"
)

# What one submission runs on one kernel: the part that the hash of its last commit chooses (lib/part.sh). Each takes
# some minutes without KVM. `restart` is in all of them, because it is short and shows that the proxy works there.
PARTS=(
	"restart packets"
	"restart packets-chains"
	"restart packets-service-chains"
	"restart netlink expiry leftovers room upgrade nodes conformance old-kernel"
	"restart commands listing listing-chains foreign-writes sctp load flowtable conformance-chains"
)

# What the tests need, of one kind: lines of "NAME PACKAGE" from the list `surroundings`, or names alone.
needed() { sed -n "s/^$1 \([^ ]*\) \([^ ]*\):.*/\1 \2/p" vm-tests/surroundings; }
names_needed() { needed "$1" | cut -d ' ' -f 1; }
