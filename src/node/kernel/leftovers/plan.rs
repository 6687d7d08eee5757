//! Finds the chains and rules that kube-proxy made in a table of iptables. Does no I/O.
//!
//! Takes the names of a table's chains and the jumps of its rules ([`TableOutline`]). Returns the jumps to delete, and the chains to empty
//! and then to delete. Works for iptables-nft and for iptables-legacy. Chains of the kubelet (KUBE-FIREWALL, KUBE-MARK-DROP,
//! KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT) and of other programs are left out. KUBE-MARK-MASQ is kube-proxy's own since 1.28. It stays if
//! the kubelet made it, as older kubelets did together with KUBE-MARK-DROP, and if chains of other programs, such as port-mapping plug-ins,
//! jump to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::TableOutline;

/// The tables in which kube-proxy makes chains.
pub(super) const TABLES: [&str; 3] = ["filter", "nat", "mangle"];

// Names of chains that upstream's kube-proxy makes in modes iptables and ipvs. They are not the names of chains in this program's tables.
const CANARY: &str = "KUBE-PROXY-CANARY";
const SERVICES: &str = "KUBE-SERVICES";
const NODEPORTS: &str = "KUBE-NODEPORTS";
const NODE_PORT: &str = "KUBE-NODE-PORT";
const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// Old kubelets make this chain together with KUBE-MARK-MASQ, and kube-proxies of the same releases make it too.
const MARK_DROP: &str = "KUBE-MARK-DROP";

/// The chains of modes iptables and ipvs in table filter.
const FILTER: [&str; 10] = [
    SERVICES,
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    NODEPORTS,
    "KUBE-PROXY-FIREWALL",
    NODE_PORT,
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
    CANARY,
];
/// The chains of modes iptables and ipvs in table nat.
const NAT: [&str; 7] = [SERVICES, NODEPORTS, "KUBE-POSTROUTING", NODE_PORT, "KUBE-LOAD-BALANCER", MARK_MASQ, CANARY];
/// The prefixes of chains of single Services and endpoints, in table nat.
const PREFIXES: [&str; 6] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-", "KUBE-SEP-"];

/// The clean-up of one table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The rules of built-in chains that jump to kube-proxy's chains, by chain and handle.
    pub(super) jumps: Vec<(Arc<str>, u64)>,
    /// Kube-proxy's chains. Once the jumps are gone, packets reach them only through chains of other programs.
    pub(super) chains: Vec<Arc<str>>,
    /// The chains that stay, and why.
    pub(super) warnings: Vec<String>,
}

/// Returns the clean-up of the table with the name `table`. Warnings call the table `label`.
pub(super) fn plan(table: &str, label: &str, outline: &TableOutline) -> Plan {
    let named = outline.chains.iter().filter(|(name, is_base)| !**is_base && is_proxys(table, name));
    let mut chains: BTreeSet<&Arc<str>> = named.map(|(name, _)| name).collect();
    let mut plan = Plan::default();
    if chains.contains(&Arc::from(MARK_MASQ))
        && let Some(reason) = other_user_of_mark(outline, &chains)
    {
        plan.warnings.push(format!("chain {MARK_MASQ} of table {label} stays: {reason}"));
        chains.retain(|name| &***name != MARK_MASQ);
    }
    let jumps = outline.rules.iter().filter(|rule| {
        outline.chains.get(&rule.chain) == Some(&true) && rule.target.as_ref().is_some_and(|to| chains.contains(to))
    });
    plan.jumps = jumps.map(|rule| (Arc::clone(&rule.chain), rule.handle)).collect();
    plan.chains = chains.into_iter().cloned().collect();
    plan
}

fn is_proxys(table: &str, chain: &str) -> bool {
    match table {
        "filter" => FILTER.contains(&chain),
        "nat" => NAT.contains(&chain) || PREFIXES.iter().any(|prefix| chain.starts_with(prefix)),
        "mangle" => chain == CANARY,
        _ => false,
    }
}

/// Returns why KUBE-MARK-MASQ has to stay; `None` if no other program needs it.
fn other_user_of_mark(outline: &TableOutline, chains: &BTreeSet<&Arc<str>>) -> Option<String> {
    if outline.chains.contains_key(MARK_DROP) {
        return Some(format!("{MARK_DROP} beside it shows that kubelet made it"));
    }
    let user = outline.rules.iter().find(|r| r.target.as_deref() == Some(MARK_MASQ) && !chains.contains(&r.chain))?;
    Some(format!("a rule of chain {} uses it", user.chain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nft::decode::RuleOutline;
    use nft::{Family, TableName};

    fn plan_of(table: &str, base: &[&str], chains: &[&str], rules: &[(&str, u64, &str)]) -> Plan {
        let all = base.iter().map(|chain| (Arc::from(*chain), true));
        let rule = |(chain, handle, to): &(&str, u64, &str)| RuleOutline {
            table: TableName::new(Family::Ip, table),
            chain: (*chain).into(),
            handle: *handle,
            target: (!to.is_empty()).then(|| (*to).into()),
        };
        let outline = TableOutline {
            chains: all.chain(chains.iter().map(|chain| (Arc::from(*chain), false))).collect(),
            rules: rules.iter().map(rule).collect(),
        };
        plan(table, &format!("ip {table}"), &outline)
    }

    // Jumps to kube-proxy's chains are deleted and these chains are emptied; those of the kubelet and of other programs stay (O1).
    #[test]
    fn jumps_go_and_chains_are_emptied_but_kubelets_and_others_stay() {
        let chains = [SERVICES, "KUBE-SVC-A", "KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "MINE", "KUBE-SVCX"];
        let rules = [("OUTPUT", 4, SERVICES), ("OUTPUT", 5, "MINE"), ("OUTPUT", 6, ""), ("MINE", 7, "KUBE-SVC-A")];
        let plan = plan_of("nat", &["OUTPUT"], &chains, &rules);
        assert_eq!(plan.jumps, [("OUTPUT".into(), 4)]);
        assert_eq!(plan.chains, [SERVICES.into(), "KUBE-SVC-A".into()]);
        assert_eq!(plan.warnings, [""; 0]);
    }

    // A chain is kube-proxy's only in the table in which kube-proxy makes it, and never if it is a built-in chain (O1).
    #[test]
    fn a_name_counts_in_its_own_table_and_not_as_a_built_in_chain() {
        let all = ["KUBE-SVC-A", "KUBE-POSTROUTING", "KUBE-FORWARD", "KUBE-PROXY-CANARY"];
        let chains = |name| plan_of(name, &[], &all, &[]).chains;
        assert_eq!(chains("mangle"), ["KUBE-PROXY-CANARY".into()]);
        assert_eq!(chains("filter"), ["KUBE-FORWARD".into(), "KUBE-PROXY-CANARY".into()]);
        assert_eq!(chains("nat"), ["KUBE-POSTROUTING".into(), "KUBE-PROXY-CANARY".into(), "KUBE-SVC-A".into()]);
        assert_eq!(chains("raw"), []);
        assert_eq!(plan_of("nat", &[SERVICES], &[], &[]), Plan::default());
    }

    // The mark chain is deleted unless another program needs it (O1).
    #[test]
    fn the_mark_chain_is_deleted_unless_another_program_needs_it() {
        let chains = ["KUBE-MARK-MASQ", "KUBE-SVC-A", "CNI-HOSTPORT-SETMARK"];
        let own = [("KUBE-SVC-A", 2, "KUBE-MARK-MASQ")];
        let used = [own[0], ("CNI-HOSTPORT-SETMARK", 3, "KUBE-MARK-MASQ")];
        let masq = Arc::from("KUBE-MARK-MASQ");
        let of = |chains: &[&str], rules: &[(&str, u64, &str)]| plan_of("nat", &[], chains, rules);
        assert!(of(&chains, &own).chains.contains(&masq));
        for plan in [of(&chains, &used), of(&["KUBE-MARK-MASQ", "KUBE-SVC-A", "KUBE-MARK-DROP"], &own)] {
            assert_eq!(plan.chains, ["KUBE-SVC-A".into()]);
            assert_eq!(plan.warnings.len(), 1, "{:?}", plan.warnings);
        }
    }
}
