//! The fixed part of a table for `--ruleset-layout=chains`: the sets, maps, chains and rules that do not depend on Services.

use std::sync::Arc;

use nft::expr::FibAddress;
use nft::statement::CtBit;
use nft::{ChainType, Hook, Operand, Rule, Set, Statement, Table, TableName, Types, ValueType, Verdict};

use crate::ruleset::counters::{self, Counters};
use crate::ruleset::endpoint_sets;
use crate::ruleset::names::{self, FrontendType, chain, set};
use crate::ruleset::shared::{
    Fields, base, commented, common_sets, from_itself, goto, jump, local_pod, marked, priority, purpose, regular,
    to_node_port_address,
};
use crate::ruleset::{LocalTraffic, Settings, guard, localhost, notes, service_ips};
use crate::table::{ChainContent, StaticRules};

/// The fixed part of a table: everything that does not depend on Services.
pub(in crate::ruleset) fn static_rules(settings: &Settings) -> StaticRules {
    let name = TableName::new(settings.family.into(), names::TABLE);
    let maps = settings.endpoint_maps;
    StaticRules {
        table: Table { name, comment: Some(names::TABLE_COMMENT.into()) },
        owned: settings.owned,
        sets: sets(settings).into_iter().map(Arc::new).collect(),
        slotted: endpoint_sets::all_maps(maps, true),
        shared: endpoint_sets::shared_sets(),
        chains: Rules { settings, fields: Fields::of(settings.family) }.chains(),
        kinds: &set::VERDICT_MAPS,
        on_demand: endpoint_sets::on_demand(settings.family, maps, true),
        former: endpoint_sets::former,
    }
}

fn sets(settings: &Settings) -> Vec<Set> {
    let fields = Fields::of(settings.family);
    let verdicts = |name, key: Vec<nft::Field>, comment| {
        let types = Types::Named(key.iter().map(|field| field.data_type()).collect());
        commented(Set::map(name, types, ValueType::Verdict), comment)
    };
    let mut sets = Vec::from(common_sets(settings.family));
    sets.push(notes::set(settings.family));
    sets.extend([
        verdicts(set::CHAINS_SERVICES, fields.frontend(), "Frontend : chain of the service port"),
        verdicts(set::CHAINS_NODEPORTS, fields.node_port(), "Node port : chain of the service port"),
        verdicts(set::NO_ENDPOINTS, fields.frontend(), purpose::NO_ENDPOINTS),
        verdicts(set::NO_ENDPOINTS_EXTERNAL, fields.frontend(), "External or load balancer IP without endpoints"),
        verdicts(set::NO_ENDPOINTS_NODEPORTS, fields.node_port(), purpose::NO_ENDPOINTS),
    ]);
    let first = |name, frontend_type: FrontendType| {
        let endpoint = Types::Of(vec![fields.destination, nft::Field::ThDport]);
        let map = Set::map(name, Types::Of(fields.of_type(frontend_type)), ValueType::Data(endpoint));
        commented(map, "Frontend : endpoint, for a packet that meets a change")
    };
    sets.extend([first(set::FALLBACK, FrontendType::Address), first(set::NODEPORT_FALLBACK, FrontendType::NodePort)]);
    sets.push(endpoint_sets::hairpin_set(&fields));
    sets.extend(
        FrontendType::BOTH
            .into_iter()
            // Endpoints always have counters, as in iptables mode.
            .flat_map(|frontend_type| endpoint_sets::slot_maps(&fields, frontend_type, settings.endpoint_maps, true)),
    );
    sets.extend(endpoint_sets::affinity_sets(settings.family));
    sets.extend(localhost::set(settings));
    sets.extend(service_ips::external_ips(settings));
    counters::add(settings.counters, &mut sets);
    sets
}

pub(super) fn rule(statements: impl Into<Vec<Statement>>, comment: &str) -> Rule {
    Rule { comment: Some(comment.into()), ..Rule::new(statements) }
}

/// Builds the rules of one table.
struct Rules<'a> {
    settings: &'a Settings,
    fields: Fields,
}

impl Rules<'_> {
    fn chains(&self) -> Vec<ChainContent> {
        let mark = Statement::SetMarkBits(self.settings.masquerade_mark);
        let mut chains = self.base_chains();
        chains.extend([
            regular(chain::SERVICES, purpose::SERVICES, self.services()),
            regular(
                chain::NODEPORTS,
                purpose::NODEPORTS,
                vec![rule([self.node_ports(set::CHAINS_NODEPORTS)], "service ports by node port")],
            ),
            regular(chain::FALLBACK, "Packets that met a change on their way to an endpoint", self.fallback()),
            regular(chain::MARK_MASQ, purpose::MARK_MASQ, vec![rule([mark], "masquerade when it leaves")]),
            regular(
                chain::POSTROUTING,
                "Masquerades what is marked, and pods that reach themselves",
                self.postrouting(),
            ),
            regular(chain::INPUT, "Refuses frontends without endpoints", self.input()),
        ]);
        chains.extend(endpoint_sets::affinity_chains(self.settings.family));
        chains.extend(localhost::chain(self.settings));
        service_ips::add(self.settings, &mut chains);
        guard::add(self.settings, &mut chains);
        if self.settings.drop_invalid {
            let drop = [Statement::Counter, Statement::Verdict(Verdict::Drop)];
            chains.push(regular(
                chain::FORWARD,
                "Packets of no known connection",
                vec![rule(drop, "no known connection; see conntrack.tcpBeLiberal")],
            ));
        }
        let drop = [Statement::Counter, Statement::Verdict(Verdict::Drop)];
        let external = self.frontends(set::NO_ENDPOINTS_EXTERNAL);
        chains.extend([
            regular(chain::SERVICES_FILTER, purpose::SERVICES_FILTER, self.services_filter()),
            regular(
                chain::EXTERNAL_SERVICES,
                "Refuses external frontends without endpoints",
                vec![rule([external], "external frontends without endpoints")],
            ),
            regular(
                chain::FIREWALL,
                "Sources that may not use a load balancer IP",
                vec![rule(drop, "source not in the load balancer's source ranges")],
            ),
            regular(
                chain::REJECT,
                purpose::REJECT,
                vec![rule([Statement::Counter, Statement::Reject], "nothing serves this port")],
            ),
        ]);
        chains
    }

    /// The base chains. Only the first packet of a connection passes the nat chains. Each rule of the filter chains first matches the state of
    /// the connection, so packets of established connections go to no other chain.
    fn base_chains(&self) -> Vec<ChainContent> {
        let nat = |name, hook, priority, purpose, rules| base(name, ChainType::Nat, hook, priority, purpose, rules);
        let services = || {
            let fallback = rule([jump(chain::FALLBACK)], "packets that met a change");
            vec![rule([jump(chain::SERVICES)], "service ports"), fallback]
        };
        let filter = |name, hook, purpose, rules| base(name, ChainType::Filter, hook, priority::FILTER, purpose, rules);
        let state = |bit, target, comment| rule([Statement::CtBit(bit), jump(target)], comment);
        let new = |target| state(CtBit::StateNew, target, "new connections");
        let mut forward = Vec::new();
        if self.settings.drop_invalid {
            forward.push(state(CtBit::StateInvalid, chain::FORWARD, "packets of no known connection"));
        }
        forward.push(new(chain::SERVICES_FILTER));
        let mut output: Vec<Rule> = localhost::entry(self.settings).into_iter().collect();
        output.push(new(chain::SERVICES_FILTER));
        let masquerading = vec![rule([jump(chain::POSTROUTING)], "masquerading")];
        vec![
            nat(chain::NAT_PREROUTING, Hook::Prerouting, priority::DSTNAT, purpose::PREROUTING, services()),
            nat(chain::NAT_OUTPUT, Hook::Output, priority::DSTNAT, purpose::OUTPUT, services()),
            nat(chain::NAT_POSTROUTING, Hook::Postrouting, priority::SRCNAT, purpose::POSTROUTING, masquerading),
            filter(chain::FILTER_INPUT, Hook::Input, purpose::FILTER_INPUT, vec![new(chain::INPUT)]),
            filter(chain::FILTER_FORWARD, Hook::Forward, purpose::FILTER_FORWARD, forward),
            filter(chain::FILTER_OUTPUT, Hook::Output, purpose::FILTER_OUTPUT, output),
        ]
    }

    fn frontends(&self, map: &str) -> Statement {
        Statement::Vmap(self.fields.frontend(), map.into())
    }

    fn node_ports(&self, map: &str) -> Statement {
        Statement::Vmap(self.fields.node_port(), map.into())
    }

    fn to(&self, set: &str) -> Statement {
        Statement::Match(vec![self.fields.destination], Operand::InSet(set.into()))
    }

    /// Looks up the frontend by address (D1, D3, D17), then by node port (D19).
    fn services(&self) -> Vec<Rule> {
        let node_ports = [to_node_port_address(self.settings), vec![goto(chain::NODEPORTS)]].concat();
        vec![
            rule([self.frontends(set::CHAINS_SERVICES)], "service ports by address"),
            rule(node_ports, "node ports; this is the last rule"),
        ]
    }

    /// Sends a packet to the first endpoint of its frontend if the chains of its service port chose none, because they changed meanwhile.
    fn fallback(&self) -> Vec<Rule> {
        let first = |frontend_type: FrontendType, map: &str| {
            Statement::DnatToMap(self.fields.of_type(frontend_type), map.into())
        };
        let mut node_port = to_node_port_address(self.settings);
        node_port.push(first(FrontendType::NodePort, set::NODEPORT_FALLBACK));
        vec![
            rule([first(FrontendType::Address, set::FALLBACK)], "first endpoint, by address"),
            rule(node_port, "first endpoint, by node port"),
        ]
    }

    /// Masquerades marked packets (D9), and packets from pods to themselves (D10).
    fn postrouting(&self) -> Vec<Rule> {
        let end = [Statement::Counter, Statement::MasqueradeFullyRandom];
        let marked = [&marked(self.settings.masquerade_mark)[..], &end].concat();
        let itself = [&from_itself(&self.fields)[..], &end].concat();
        vec![rule(marked, "masquerade what is marked"), rule(itself, "masquerade a pod that reaches itself")]
    }

    /// Rejects node ports without endpoints, only for packets that arrive for this host (D13), and other frontends without endpoints.
    fn input(&self) -> Vec<Rule> {
        let mut node_ports = to_node_port_address(self.settings);
        node_ports.push(self.node_ports(set::NO_ENDPOINTS_NODEPORTS));
        vec![
            rule(node_ports, "node ports without endpoints"),
            rule([jump(chain::EXTERNAL_SERVICES)], "external frontends"),
            rule([self.frontends(set::NO_ENDPOINTS)], "cluster IPs without endpoints"),
        ]
    }

    /// Rejects frontends without endpoints (D2, D3) and unused ports of cluster IPs (D14), drops unused cluster IPs (D15), and, if configured,
    /// rejects unused ports of external and load balancer IPs (D26).
    fn services_filter(&self) -> Vec<Rule> {
        let mut unused_port = vec![self.to(set::CLUSTER_IPS), goto(chain::REJECT)];
        if self.settings.counters > Counters::Off {
            unused_port.insert(1, Statement::Counter);
        }
        let unallocated = [self.to(set::SERVICE_CIDRS), Statement::Counter, Statement::Verdict(Verdict::Drop)];
        let mut rules = vec![
            rule([jump(chain::EXTERNAL_SERVICES)], "external frontends"),
            rule([self.frontends(set::NO_ENDPOINTS)], "cluster IPs without endpoints"),
            rule(unused_port, "a port of a cluster IP that no service has"),
            rule(unallocated, "an address for cluster IPs that no service has"),
        ];
        rules.extend(service_ips::refusal(self.settings));
        rules
    }
}

/// Matches traffic to cluster IPs that must be masqueraded whatever its endpoint is (D8); `None` if the configuration asks for none.
pub(super) fn masqueraded_in_cluster(settings: &Settings) -> Option<Vec<Statement>> {
    let fields = Fields::of(settings.family);
    let to_cluster_ip = Statement::Match(vec![fields.destination], Operand::InSet(set::CLUSTER_IPS.into()));
    if settings.masquerade_all {
        return Some(vec![to_cluster_ip]);
    }
    let from_elsewhere = |local: &LocalTraffic| vec![local_pod(&fields, local, false), to_cluster_ip];
    settings.local_traffic.as_ref().map(from_elsewhere)
}

/// Matches packets from local pods; `None` if the configuration does not say how to recognise them (D6, D7).
pub(super) fn from_local_pod(settings: &Settings) -> Option<Statement> {
    let fields = Fields::of(settings.family);
    settings.local_traffic.as_ref().map(|local| local_pod(&fields, local, true))
}

/// Matches packets that this host sends (D6).
pub(super) const FROM_HOST: Statement = Statement::FibLocal(FibAddress::Source);
