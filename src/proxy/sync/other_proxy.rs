//! Handles another kube-proxy, upstream's in mode nftables, that writes to the same tables while this one runs.
//!
//! Takes the tables as they are read back. Recognises upstream's objects by the names of its chains and sets (`proxier.go` in
//! `pkg/proxy/nftables` of Kubernetes), and takes them out of the comparison: while upstream's proxy runs, its objects stay, and this proxy
//! repairs only what upstream's proxy changed of this proxy's objects. Upstream's proxy does not use the writer lock, and a later sync of
//! it writes again what it misses: if this proxy removed those objects each time, both programs would rewrite the tables again and again.
//! Packets do not reach upstream's objects, because this proxy's base chains lead elsewhere; the exceptions are upstream's two base chains
//! before DNAT (source ranges of load balancers), which stay in place too.
//!
//! Invariant: upstream's objects are kept only after a write by another program, and for ten minutes after the last one. Then the next
//! comparison removes them.

use std::time::{Duration, Instant};

use nft::TableDump;

/// How long after the last write another kube-proxy counts as running.
const PRESENT: Duration = Duration::from_secs(600);

const CHAINS: [&str; 9] = [
    "cluster-ips-check",
    "filter-output-pre-dnat",
    "filter-prerouting-pre-dnat",
    "firewall-check",
    "masquerading",
    "nodeport-endpoints-check",
    "reject-chain",
    "service-endpoints-check",
    "services",
];
const SETS: [&str; 7] = [
    "firewall-ips",
    "hairpin-connections",
    "no-endpoint-nodeports",
    "no-endpoint-services",
    "nodeport-ips",
    "service-ips",
    "service-nodeports",
];

/// The state of another kube-proxy, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct OtherProxy {
    /// When objects of the other kube-proxy were last found after a write by another program.
    seen: Option<Instant>,
    /// Whether another program wrote since the tables were last read.
    foreign_write: bool,
    /// Whether another kube-proxy was detected since [`OtherProxy::take_news`] was last called.
    news: bool,
}

impl OtherProxy {
    /// Notes that another program wrote to the tables.
    pub(super) fn note_foreign_write(&mut self) {
        self.foreign_write = true;
    }

    /// Whether another kube-proxy counts as running.
    pub(super) fn is_present(&self, now: Instant) -> bool {
        self.seen.is_some_and(|seen| now.saturating_duration_since(seen) < PRESENT)
    }

    /// Whether another kube-proxy was detected since the last call.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Takes the other proxy's objects out of a table's dump, if that proxy may be running. Returns whether there were chains among them.
    pub(super) fn set_aside(&self, dump: &mut TableDump, now: Instant) -> bool {
        (self.foreign_write || self.is_present(now)) && take_out(dump)
    }

    /// Notes that all tables were read, and whether objects of the other proxy were found.
    pub(super) fn tables_read(&mut self, found: bool, now: Instant) {
        if std::mem::take(&mut self.foreign_write) && found {
            self.news |= !self.is_present(now);
            self.seen = Some(now);
        }
    }
}

/// Takes the other proxy's objects out of a dump. Returns whether there were chains among them.
fn take_out(dump: &mut TableDump) -> bool {
    let before = dump.chains.len();
    dump.chains.retain(|name, _| !is_chain(name));
    // Anonymous sets and maps are called `__set` or `__map` with a number. They live in rules, and rules are compared as a whole.
    dump.sets.retain(|name, _| !is_set(name) && !name.starts_with("__"));
    let is_its = |name: &str| is_chain(name) || is_set(name) || name.starts_with("__");
    dump.unreadable.retain(|error| !error.name.as_deref().is_some_and(is_its));
    dump.chains.len() < before
}

/// Whether upstream's kube-proxy gives a chain this name, and this program none.
pub(crate) fn is_chain(name: &str) -> bool {
    CHAINS.contains(&name) || is_of_a_service(name, &["endpoint", "external", "firewall", "service"])
}

fn is_set(name: &str) -> bool {
    SETS.contains(&name) || is_of_a_service(name, &["affinity"])
}

/// Recognises names such as `service-4AT6LBPK-shop/web/tcp/http`: a kind, eight characters of a hash in base 32, a service port.
fn is_of_a_service(name: &str, kinds: &[&str]) -> bool {
    let Some((kind, rest)) = name.split_once('-') else { return false };
    let Some((hash, port)) = rest.split_once('-') else { return false };
    let is_base_32 = |byte: u8| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte);
    // In this proxy's own names the namespace is at this position: it may consist of digits, but has no capitals.
    let is_hash = hash.len() == 8 && hash.bytes().all(is_base_32) && hash.bytes().any(|byte| byte.is_ascii_uppercase());
    kinds.contains(&kind) && is_hash && port.contains('/')
}

#[cfg(test)]
mod tests {
    use nft::{Chain, Family, Table, TableName};

    use super::*;

    fn dump(chains: &[&str]) -> TableDump {
        let chain =
            |name: &&str| ((*name).into(), (Chain { name: (*name).into(), base: None, comment: None }, Vec::new()));
        TableDump {
            chains: chains.iter().map(chain).collect(),
            ..TableDump::empty(Table { name: TableName::new(Family::Ip, "kube-proxy"), comment: None })
        }
    }

    #[test]
    fn its_names_are_distinguished_from_those_of_this_proxy() {
        for name in [
            "services",
            "service-4AT6LBPK-shop/web/tcp/http",
            "endpoint-HVFWP5L3-shop/local/tcp/http__10.244.1.11/8080",
        ] {
            assert!(is_chain(name), "{name}");
        }
        assert!(is_set("affinity-GTK6MW7G-shop/sticky/tcp/http__10.244.1.11/8080") && is_set("service-ips"));
        for name in
            ["services", "cluster-ips", "affinity-22222222-a/web/http/tcp-8080", "affinity-shop/web/http/tcp-8080"]
        {
            assert!(!is_set(name), "{name}");
        }
        for name in ["nat-prerouting", "KUBE-SERVICES", "external-local", "nodeport-external-local-host", "lb-3"] {
            assert!(!is_chain(name), "{name}");
        }
    }

    #[test]
    fn its_objects_stay_for_ten_minutes_after_its_last_write_and_only_after_one() {
        let (mut other, start) = (OtherProxy::default(), Instant::now());
        let left = |other: &mut OtherProxy, now| {
            let mut dump = dump(&["lb-1", "services"]);
            let found = other.set_aside(&mut dump, now);
            other.tables_read(found, now);
            dump.chains.len()
        };
        assert_eq!(left(&mut other, start), 2, "left by a process that has ended");
        other.note_foreign_write();
        assert_eq!(left(&mut other, start), 1);
        assert!(other.take_news() && !other.take_news());
        assert_eq!(left(&mut other, start + PRESENT / 2), 1);
        assert_eq!(left(&mut other, start + PRESENT), 2, "it has not written for so long");
        other.note_foreign_write();
        assert_eq!(left(&mut other, start + PRESENT), 1);
        assert!(other.take_news(), "it is back");
    }
}
