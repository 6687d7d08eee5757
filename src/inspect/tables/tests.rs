//! Tests of the frontends that are read from the objects of a table, as the proxy and other programs write them. `tests/packets/inspect`
//! tests whole tables.

use nft::decode::{DecodeError, RawElement};
use nft::expr::FibAddress;
use nft::statement::Operand;
use nft::{Data, DataType, Element, Field, Item, Rule, Set, SetFlags, Statement, Types, Value, Verdict};

use super::*;
use node::kernel::connections::{Connection, Ends, Phase};
use rules::model::{Destination, Protocol};

/// A table under construction.
struct TableOf(Collected);

impl TableOf {
    fn new() -> Self {
        Self(Collected::default())
    }

    fn rule(mut self, chain: &str, statements: &[Statement]) -> Self {
        let rule = Rule::new(statements).to_dump(nft::Family::Ip);
        self.0.take(Family::V4, Item::Rule { chain, rule, count: None });
        self
    }

    fn element(mut self, set: &str, element: Element) -> Self {
        let set = Set::new(set, Types::Named(vec![DataType::Mark]));
        self.0.take(Family::V4, Item::Element { set: &set, element: raw(element) });
        self
    }

    /// Adds an element of a verdict map whose key is a frontend.
    fn leads(self, map: &str, key: Data, verdict: Verdict, comment: &str) -> Self {
        let comment = (!comment.is_empty()).then(|| comment.into());
        self.element(map, Element { comment, ..Element::mapping(key, Value::Verdict(verdict)) })
    }

    fn client(mut self, set: &str, client: &str) -> Self {
        let mut set = Set::new(set, Types::Named(vec![DataType::Ipv4Addr]));
        set.flags = SetFlags { dynamic: true, timeout: true, ..SetFlags::default() };
        self.0.take(Family::V4, Item::Element { set: &set, element: raw(Element::new(ip(client).into())) });
        self
    }

    fn frontends(self) -> Vec<FrontendView> {
        let mut view = View::default();
        view.add(Family::V4, self.0, false);
        view.sort();
        view.frontends
    }
}

fn raw(element: Element) -> RawElement {
    RawElement { element, interval_end: false, expires: None, count: None }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn key(address: &str, port: u16) -> Data {
    Data::from(ip(address)).then(6_u8).then(port)
}

fn goto(chain: &str) -> Verdict {
    Verdict::Goto(chain.into())
}

/// A table in which shop/web has one frontend with one endpoint.
fn served(chain: &str) -> TableOf {
    TableOf::new()
        .element("cluster-ips", Element::new(ip("10.96.0.1").into()))
        .leads("services", key("10.96.0.1", 80), goto(chain), "shop/web:http")
        .element("endpoints", slot("10.96.0.1"))
}

/// The map element with the first endpoint of a frontend.
fn slot(frontend: &str) -> Element {
    Element::mapping(key(frontend, 80).then(0_u32), Value::Data(Data::from(ip("10.0.0.1")).then(8080_u16)))
}

#[test]
fn a_frontend_has_the_name_the_endpoints_and_the_state_that_its_elements_say() {
    let [frontend] = &served("lb-1").frontends()[..] else { panic!("one frontend") };
    assert_eq!(frontend.service.as_deref(), Some("shop/web:http"));
    assert_eq!(
        frontend.frontend,
        Frontend { destination: Destination::Address(ip("10.96.0.1")), protocol: Protocol::Tcp, port: 80 }
    );
    assert_eq!(
        (frontend.kind, frontend.state, frontend.policy),
        (Some(Kind::ClusterIP), Some(State::Served), Some(Policy::Cluster))
    );
    assert_eq!(
        frontend.endpoints,
        [EndpointView {
            address: "10.0.0.1:8080".parse().unwrap(),
            local: false,
            share: None,
            share_outside: None,
            counted: None
        }]
    );
    assert!(frontend.sources.is_none() && frontend.affinity.is_none());
}

// An endpoint in more slots than others gets more connections. The shares are shown only where they differ (E15).
#[test]
fn shares_are_those_of_the_slots_and_of_the_places_of_a_table() {
    let place = |number: u32, last: u8| {
        let key = key("10.96.0.1", 80).then(number);
        Element::mapping(key, Value::Data(Data::from(IpAddr::from([10, 0, 0, last])).then(8080_u16)))
    };
    let shares = |chain: &str, map: &str, numbers: &[(u32, u8)]| -> Vec<(Option<u16>, Option<u16>)> {
        let table = TableOf::new().leads("services", key("10.96.0.1", 80), goto(chain), "shop/web:http");
        let table = numbers.iter().fold(table, |table, (number, last)| table.element(map, place(*number, *last)));
        let [frontend] = &table.frontends()[..] else { panic!("one frontend") };
        frontend.endpoints.iter().map(|endpoint| (endpoint.share, endpoint.share_outside)).collect()
    };
    let unlike = [(0, 1), (1, 1), (2, 2)];
    assert_eq!(shares("lb-3", "endpoints", &unlike), [(Some(667), None), (Some(333), None)]);
    assert_eq!(shares("lb-2", "endpoints", &[(0, 1), (1, 2)]), [(None, None); 2]);
    assert_eq!(shares("lb-local-3", "local-endpoints", &unlike), [(Some(667), None), (Some(333), None)]);
    assert_eq!(shares("external-local", "local-endpoints", &unlike), [(None, Some(667)), (None, Some(333))]);
    // Number 0 beside the places of a Maglev table is for clients that find no place.
    let places = [(1 << 17, 1), ((1 << 17) + 9, 2), (0, 2)];
    assert_eq!(shares("lb-maglev-1021", "endpoints", &places), [(None, None); 2]);
    let places = [places[0], places[1], ((1 << 17) + 8, 2), ((1 << 17) + 7, 2), (0, 1)];
    assert_eq!(shares("lb-maglev-1021", "endpoints", &places), [(Some(250), None), (Some(750), None)]);
}

#[test]
fn what_another_program_made_of_a_frontend_is_not_guessed() {
    for table in [served("elsewhere"), served("lb-1").leads("services", key("10.96.0.1", 80), Verdict::Accept, "")] {
        let [frontend] = &table.frontends()[..] else { panic!("one frontend") };
        assert_eq!((frontend.state, frontend.policy), (None, None));
    }
    let nameless = TableOf::new().leads("services", key("192.0.2.1", 80), goto("lb-1"), "").frontends();
    assert_eq!((nameless[0].service.as_deref(), nameless[0].kind, nameless[0].state), (None, None, None));
}

#[test]
fn elements_with_broken_keys_and_values_leave_nothing() {
    let short = Data::from(7_u16);
    let table = TableOf::new()
        .leads("services", short, goto("lb-1"), "shop/web")
        .leads("nodeports", Data::from(99_u8).then(80_u16), goto("lb-1"), "shop/web")
        .element("endpoints", Element::mapping(key("10.96.0.1", 80), Value::Data(short)))
        .element("lb-sources", Element::new(short))
        .element("hairpin", Element::new(short));
    assert_eq!(table.frontends(), []);
    let mut collected = Collected::default();
    collected.take(Family::V4, Item::Unreadable(DecodeError { object: "set", name: None, attribute: "key type" }));
    assert_eq!(collected.unreadable, 1);
}

#[test]
fn notes_behind_the_name_say_what_the_rules_do_not() {
    let refused = |comment: &str| {
        let frontends =
            TableOf::new().leads("no-endpoints", key("192.0.2.1", 80), goto("KUBE-REJECT"), comment).frontends();
        let frontend = &frontends[0];
        (frontend.service.as_deref().map(str::to_owned), frontend.kind, frontend.policy, frontend.state)
    };
    let name = Some("shop/web:http".to_owned());
    let refused_state = Some(State::Refused);
    let balancer = (name.clone(), Some(Kind::LoadBalancer), Some(Policy::Cluster), refused_state);
    assert_eq!(refused("shop/web:http"), balancer);
    let external = (name.clone(), Some(Kind::ExternalIP), Some(Policy::Cluster), refused_state);
    assert_eq!(refused("shop/web:http (external IP)"), external);
    let both = (name, Some(Kind::ExternalIP), Some(Policy::Local), refused_state);
    assert_eq!(refused("shop/web:http (external IP) (policy Local)"), both);
    // A name that is too long for a comment leaves no room for notes.
    assert_eq!(refused("shop/wwwww..."), (Some("shop/wwwww...".to_owned()), None, None, refused_state));
}

#[test]
fn source_ranges_are_those_of_the_rules_in_layout_chains() {
    let from = |network: &str, len| Statement::Match(vec![Field::IpSaddr], Operand::InPrefix(ip(network), len));
    let on = |to: &str| Statement::Verdict(goto(to));
    let table = TableOf::new()
        .rule("KUBE-FW-H", &[from("10.0.0.0", 8), on("KUBE-EXT-H")])
        .rule("KUBE-FW-H", &[from("192.0.2.128", 25), on("KUBE-EXT-H")])
        .rule("KUBE-FW-H", &[from("203.0.113.9", 32), on("KUBE-EXT-H")])
        .rule("KUBE-FW-H", &[from("198.51.100.1", 32), on("KUBE-EXT-H")])
        .rule("KUBE-FW-H", &[Statement::Counter, on("KUBE-PROXY-FIREWALL")])
        .rule("KUBE-EXT-H", &[Statement::FibLocal(FibAddress::Source), on("KUBE-SVC-H")])
        .rule("KUBE-EXT-H", &[Statement::Counter, Statement::Verdict(Verdict::Drop)])
        .rule("KUBE-SVC-H", &[Statement::DnatToMap(vec![Field::NumgenRandom(1)], "endpoints".into())])
        .element("endpoints", slot("198.51.100.1"))
        .leads("KUBE-SERVICES", key("198.51.100.1", 80), goto("KUBE-FW-H"), "shop/web");
    let [frontend] = &table.frontends()[..] else { panic!("one frontend") };
    let sources: Vec<String> = frontend.sources.iter().flatten().map(ToString::to_string).collect();
    // 198.51.100.1 is missing: the proxy has added it, because it is the frontend's own address.
    assert_eq!(sources, ["10.0.0.0/8", "192.0.2.128/25", "203.0.113.9/32"]);
    assert_eq!(
        (frontend.kind, frontend.state, frontend.policy),
        (Some(Kind::LoadBalancer), Some(State::Dropped), Some(Policy::Local))
    );
    assert_eq!(frontend.endpoints.len(), 1);
}

#[test]
fn source_ranges_are_those_of_the_elements_in_layout_maps() {
    let frontend = key("198.51.100.1", 80);
    let range = |first: &str, last: &str| Element {
        key_end: Some(Box::new(frontend.then(ip(last)))),
        ..Element::new(frontend.then(ip(first)))
    };
    let table = TableOf::new()
        .leads("services", frontend, goto("masq-lb-1"), "shop/web")
        .element("lb-restricted", Element::new(frontend))
        .element("lb-sources", range("10.0.0.0", "10.255.255.255"))
        .element("lb-sources", range("192.0.2.1", "192.0.2.2"));
    let [frontend] = &table.frontends()[..] else { panic!("one frontend") };
    let sources: Vec<String> = frontend.sources.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(sources, ["10.0.0.0/8", "192.0.2.1/32", "192.0.2.2/32"]);
}

#[test]
fn remembered_clients_are_counted() {
    let update = |set: &str| Statement::Update {
        set: set.into(),
        key: vec![Field::IpSaddr],
        value: vec![Field::IpDaddr],
        timeout: Some(std::time::Duration::from_secs(3600)),
    };
    let learns = Data::from(ip("10.96.0.1")).then(80_u16);
    let table = served("affinity-shop/web/http/tcp")
        .rule("learn-affinity-shop/web/http/tcp", &[update("affinity-shop/web/http/tcp-8080")])
        .rule("learn-affinity-shop/web/http/tcp", &[update("affinity-local.shop/web/http/tcp-8080")])
        .leads("affinity-services-tcp", learns, goto("learn-affinity-shop/web/http/tcp"), "shop/web:http")
        .client("affinity-shop/web/http/tcp-8080", "192.0.2.7")
        .client("affinity-shop/web/http/tcp-8080", "192.0.2.8")
        .client("affinity-local.shop/web/http/tcp-8080", "192.0.2.8");
    assert_eq!(table.frontends()[0].affinity, Some(Affinity { seconds: Some(3600), clients: 2 }));
}

#[test]
fn a_chain_that_leads_back_to_itself_ends_the_search() {
    let table = TableOf::new().rule("KUBE-EXT-H", &[Statement::Verdict(goto("KUBE-EXT-H"))]).leads(
        "KUBE-SERVICES",
        key("192.0.2.1", 80),
        goto("KUBE-EXT-H"),
        "shop/web",
    );
    assert_eq!(table.frontends()[0].state, None);
}

// `top`, `services` and `stats` count alike.
#[test]
fn a_connection_to_a_node_port_counts_at_the_addresses_that_accept_it() {
    let web = crate::services::testing::frontend("shop/web", None, 30080, Kind::NodePort, &[]);
    let view = View { frontends: vec![web], node_addresses: vec!["192.168.0.2".parse().unwrap()], ..View::default() };
    let of = |to: &str| {
        let [client, endpoint] = ["203.0.113.7:4711", "10.244.0.1:8080"].map(|text| text.parse().unwrap());
        let connection = Connection {
            protocol: 6,
            original: Ends { source: client, destination: to.parse().unwrap() },
            reply: Ends { source: endpoint, destination: client },
            status: 0,
            phase: Phase::Open,
            mark: None,
            id: 1,
            counters: None,
        };
        view.to_count().of(&connection)
    };
    assert_eq!((of("192.168.0.2:30080"), of("10.0.0.2:30080")), (Some(0), None));
}
