use super::*;
use crate::sync::effects::Effects;
use component::config::{self, Invocation};
use rules::endpoints::select;
use rules::model::testing::{name, node, port, service, slice, slice_port, state};
use rules::model::{Event, State};

fn config(node_port_addresses: &str) -> Config {
    let arg = format!("--nodeport-addresses={node_port_addresses}");
    let args = ["kube-proxy", "--manifests=/nowhere", "--hostname-override=here", "--proxy-mode=nftables", &arg];
    match config::load(args.map(Into::into)).unwrap() {
        Invocation::Run(config) => config,
        other => panic!("{other:?}"),
    }
}

fn listens(node_port_addresses: &str, interfaces: &[&str]) -> Vec<String> {
    let node = Node { ips: vec!["192.0.2.1".parse().unwrap()], ..node(None) };
    let interfaces: Vec<IpAddr> = interfaces.iter().map(|ip| ip.parse().unwrap()).collect();
    let mut checks = HealthChecks::default();
    checks.set_node(&config(node_port_addresses), Some(&node), &interfaces);
    checks.snapshot().listen.iter().map(ToString::to_string).collect()
}

const INTERFACES: &[&str] = &["127.0.0.1", "192.0.2.1", "198.51.100.1", "::1", "2001:db8::1"];

// Where every address accepts node ports, health-check node ports listen on the unspecified address (K5).
#[test]
fn a_family_that_matches_everything_has_the_unspecified_address() {
    assert_eq!(listens("0.0.0.0/0,::/0", INTERFACES), ["0.0.0.0", "::"]);
    assert_eq!(listens("192.0.2.0/24", INTERFACES), ["192.0.2.1", "::"]);
}

// Health-check node ports listen on the addresses inside the ranges, loopback included (K5).
#[test]
fn otherwise_it_has_the_local_addresses_inside_the_ranges_also_loopback() {
    assert_eq!(
        listens("127.0.0.0/8,192.0.2.0/24,2001:db8::/32", INTERFACES),
        ["127.0.0.1", "192.0.2.1", "2001:db8::1"]
    );
    assert_eq!(listens("203.0.113.0/24,2001:db8:1::/48", INTERFACES), [""; 0]);
}

// When the kernel does not list its addresses, health-check node ports listen on all, rather than on none (K5).
#[test]
fn addresses_that_cannot_be_listed_mean_all() {
    assert_eq!(listens("192.0.2.0/24,2001:db8::/32", &[]), ["0.0.0.0", "::"]);
}

// With `primary`, health-check node ports listen on the node's IP (K5).
#[test]
fn primary_is_the_nodes_own_address() {
    assert_eq!(listens("primary", INTERFACES), ["192.0.2.1"]);
}

/// Returns a dump with a health check on port 30000, whose comment names the Service, and an address for node ports.
fn dump(comment: &str, node_port_address: &str) -> TableDump {
    let set = |name: &str, element: nft::Element| {
        let set = nft::Set::new(name, nft::Types::Named(vec![nft::DataType::Ipv4Addr]));
        (set.name.clone(), (set, vec![element].into()))
    };
    let key = nft::Data::from(30_000_u16).then(IpAddr::V4(Ipv4Addr::LOCALHOST)).then(6_u8).then(80_u16);
    let check = nft::Element::mapping(key, nft::Value::Data(3_u32.into()));
    let address: IpAddr = node_port_address.parse().unwrap();
    let sets = [
        set(HEALTH_CHECKS, nft::Element { comment: Some(comment.into()), ..check.clone() }),
        // A comment of a health check in another map must not count.
        set("services", nft::Element { comment: Some("a/b; health check on 1, local endpoints: 2".into()), ..check }),
        set(NODEPORT_ADDRESSES, nft::Element::new(address.into())),
    ];
    let table = nft::Table { name: nft::TableName::new(nft::Family::Ip, "kube-proxy"), comment: None };
    TableDump { sets: sets.into(), ..TableDump::empty(table) }
}

// A restart takes over what the tables hold, so health-check node ports are answered before the objects are listed (K1, O7).
#[test]
fn what_a_former_process_wrote_counts_until_the_objects_are_known() {
    let mut checks = HealthChecks::default();
    let primary = config("primary");
    checks.adopt(&primary, Family::V4, &dump("ns/web", "192.0.2.1"));
    checks.adopt(&config("192.0.2.0/24"), Family::V4, &dump("other", "192.0.2.2"));
    let web = CheckName { service: name("ns/web"), family: Family::V4 };
    assert_eq!(checks.snapshot().checks, [(web, Check { port: 30000, local_endpoints: 3 })].into());
    assert_eq!(checks.snapshot().listen, ["192.0.2.1".parse::<IpAddr>().unwrap()], "CIDRs name them without the Node");
    checks.forget_adopted();
    assert_eq!(checks.snapshot().checks, [].into());
}

// Each successful sync opens and closes listeners as the Services ask for (K1).
#[test]
fn checks_come_change_and_go_with_their_service() {
    let mut web = service("ns/web", &["172.30.0.1", "fd30::1"]);
    web.health_check_node_port = Some(30000);
    web.ports = vec![port("http", 80)];
    let endpoints = slice("ns/a", "ns/web", &[slice_port("http", 8080)], &["10.0.0.1 @here"]);
    let mut state = state([Event::ServiceApplied(web), Event::SliceApplied(endpoints)]);
    let mut checks = HealthChecks::default();
    let mut now = |state: &State| {
        let web = name("ns/web");
        let health_checks = select(state, &web).map(|selection| selection.health_checks).unwrap_or_default();
        let effects = Effects { health_checks, ..Effects::default() };
        checks.committed(&web, &Committed::AsPlanned(effects), &[Family::V4]);
        checks.snapshot()
    };

    let first = now(&state);
    let key = CheckName { service: name("ns/web"), family: Family::V4 };
    assert_eq!(first.checks, [(key, Check { port: 30000, local_endpoints: 1 })].into(), "only the families served");
    assert!(Arc::ptr_eq(&first, &now(&state)), "nothing changed, nothing copied");
    state.apply(Event::SliceDeleted(name("ns/a")));
    assert_eq!(now(&state).checks.values().map(|check| check.local_endpoints).collect::<Vec<_>>(), [0]);
    state.apply(Event::ServiceDeleted(name("ns/web")));
    assert!(now(&state).checks.is_empty());
    assert_eq!(first.checks.len(), 1, "what was handed out stays");
}

// A family that is not programmed has no endpoints, until it is programmed (G16).
#[test]
fn checks_of_a_family_that_is_not_programmed_report_no_endpoints() {
    let mut checks = HealthChecks::default();
    checks.adopt(&config("primary"), Family::V4, &dump("ns/web", "192.0.2.1"));
    let endpoints = |checks: &HealthChecks| checks.snapshot().checks.values().map(|check| check.local_endpoints).sum();
    let told: Vec<usize> = [&[Family::V6][..], &[Family::V4], &[]]
        .into_iter()
        .map(|unserved| {
            checks.set_unserved(unserved.iter().copied());
            endpoints(&checks)
        })
        .collect();
    assert_eq!(told, [3, 0, 3]);
}

// When the Node is deleted, the node stays as eligible as it was before (L6).
#[test]
fn a_deleted_node_stays_eligible() {
    let mut engine = crate::sync::Engine::new(
        config("primary"),
        rules::ruleset::Layout::Maps,
        &[],
        crate::sync::NoKernel::default(),
    );
    assert_eq!(engine.state.node().map(|node| node.eligible), None);
    engine.apply(Event::NodeApplied(node(None)));
    engine.apply(Event::NodeDeleted("here".into()));
    assert_eq!(engine.state.node().map(|node| node.eligible), Some(true));
    engine.apply(Event::NodeApplied(Node { eligible: false, ..node(None) }));
    assert_eq!(engine.state.node().map(|node| node.eligible), Some(false));
}
