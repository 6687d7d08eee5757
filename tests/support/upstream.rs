//! The commands that upstream's kube-proxy in mode nftables sends to `nft`, recorded: for tests in which one proxy takes over from the
//! other, and in which both run side by side.

/// Upstream's rules for Services of the test cluster; `shop/web` has the endpoints 0 and 2 there.
pub(crate) const RULES: &str = include_str!("../data/upstream.nft");

/// The base chains that upstream deletes and adds again at its start and with every full sync.
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

/// Returns the commands that upstream sends at its start (F9): it deletes and adds its base chains, adds its other objects, and flushes its
/// chains first.
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
