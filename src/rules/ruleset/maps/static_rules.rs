//! The fixed part of a table for `--ruleset-layout=maps`: the sets, maps, chains and rules that do not depend on Services.

use std::sync::Arc;

use nft::expr::FibAddress;
use nft::statement::CtBit;
use nft::{
    ChainType, DataType, Hook, Operand, Rule, Set, SetFlags, Statement, Table, TableName, Types, ValueType, Verdict,
};

use crate::ruleset::counters::{self, Counters};
use crate::ruleset::endpoint_sets;
use crate::ruleset::kinds::ChainKind;
use crate::ruleset::names::{self, FrontendType, chain, set};
use crate::ruleset::shared::{
    Fields, base, commented, common_sets, from_itself, goto, jump, local_pod, marked, priority, purpose, regular,
    to_node_port_address,
};
use crate::ruleset::{Settings, guard, localhost, notes, service_ips};
use crate::table::{ChainContent, StaticRules};

/// The fixed part of a table: everything that does not depend on Services.
pub(in crate::ruleset) fn static_rules(settings: &Settings) -> StaticRules {
    let name = TableName::new(settings.family.into(), names::TABLE);
    let (family, maps, is_counted) = (settings.family, settings.endpoint_maps, settings.counters.count_endpoints());
    StaticRules {
        table: Table { name, comment: Some(names::TABLE_COMMENT.into()) },
        owned: settings.owned,
        sets: sets(settings).into_iter().map(Arc::new).collect(),
        slotted: endpoint_sets::all_maps(maps, is_counted),
        shared: endpoint_sets::shared_sets(),
        chains: Rules { settings, fields: Fields::of(family) }.chains(),
        kinds: &[],
        on_demand: endpoint_sets::on_demand(family, maps, is_counted),
        former: endpoint_sets::former,
    }
}

fn sets(settings: &Settings) -> Vec<Set> {
    let family = settings.family;
    let fields = Fields::of(family);
    let mut sets = Vec::from(common_sets(family));
    sets.push(notes::set(family));
    sets.push(endpoint_sets::hairpin_set(&fields));
    sets.extend(source_sets(&fields));
    for frontend_type in FrontendType::BOTH {
        sets.extend(verdict_maps(&fields, frontend_type));
        let is_counted = settings.counters.count_endpoints();
        sets.extend(endpoint_sets::slot_maps(&fields, frontend_type, settings.endpoint_maps, is_counted));
    }
    sets.extend(endpoint_sets::affinity_sets(family));
    sets.extend(localhost::set(settings));
    sets.extend(service_ips::external_ips(settings));
    counters::add(settings.counters, &mut sets);
    sets
}

/// The set of frontends with source ranges, and the set of these ranges (D17).
fn source_sets(fields: &Fields) -> [Set; 2] {
    let frontend = [fields.address, DataType::InetProto, DataType::InetService];
    let source = frontend.into_iter().chain([fields.address]).collect();
    let mut sources = Set::new(set::SOURCES, Types::Named(source));
    sources.flags = SetFlags { interval: true, ..SetFlags::default() };
    [
        commented(Set::new(set::RESTRICTED, Types::Named(frontend.to_vec())), "Frontends with source ranges"),
        commented(sources, "Frontend . source range that may use it"),
    ]
}

/// The maps from frontend to verdict for one type of frontend.
fn verdict_maps(fields: &Fields, frontend_type: FrontendType) -> [Set; 4] {
    let verdicts = |name: &str, comment| {
        let types = Types::Named(fields.of_type(frontend_type).iter().map(|field| field.data_type()).collect());
        commented(Set::map(name, types, ValueType::Verdict), comment)
    };
    [
        verdicts(names::dispatch(frontend_type), "Frontend : number of endpoints and how to get there"),
        verdicts(names::cluster_policy(frontend_type), "External policy Local, for pods and this host"),
        verdicts(names::local_policy(frontend_type), "External policy Local, for other clients"),
        verdicts(names::no_endpoints(frontend_type), purpose::NO_ENDPOINTS),
    ]
}

/// Builds the rules of one table.
struct Rules<'a> {
    settings: &'a Settings,
    fields: Fields,
}

impl Rules<'_> {
    fn chains(&self) -> Vec<ChainContent> {
        let mut chains = self.base_chains();
        chains.extend([
            regular(chain::SERVICES, purpose::SERVICES, self.services()),
            regular(chain::NODEPORTS, purpose::NODEPORTS, vec![self.vmap(FrontendType::NodePort, set::NODEPORTS)]),
            regular(
                chain::MARK_MASQ,
                purpose::MARK_MASQ,
                vec![Rule::new([Statement::SetMarkBits(self.settings.masquerade_mark)])],
            ),
            regular(
                chain::POSTROUTING,
                "Masquerades what is marked, and pods that reach themselves",
                self.postrouting(),
            ),
            regular(chain::INPUT, "Refuses frontends without endpoints", self.input()),
            regular(chain::SERVICES_FILTER, purpose::SERVICES_FILTER, self.services_filter()),
            regular(chain::REJECT, purpose::REJECT, vec![Rule::new([Statement::Reject])]),
        ]);
        for frontend_type in FrontendType::BOTH {
            chains.push(regular(
                &ChainKind::ExternalLocal(frontend_type).to_string(),
                "External policy Local: by the packet's origin",
                self.external_local(frontend_type),
            ));
            chains.push(regular(
                &ChainKind::ExternalLocalHost(frontend_type).to_string(),
                "External policy Local: packets of this host",
                self.external_local_host(frontend_type),
            ));
        }
        chains.extend(endpoint_sets::affinity_chains(self.settings.family));
        chains.extend(localhost::chain(self.settings));
        service_ips::add(self.settings, &mut chains);
        guard::add(self.settings, &mut chains);
        chains
    }

    /// The base chains. Only the first packet of a connection passes the nat chains. Each rule of the filter chains first matches the state of
    /// the connection, so packets of established connections go to no other chain.
    fn base_chains(&self) -> Vec<ChainContent> {
        let call = |target| vec![Rule::new([jump(target)])];
        let new_only = |target| vec![Rule::new([Statement::CtBit(CtBit::StateNew), jump(target)])];
        let nat =
            |name, hook, priority, purpose, target| base(name, ChainType::Nat, hook, priority, purpose, call(target));
        let filter = |name, hook, purpose, target| {
            base(name, ChainType::Filter, hook, priority::FILTER, purpose, new_only(target))
        };
        let mut output = filter(chain::FILTER_OUTPUT, Hook::Output, purpose::FILTER_OUTPUT, chain::SERVICES_FILTER);
        output.rules.splice(..0, localhost::entry(self.settings));
        vec![
            nat(chain::NAT_PREROUTING, Hook::Prerouting, priority::DSTNAT, purpose::PREROUTING, chain::SERVICES),
            nat(chain::NAT_OUTPUT, Hook::Output, priority::DSTNAT, purpose::OUTPUT, chain::SERVICES),
            nat(chain::NAT_POSTROUTING, Hook::Postrouting, priority::SRCNAT, purpose::POSTROUTING, chain::POSTROUTING),
            filter(chain::FILTER_INPUT, Hook::Input, purpose::FILTER_INPUT, chain::INPUT),
            filter(chain::FILTER_FORWARD, Hook::Forward, purpose::FILTER_FORWARD, chain::SERVICES_FILTER),
            output,
        ]
    }

    /// A rule that applies the verdict that a map has for the packet's frontend.
    fn vmap(&self, frontend_type: FrontendType, map: &str) -> Rule {
        Rule::new([Statement::Vmap(self.fields.of_type(frontend_type), map.into())])
    }

    fn counts(&self) -> bool {
        self.settings.counters > Counters::Off
    }

    fn match_destination(&self, operand: Operand) -> Statement {
        Statement::Match(vec![self.fields.destination], operand)
    }

    fn to_cluster_ip(&self) -> Statement {
        self.match_destination(Operand::InSet(set::CLUSTER_IPS.into()))
    }

    /// Drops packets from clients outside the source ranges (D17), marks packets for masquerading (D8), and looks up the frontend by
    /// address (D1, D3), then by node port (D19).
    fn services(&self) -> Vec<Rule> {
        let frontend_and_source = self.fields.frontend().into_iter().chain([self.fields.source]).collect();
        let mut restricted = [
            Statement::Match(self.fields.frontend(), Operand::InSet(set::RESTRICTED.into())),
            Statement::Match(frontend_and_source, Operand::NotInSet(set::SOURCES.into())),
        ];
        if self.counts() {
            // Set `lb-restricted` has the counters. Its look-up comes last, so that only dropped packets are counted.
            restricted.reverse();
        }
        let mut rules = vec![Rule::new([&restricted[..], &[Statement::Verdict(Verdict::Drop)]].concat())];
        let mark = jump(chain::MARK_MASQ);
        if self.settings.masquerade_all {
            rules.push(Rule::new([self.to_cluster_ip(), mark]));
        } else if let Some(local) = &self.settings.local_traffic {
            rules.push(Rule::new([self.to_cluster_ip(), local_pod(&self.fields, local, false), mark]));
        }
        rules.push(self.vmap(FrontendType::Address, set::SERVICES));
        rules.push(Rule::new([to_node_port_address(self.settings), vec![goto(chain::NODEPORTS)]].concat()));
        rules
    }

    /// External policy Local: chooses the list of endpoints by the packet's origin (D6, D7).
    fn external_local(&self, frontend_type: FrontendType) -> Vec<Rule> {
        let mut rules = Vec::new();
        if let Some(local) = &self.settings.local_traffic {
            let to_cluster =
                Statement::Vmap(self.fields.of_type(frontend_type), names::cluster_policy(frontend_type).into());
            rules.push(Rule::new([local_pod(&self.fields, local, true), to_cluster]));
        }
        rules.push(Rule::new([
            Statement::FibLocal(FibAddress::Source),
            goto(&ChainKind::ExternalLocalHost(frontend_type).to_string()),
        ]));
        rules.push(self.vmap(frontend_type, names::local_policy(frontend_type)));
        rules
    }

    fn external_local_host(&self, frontend_type: FrontendType) -> Vec<Rule> {
        vec![Rule::new([jump(chain::MARK_MASQ)]), self.vmap(frontend_type, names::cluster_policy(frontend_type))]
    }

    /// Masquerades marked packets (D9), and packets from pods to themselves (D10).
    fn postrouting(&self) -> Vec<Rule> {
        let end = [Statement::MasqueradeFullyRandom];
        vec![
            Rule::new([&marked(self.settings.masquerade_mark)[..], &end].concat()),
            Rule::new([&from_itself(&self.fields)[..], &end].concat()),
        ]
    }

    /// Rejects node ports without endpoints, only for packets that arrive for this host (D13), and other frontends without endpoints.
    fn input(&self) -> Vec<Rule> {
        let mut node_ports = to_node_port_address(self.settings);
        node_ports.push(Statement::Vmap(self.fields.node_port(), set::NO_ENDPOINTS_NODEPORTS.into()));
        vec![Rule::new(node_ports), self.vmap(FrontendType::Address, set::NO_ENDPOINTS)]
    }

    /// Rejects frontends without endpoints (D2, D3) and unused ports of cluster IPs (D14), drops unused cluster IPs (D15), and, if configured,
    /// rejects unused ports of external and load balancer IPs (D26).
    fn services_filter(&self) -> Vec<Rule> {
        let unallocated = self.match_destination(Operand::InSet(set::SERVICE_CIDRS.into()));
        let counter = self.counts().then_some(Statement::Counter);
        let counted = |matched, end| {
            Rule::new([Some(matched), counter.clone(), Some(end)].into_iter().flatten().collect::<Vec<_>>())
        };
        let mut rules = vec![
            self.vmap(FrontendType::Address, set::NO_ENDPOINTS),
            counted(self.to_cluster_ip(), goto(chain::REJECT)),
            counted(unallocated, Statement::Verdict(Verdict::Drop)),
        ];
        rules.extend(service_ips::refusal(self.settings));
        rules
    }
}
