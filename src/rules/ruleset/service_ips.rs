//! The set and rules for addresses of Services as a whole: the node answers pings to them (`nftables.answerPings`), and refuses ports of
//! external IPs and load balancer IPs that no Service has (`nftables.refuseUnusedPorts`).
//!
//! Without these rules such a packet follows the routes of the node. They may lead it back to the router that sent it, which sends it here
//! again, until its TTL ends.
//!
//! Normally no interface has the address of a Service, so the kernel does not answer an echo request to it. The rules translate the request
//! to an address of the node. The kernel answers it, and connection tracking translates the answer back. `redirect` would not do: it takes an
//! address of the interface at which the request arrives, and drops the request where a pod's interface has none.
//!
//! Takes the settings and the addresses of a Service; adds to the chains and objects of any layout. All layouts have the same rules.
//! Invariant: with both settings off nothing is added but the cluster IPs in use.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nft::expr::FibAddress;
use nft::statement::CtBit;
use nft::{Element, Operand, Rule, Set, Statement, Types, Verdict};

use super::Settings;
use super::names::{chain, set};
use super::shared::{Fields, commented, goto, is_protocol, jump, lead, regular};
use crate::endpoints::ServiceSelection;
use crate::model::{Destination, Family, FrontendKind, Protocol};
use crate::table::{ChainContent, ServiceObjects};

/// What becomes of pings to addresses of Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pings {
    /// No rule answers them.
    #[default]
    Ignored,
    /// This address of the node answers them (D25). `None`: the node has no address for it, or it is not known yet.
    AnsweredBy(Option<IpAddr>),
}

/// Whether the table has the set of external IPs and load balancer IPs.
fn has_set(settings: &Settings) -> bool {
    settings.refuse_unused || settings.pings != Pings::Ignored
}

/// The set of external IPs and load balancer IPs.
pub(super) fn external_ips(settings: &Settings) -> Option<Set> {
    let types = Types::Named(vec![Fields::of(settings.family).address]);
    has_set(settings).then(|| commented(Set::new(set::EXTERNAL_IPS, types), "External and load balancer IPs in use"))
}

/// Adds the addresses of a Service: its cluster IPs, and, if a rule looks them up, its external IPs and load balancer IPs. An address with
/// `ipMode: Proxy` is no frontend, so it is not among them.
pub(super) fn write(settings: &Settings, selection: &ServiceSelection, objects: &mut ServiceObjects) {
    let of_family = |ip: &IpAddr| Family::of(*ip) == settings.family;
    let cluster_ips = selection.cluster_ips.iter().copied().filter(of_family);
    objects.extend(set::CLUSTER_IPS, cluster_ips.map(|ip| Element::new(ip.into())));
    if !has_set(settings) {
        return;
    }
    let external = selection.ports.iter().flat_map(|port| &port.frontends).filter_map(|frontend| {
        let is_external = matches!(frontend.kind, FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp);
        match frontend.frontend.destination {
            Destination::Address(ip) if is_external && of_family(&ip) => Some(ip),
            _ => None,
        }
    });
    // A set, because the Service's addresses come again for each of its ports.
    let external: BTreeSet<_> = external.collect();
    objects.extend(set::EXTERNAL_IPS, external.into_iter().map(|ip| Element::new(ip.into())));
}

/// Adds the chains that answer and refuse, and the rules of base chains that lead echo requests to them.
pub(super) fn add(settings: &Settings, chains: &mut Vec<ChainContent>) {
    if let Pings::AnsweredBy(Some(answer)) = settings.pings {
        let entry = Rule::new([Statement::EchoRequest, jump(chain::PINGS)]);
        lead(chains, [chain::NAT_PREROUTING, chain::NAT_OUTPUT], &entry);
        let to = |set: &str| {
            let is_to = Statement::Match(vec![Fields::of(settings.family).destination], Operand::InSet(set.into()));
            Rule::new([is_to, Statement::DnatAddress(answer)])
        };
        let rules = vec![not_to_this_host(), to(set::CLUSTER_IPS), to(set::EXTERNAL_IPS)];
        chains.push(regular(chain::PINGS, "Pings to addresses of Services: the node answers", rules));
    }
    if settings.refuse_unused {
        let purpose = "Refuses unused ports of external and load balancer IPs";
        chains.push(regular(chain::EXTERNAL_IPS, purpose, refuse()));
    }
}

/// The rule that leads new connections to an external IP or load balancer IP to the chain that refuses them.
pub(super) fn refusal(settings: &Settings) -> Option<Rule> {
    let destination = vec![Fields::of(settings.family).destination];
    let is_external = Statement::Match(destination, Operand::InSet(set::EXTERNAL_IPS.into()));
    settings.refuse_unused.then(|| Rule::new([is_external, jump(chain::EXTERNAL_IPS)]))
}

/// The rules that refuse a packet to an external IP or load balancer IP, with two exceptions: programs of this host serve an address of this
/// host, and a translated connection goes to an endpoint that has the address.
fn refuse() -> Vec<Rule> {
    vec![
        not_to_this_host(),
        Rule::new([Statement::CtBit(CtBit::StatusDnat), Statement::Verdict(Verdict::Return)]),
        // Without the counter some versions of nft leave out the protocol of this rule in their listing.
        Rule::new([is_protocol(Protocol::Tcp), Statement::Counter, Statement::RejectTcp]),
        Rule::new([goto(chain::REJECT)]),
    ]
}

fn not_to_this_host() -> Rule {
    Rule::new([Statement::FibLocal(FibAddress::Destination), Statement::Verdict(Verdict::Return)])
}
