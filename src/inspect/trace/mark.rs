//! The table that makes the kernel report packets, and the socket that gets the reports.
//!
//! The table belongs to its socket (the flag `owner`, kernel 5.12 and later): the kernel removes it when the socket closes, also after
//! SIGKILL, and no other program can change it. Its name has the process id, if the kernel tells it that in the initial PID namespace, so
//! that several traces can run. Its rules have no verdict. Two of them set `nftrace` on packets that match all conditions, each on at most
//! [`PER_SECOND`] packets a second after the first [`BURST`].
//! Unless all packets are traced, one of these conditions is that the packet is the first of its connection, so that the later packets of a
//! busy connection do not use up the limit. Two more chains see the packets right after the translation of their destination. The kernel
//! reports the headers of a packet with its first message about each base chain, so these chains show the translated destination even if no
//! other base chain follows.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nft::decode::{Event, Messages, Traced, traced};
use nft::machine::protocol;
use nft::socket::{Bus, Socket};
use nft::statement::CtBit;
use nft::{
    BaseChain, Chain, ChainType, Command, CommitError, Connection, Data, Family, Field, Hook, Operand, Rule, Statement,
    Table, TableName,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::explain::{Source, Target};

/// How many packets a second a rule marks at most, and how many at once.
const PER_SECOND: u64 = 20;
const BURST: u32 = 20;
/// The priority of the chains when TCP or all packets are traced: before the usual chains of other programs, and after the reassembly of
/// fragments (`NF_IP_PRI_CONNTRACK_DEFRAG`, -400).
const FIRST: i32 = -350;
/// The priority of the chains otherwise: just after connection tracking (-200), because only connection tracking knows the first packet of
/// a connection that is not TCP.
const TRACKED: i32 = -199;
/// The priority of the chains that see the packet just behind the translation of its destination (-100).
const TRANSLATED: i32 = -99;
/// The chains whose rules set `nftrace`.
const MARKING: [&str; 2] = ["arriving", "leaving"];
/// The netlink group of the trace reports (`NFNLGRP_NFTRACE`).
const GROUP: u32 = 9;
/// The size of the receive buffer in bytes, the kernel's overhead included.
const BUFFER: usize = 4 << 20;

/// The table that sets `nftrace`, which makes the kernel report packets. Dropping this value removes the table.
pub(super) struct Mark {
    pub(super) table: TableName,
    /// The socket that owns the table.
    _owner: Connection,
    reports: Socket,
    waiter: OwnedFd,
}

/// The reports that one call of `Mark::reports` read.
pub(super) struct Reports {
    /// The reports, in the kernel's order.
    pub(super) traced: Vec<Traced>,
    /// Whether reports were lost, because the socket's buffer was full.
    pub(super) lost: bool,
}

impl Mark {
    /// Creates the table, for packets from `from` to `to`: for the first packet of each connection, or for all packets.
    ///
    /// # Errors
    /// When the kernel refuses the table or the socket.
    pub(super) fn set(from: Source, to: Target, all: bool) -> Result<Self> {
        let reports = Socket::open(Bus::Netfilter).context("cannot open a netlink socket")?;
        reports.join(GROUP).context("cannot listen to the reports of nf_tables; CAP_NET_ADMIN is needed")?;
        // With a smaller buffer it overflows earlier, which the report says.
        let _ = reports.reserve_receive(BUFFER);
        let waiter = reports.duplicate().context("cannot wait for reports")?;
        let mut owner = Connection::open().context("cannot open a netlink socket")?;
        let pid = owner.caller().ok().flatten().map_or_else(std::process::id, |caller| caller.pid);
        let family = if to.address.is_ipv4() { Family::Ip } else { Family::Ip6 };
        let table = TableName::new(family, &format!("kube-proxy-trace-{pid}"));
        owner.commit(&commands(&table, pid, from, to, all)).map_err(|error| explained(&error))?;
        Ok(Self { table, _owner: owner, reports, waiter })
    }

    /// Reads the reports that have arrived. Waits at most `wait` for the first one.
    ///
    /// # Errors
    /// When the kernel refuses to give the reports.
    pub(super) fn reports(&mut self, wait: Duration) -> Result<Reports> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.min(Duration::from_millis(999)).subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.waiter, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let mut reports = Reports { traced: Vec::new(), lost: false };
        loop {
            match self.reports.receive_now() {
                Ok(None) => return Ok(reports),
                Ok(Some(bytes)) => reports.traced.extend(Messages::new(bytes).filter_map(traced)),
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                    reports.lost = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn commands(table: &TableName, pid: u32, from: Source, to: Target, all: bool) -> Vec<Command> {
    let priority = if all || to.protocol == protocol::TCP { FIRST } else { TRACKED };
    let comment: Arc<str> = format!("kube-proxy trace, pid {pid}").into();
    let mut commands = vec![Command::LockTable(Table { name: table.clone(), comment: Some(comment) })];
    let (marks, sees) = (statements(from, to, all), vec![is_from(from)]);
    for (name, hook, priority, statements) in [
        (MARKING[0], Hook::Prerouting, priority, &marks),
        (MARKING[1], Hook::Output, priority, &marks),
        ("arrived", Hook::Prerouting, TRANSLATED, &sees),
        ("left", Hook::Output, TRANSLATED, &sees),
    ] {
        let base = BaseChain { kind: ChainType::Filter, hook, priority };
        commands.push(Command::AddChain(table.clone(), Chain { name: name.into(), base: Some(base), comment: None }));
        let rule = Rule { statements: statements.clone(), comment: None };
        commands.push(Command::AddRule(table.clone(), name.into(), rule));
    }
    commands
}

/// Whether this is the first report of a packet: that of a rule of the table `own` which sets `nftrace`. If another program's rule set it
/// earlier on a packet that our rule does not match, the kernel reports the policy of our chain for that packet, and no rule.
pub(super) fn is_first(report: &Traced, own: &TableName) -> bool {
    report.table == *own && MARKING.contains(&&*report.chain) && matches!(report.event, Event::Rule(_))
}

fn is(field: Field, data: Data) -> Statement {
    Statement::Match(vec![field], Operand::Is(data))
}

fn is_from(from: Source) -> Statement {
    is(if from.address.is_ipv4() { Field::IpSaddr } else { Field::Ip6Saddr }, from.address.into())
}

fn statements(from: Source, to: Target, all: bool) -> Vec<Statement> {
    let destination = if to.address.is_ipv4() { Field::IpDaddr } else { Field::Ip6Daddr };
    let mut statements =
        vec![is_from(from), is(destination, to.address.into()), is(Field::L4Proto, to.protocol.into())];
    if to.port != 0 {
        statements.push(is(Field::ThDport, to.port.into()));
    }
    if !all {
        let is_tcp = to.protocol == protocol::TCP;
        statements.push(if is_tcp { Statement::TcpSyn } else { Statement::CtBit(CtBit::StateNewOrUntracked) });
    }
    statements.extend([Statement::LimitRate { per_second: PER_SECOND, burst: BURST }, Statement::Trace]);
    statements
}

fn explained(error: &CommitError) -> anyhow::Error {
    let errno = match error {
        CommitError::Refused(refusals) => refusals.first().map(|refusal| refusal.errno),
        _ => None,
    };
    // EOPNOTSUPP or EINVAL: most likely the kernel does not know the table flag `owner`.
    if [Some(95), Some(22)].contains(&errno) {
        return anyhow!(
            "this kernel has no tables that vanish with their owner (5.12 and newer), or lacks the expression limit: {error}"
        );
    }
    anyhow!("cannot set the mark for traced packets: {error}; CAP_NET_ADMIN is needed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(from: &str, to: &str, all: bool) -> Vec<String> {
        let table = TableName::new(Family::Ip, "kube-proxy-trace-7");
        commands(&table, 7, from.parse().unwrap(), to.parse().unwrap(), all).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_mark_matches_no_more_than_what_was_asked_for_and_is_limited() {
        for (to, all, conditions, priority) in [
            ("10.96.0.10:53/udp", true, "ip daddr 10.96.0.10 udp dport 53", "-350"),
            ("10.96.0.10:53/udp", false, "ip daddr 10.96.0.10 udp dport 53 ct state new,untracked", "-199"),
            (
                "10.96.0.10:53",
                false,
                "ip daddr 10.96.0.10 tcp dport 53 tcp flags & (fin | syn | rst | ack) == syn",
                "-350",
            ),
        ] {
            let lines = text("203.0.113.7", to, all);
            let rules: Vec<&String> = lines.iter().filter(|line| line.contains("nftrace")).collect();
            assert_eq!(rules.len(), 2, "{lines:?}");
            for rule in rules {
                let limit = "limit rate 20/second burst 20 packets meta nftrace set 1";
                assert!(rule.ends_with(&format!("ip saddr 203.0.113.7 {conditions} {limit}")), "{rule}");
            }
            assert!(lines[0].contains("owner"), "{}", lines[0]);
            assert_eq!(lines.iter().filter(|line| line.contains(priority)).count(), 2, "{lines:?}");
            let behind = lines.iter().filter(|line| line.ends_with(" ip saddr 203.0.113.7")).count();
            assert_eq!(behind, 2, "rules without an effect: {lines:?}");
        }
        let ping = text("fd00::1", "fd00::2/icmp", true);
        assert!(ping.iter().any(|line| line.contains("ip6 daddr fd00::2 meta l4proto")), "no port: {ping:?}");
    }
}
