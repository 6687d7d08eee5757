//! The parts of a bundle that no command prints: the node, its rules, tracked connections and sysctls, and the proxy's problems.
//!
//! Each function that the parent module calls with a [`Content`] writes one file of the bundle. No function changes anything on the node.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use nft::{Connection, Family, TableName};
use serde::Deserialize;

use super::part::Content;
use inspect::running::{Problem, Running};
use node::kernel::{LOCK, connections::Phase, each_connection, local_ports, process};
use rules::ruleset::flowtable;
use rules::ruleset::names::TABLE;

/// Sysctls below `/proc/sys/net` that are in the bundle beside those of [`CONNTRACK`], because they can decide what happens to packets to
/// Services.
const SYSCTLS: [&str; 9] = [
    "bridge/bridge-nf-call-ip6tables",
    "bridge/bridge-nf-call-iptables",
    "ipv4/conf/all/route_localnet",
    "ipv4/conf/all/rp_filter",
    "ipv4/ip_forward",
    "ipv4/ip_local_port_range",
    "ipv4/ip_local_reserved_ports",
    "ipv6/conf/all/disable_ipv6",
    "ipv6/conf/all/forwarding",
];
/// The sysctls of connection tracking: their folder, and how their names begin.
const CONNTRACK: (&str, &str) = ("netfilter", "nf_conntrack_");

pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Writes versions, the host's name, the time, the load, which kube-proxy runs, and whether it waits for its first objects.
pub(super) fn node(version: &str, mut content: Content) -> Result<()> {
    writeln!(content, "program   {version} (kube-proxy-nft {})", env!("CARGO_PKG_VERSION"))?;
    writeln!(content, "kernel    {} {}", process::release(), std::env::consts::ARCH)?;
    writeln!(content, "host      {}", host_name())?;
    writeln!(content, "time      {}", jiff::Timestamp::now())?;
    for (name, file) in [("uptime", "/proc/uptime"), ("load", "/proc/loadavg")] {
        writeln!(content, "{name:<9} {}", fs::read_to_string(file).unwrap_or_default().trim())?;
    }
    let running = Running::find();
    let waits = running.waits().map_or_else(String::new, |text| format!("\nwaits     {text}"));
    let proxy = running.proxy.context("cannot see which kube-proxy holds the lock")?;
    let proxy = proxy.map_or_else(|| "none of this program runs".to_owned(), |proxy| proxy.to_string());
    Ok(writeln!(content, "running   {proxy}{waits}")?)
}

/// Writes the problems of a health page, one per line; `none` if it has none.
pub(super) fn problems(page: &[u8], mut content: Content) -> Result<()> {
    #[derive(Deserialize)]
    struct Page {
        #[serde(default)]
        problems: Vec<Problem>,
    }
    let Page { problems } = serde_json::from_slice(page).context("cannot read the health page")?;
    if problems.is_empty() {
        return Ok(writeln!(content, "none")?);
    }
    Ok(problems.iter().try_for_each(|problem| writeln!(content, "{}", problem.text))?)
}

/// Writes the rules of the families ip, ip6 and inet: the tables `kube-proxy` with their elements, and the chains and rules of all other
/// tables. Only names the tables of other families.
pub(super) fn rules(mut content: Content) -> Result<()> {
    let mut connection = Connection::open()?;
    for head in connection.tables().map_err(|error| inspect::explain_rights(error.into()))? {
        let family = [Family::Ip, Family::Ip6, Family::Inet].into_iter().find(|family| family.number() == head.family);
        let Some(family) = family else {
            writeln!(content, "# table {} of family number {}: not read", head.name, head.family)?;
            continue;
        };
        let name = TableName::new(family, &head.name);
        if *head.name == *TABLE {
            match connection.read_changing_table(&name)? {
                Some(dump) => write!(content, "{dump}")?,
                None => writeln!(content, "# table {name} was deleted meanwhile")?,
            }
        } else {
            outline(&mut connection, &name, head.dormant, &mut content)?;
        }
    }
    Ok(())
}

/// Returns whose program a table is that is not one of the tables `kube-proxy`.
fn whose(name: &TableName) -> &'static str {
    let is_own = name.family == Family::Inet && [LOCK, flowtable::TABLE].contains(&&*name.name);
    if is_own { "this" } else { "another" }
}

/// Writes the chains and rules of a table other than the tables `kube-proxy`, without its sets and elements.
fn outline(connection: &mut Connection, name: &TableName, is_dormant: bool, content: &mut Content) -> Result<()> {
    const HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];
    writeln!(content, "table {name} {{\n\t# of {} program: chains and rules only", whose(name))?;
    if is_dormant {
        writeln!(content, "\tflags dormant")?;
    }
    let bases = connection.base_chains(name.family)?;
    for chain in connection.outline(name)?.unwrap_or_default().chains.into_keys() {
        writeln!(content, "\tchain {chain} {{")?;
        let base = bases.iter().find(|base| base.table == *name && base.name == chain);
        if let Some(hook) = base.and_then(|base| base.hook.as_ref()) {
            let at = usize::try_from(hook.number).ok().and_then(|number| HOOKS.get(number)).unwrap_or(&"ingress");
            let policy = if hook.drops { "drop" } else { "accept" };
            writeln!(content, "\t\ttype {} hook {at} priority {}; policy {policy};", hook.kind, hook.priority)?;
        }
        for head in connection.rules(name, &chain)? {
            writeln!(content, "\t\t{}", head.rule.to_nft(name.family))?;
        }
        writeln!(content, "\t}}")?;
    }
    Ok(writeln!(content, "}}")?)
}

/// Writes how many connections the kernel tracks, by family, protocol and phase. The connections of each Service are in `services.txt`.
pub(super) fn connections(mut content: Content) -> Result<()> {
    let mut counts: BTreeMap<(&str, u8), [u64; 3]> = BTreeMap::new();
    each_connection(|connection| {
        let family = if connection.original.source.is_ipv4() { "IPv4" } else { "IPv6" };
        let phase = match connection.phase {
            Phase::Open => 0,
            Phase::Unanswered => 1,
            Phase::Ended => 2,
        };
        counts.entry((family, connection.protocol)).or_default()[phase] += 1;
    })
    .context("cannot list the tracked connections: this needs CAP_NET_ADMIN")?;
    writeln!(content, "FAMILY  PROTOCOL        OPEN  UNANSWERED       ENDED")?;
    for ((family, protocol), [open, unanswered, ended]) in counts {
        let protocol = match protocol {
            6 => "TCP".to_owned(),
            17 => "UDP".to_owned(),
            132 => "SCTP".to_owned(),
            other => other.to_string(),
        };
        writeln!(content, "{family}    {protocol:<8}  {open:>10}  {unanswered:>10}  {ended:>10}")?;
    }
    Ok(writeln!(content, "Those of each Service are in services.txt; the limit is in sysctls.txt.")?)
}

/// Writes the sysctls of [`SYSCTLS`] and [`CONNTRACK`] with their values.
pub(super) fn sysctls(mut content: Content) -> Result<()> {
    let net = Path::new("/proc/sys/net");
    let (folder, start) = CONNTRACK;
    let entries = fs::read_dir(net.join(folder)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut all: Vec<String> =
        names.filter(|name| name.starts_with(start)).map(|name| format!("{folder}/{name}")).collect();
    all.extend(SYSCTLS.map(str::to_owned));
    all.sort();
    for name in all {
        let value = local_ports::whole(&net.join(&name)).unwrap_or_else(|error| format!("cannot be read: {error}"));
        writeln!(content, "net.{} = {}", name.replace('/', "."), value.trim())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_and_the_fast_path_are_of_this_program() {
        let whose = |family, name: &str| whose(&TableName::new(family, name));
        assert_eq!([LOCK, flowtable::TABLE].map(|name| whose(Family::Inet, name)), ["this"; 2]);
        assert_eq!([whose(Family::Ip, LOCK), whose(Family::Inet, "firewall")], ["another"; 2]);
    }
}
