//! What upstream's kube-proxy in mode nftables sends to `nft`, recorded: for tests of the change between the two, and of both side by side.

/// What upstream has for Services of the test cluster; `shop/web` has the endpoints 0 and 2 there.
pub(crate) const RULES: &str = include_str!("../data/upstream.nft");

/// The base chains that upstream makes anew at its start and with every full sync.
const BASE_CHAINS: [(&str, &str); 8] = [
    ("filter-prerouting-pre-dnat", "filter hook prerouting priority -110"),
    ("filter-output-pre-dnat", "filter hook output priority -110"),
    ("filter-input", "filter hook input priority 0"),
    ("filter-forward", "filter hook forward priority 0"),
    ("filter-output", "filter hook output priority 0"),
    ("nat-prerouting", "nat hook prerouting priority -100"),
    ("nat-output", "nat hook output priority -100"),
    ("nat-postrouting", "nat hook postrouting priority 100"),
];

/// What upstream sends at its start (F9): its base chains are made anew, its other objects are added, its chains flushed first.
pub(crate) fn start() -> String {
    let mut text = String::new();
    for family in ["ip", "ip6"] {
        text += &format!("add table {family} kube-proxy {{ comment \"rules for kube-proxy\"; }}\n");
        for (chain, hook) in BASE_CHAINS {
            text += &format!(
                "add chain {family} kube-proxy {chain} {{ type {hook}; }}\ndelete chain {family} kube-proxy {chain}\n"
            );
        }
    }
    text + RULES
}
