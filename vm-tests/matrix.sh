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
GROUPS_PER_KERNEL=(old-kernel netlink restart upgrade room expiry foreign-writes nodes load packets packets-chains sctp flowtable conformance conformance-chains)
# Groups that run on every kernel with every suite's nft: a node's nft need not be as old as its kernel.
GROUPS_PER_NFT=(listing listing-chains)

# Which groups share a guest: kernels are booted once for each line, and several guests run side by side. Groups that no line names
# are in the last guest.
GUESTS=(
	"packets foreign-writes sctp load listing flowtable conformance"
	"old-kernel netlink restart upgrade room expiry nodes packets-chains listing-chains conformance-chains"
)

# Modules that the rules and the tests' networks need. What a kernel has built in or lacks is left out; a group that needs a module
# asks for it by itself.
MODULES=(
	nf_tables nf_conntrack nf_conntrack_netlink nf_nat nft_chain_nat nft_nat nft_masq nft_ct nft_fib_ipv4 nft_fib_ipv6 nft_numgen
	nft_hash nft_reject nft_reject_ipv4 nft_reject_ipv6 nft_reject_inet nft_limit nft_log nft_counter nft_objref nft_compat
	nf_flow_table nf_flow_table_inet nft_flow_offload
	veth bridge vxlan dummy sctp
)
