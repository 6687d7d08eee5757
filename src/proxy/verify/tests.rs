//! Tests that changes of the tables by another program, and changes of manifests, are found and described in words.

use std::sync::Arc;

use nft::{Chain, Element, ElementRef, RuleDump, Set, TableDump, TableName, Value, Verdict};

use super::report::{DescribedDifference, Told, print, told};
use super::words::Tense;
use crate::sync::{Engine, NoKernel, layout};
use component::config::{self, Config, Invocation};
use inspect::output::{Format, Output};
use rules::diff::differences::{MOST_LISTED, as_read};
use rules::model::testing::{port, service, slice, slice_port};
use rules::model::{Event, Family, Node, Service, ServicePort, TrafficPolicy};

const V4: &str = "ip kube-proxy";
const LAYOUTS: [&str; 3] = ["maps", "chains", "service-chains"];

fn config(layout: &str) -> Config {
    let (layout, endpoint_chains) = if layout == "service-chains" { ("chains", false) } else { (layout, true) };
    let flags = [
        "kube-proxy",
        "--proxy-mode=nftables",
        "--hostname-override=here",
        "--manifests=/m",
        "--cluster-cidr=10.244.0.0/16,fd00:244::/48",
        &format!("--ruleset-layout={layout}"),
        &format!("--endpoint-chains={endpoint_chains}"),
    ];
    match config::load(flags.map(Into::into)) {
        Ok(Invocation::Run(config)) => config,
        other => panic!("{other:?}"),
    }
}

fn with_node_port(port: ServicePort, node_port: u16) -> ServicePort {
    ServicePort { node_port: Some(node_port), ..port }
}

/// A node, and Services of several sorts; `endpoints` are those of `shop/web`.
fn cluster(endpoints: &[&str]) -> Vec<Event> {
    let node = Node {
        name: "here".into(),
        ips: vec!["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()],
        eligible: true,
        drained: false,
        ..Node::default()
    };
    let web = Service {
        ports: vec![with_node_port(port("http", 80), 30_080), port("dns/udp", 53)],
        load_balancer_ips: vec!["192.0.2.129".parse().unwrap()],
        source_ranges: vec!["203.0.113.0/24".parse().unwrap()],
        external_policy: TrafficPolicy::Cluster,
        ..service("shop/web", &["10.96.0.1", "fd00:96::1"])
    };
    let sticky =
        Service { ports: vec![port("http", 80)], affinity_seconds: Some(60), ..service("shop/sticky", &["10.96.0.2"]) };
    let empty = Service { ports: vec![port("http", 80)], ..service("shop/empty", &["10.96.0.3"]) };
    let ports = [slice_port("http", 8080), slice_port("dns/udp", 9090)];
    vec![
        Event::NodeApplied(node),
        Event::ServiceCidrApplied("main".into(), vec!["10.96.0.0/16".parse().unwrap()]),
        Event::ServiceApplied(web),
        Event::ServiceApplied(sticky),
        Event::ServiceApplied(empty),
        Event::SliceApplied(slice("shop/web-4", "shop/web", &ports, endpoints)),
        Event::SliceApplied(slice("shop/web-6", "shop/web", &ports, &["fd00:244::2", "fd00:244::3"])),
        Event::SliceApplied(slice("shop/sticky-4", "shop/sticky", &ports[..1], &["10.244.1.2 @here", "10.244.1.4"])),
        Event::InitialListDone,
    ]
}

const ENDPOINTS: [&str; 2] = ["10.244.1.2 @here", "10.244.1.3"];

fn engine(layout_name: &str, endpoints: &[&str]) -> Engine<NoKernel> {
    let config = config(layout_name);
    let addresses = vec!["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()];
    let layout = layout(&config);
    let mut engine = Engine::new(config, layout, &Family::BOTH, NoKernel { addresses });
    for event in cluster(endpoints) {
        engine.apply(event);
    }
    engine
}

fn dumps(engine: &mut Engine<NoKernel>) -> Vec<Option<TableDump>> {
    engine.content().tables.iter().map(as_read).map(Some).collect()
}

/// The differences that are found after `change` has changed the first table.
fn found(layout: &str, change: impl FnOnce(&mut TableDump)) -> Vec<DescribedDifference> {
    let mut engine = engine(layout, &ENDPOINTS);
    let mut dumps = dumps(&mut engine);
    change(dumps[0].as_mut().unwrap());
    let told = told(&engine.differences(dumps, None), Tense::Wrong);
    assert_eq!(told.unlisted, [0, 0]);
    told.listed
}

/// The sentences, each after the name of the Service that it is about.
fn sentences(told: &[DescribedDifference]) -> Vec<String> {
    told.iter().map(|told| format!("{}| {}", told.service().unwrap_or("-"), told.text())).collect()
}

fn elements(dump: &mut TableDump, set: &str, change: impl FnOnce(&mut Vec<Element>)) {
    let (_, elements) = dump.sets.get_mut(set).unwrap_or_else(|| panic!("no set {set}"));
    let mut changed: Vec<Element> = elements.iter().map(ElementRef::element).collect();
    change(&mut changed);
    *elements = changed.into();
}

fn rules<'a>(dump: &'a mut TableDump, chain: &str) -> &'a mut Vec<RuleDump> {
    &mut dump.chains.get_mut(chain).unwrap_or_else(|| panic!("no chain {chain}")).1
}

fn set<'a>(dump: &'a mut TableDump, name: &str) -> &'a mut Set {
    &mut dump.sets.get_mut(name).unwrap().0
}

/// The first chain or set whose name starts with `start`.
fn named<'a>(names: impl Iterator<Item = &'a Arc<str>>, start: &str) -> Arc<str> {
    let mut names = names.filter(|name| name.starts_with(start));
    Arc::clone(names.next().unwrap_or_else(|| panic!("nothing begins with {start}")))
}

fn drop_rule() -> RuleDump {
    nft::Rule::new([nft::Statement::Verdict(Verdict::Drop)]).to_dump(nft::Family::Ip)
}

#[test]
fn what_was_written_is_equal_in_each_layout() {
    for layout in LAYOUTS {
        assert_eq!(found(layout, |_| {}), []);
    }
}

#[test]
fn a_missing_table_is_one_difference() {
    let mut engine = engine("maps", &ENDPOINTS);
    let mut dumps = dumps(&mut engine);
    dumps[1] = None;
    let told = told(&engine.differences(dumps, None), Tense::Wrong);
    assert_eq!(sentences(&told.listed), ["-| there is no table ip6 kube-proxy: no Service is served in this family"]);
}

#[test]
fn elements_name_the_service_port_the_frontend_and_the_endpoint() {
    let one = |change: fn(&mut TableDump)| sentences(&found("maps", change)).join("\n");
    assert_eq!(
        one(|dump| {
            elements(dump, "services", |all| {
                all.retain(|e| !e.comment.as_deref().is_some_and(|c| c.contains("sticky")));
            });
        }),
        "shop/sticky:http| shop/sticky:http lacks the frontend 10.96.0.2:80/tcp in services"
    );
    let slot = one(|dump| elements(dump, "endpoints", |all| drop(all.remove(0))));
    assert!(slot.starts_with("shop/") && slot.contains(" lacks the endpoint 10.244.1."), "{slot}");
    let changed = one(|dump| {
        elements(dump, "services", |services| {
            let web = services.iter_mut().find(|e| e.key.as_slice().starts_with(&[10, 96, 0, 2])).unwrap();
            web.value = Value::Verdict(Verdict::Drop);
        });
    });
    assert!(changed.contains("shop/sticky:http has `drop` in place of `goto affinity-shop/sticky"), "{changed}");
    let comment = one(|dump| elements(dump, "no-endpoints", |all| all[0].comment = Some("x".into())));
    assert!(comment.starts_with("shop/empty:http| shop/empty:http has another comment at"), "{comment}");
    let foreign = one(|dump| {
        let address: std::net::IpAddr = "192.0.2.77".parse().unwrap();
        elements(dump, "cluster-ips", |all| all.push(Element::new(address.into())));
    });
    let expected = "-| an element of no Service: the cluster IP 192.0.2.77 in cluster-ips of the table ip kube-proxy";
    assert_eq!(foreign, expected);
    let node = one(|dump| elements(dump, "nodeport-addresses", Vec::clear));
    assert_eq!(node, "-| the node lacks the address 192.0.2.2 for node ports in nodeport-addresses");
    let range = one(|dump| elements(dump, "lb-sources", Vec::clear));
    let expected = "shop/web:dns| shop/web:dns lacks the source range 203.0.113.0/24 of 192.0.2.129:53/udp in lb-sources\n\
                    shop/web:http| shop/web:http lacks the source range 203.0.113.0/24 of 192.0.2.129:80/tcp in lb-sources";
    assert_eq!(range, expected);
}

#[test]
fn a_surplus_slot_belongs_to_the_service_of_the_frontend() {
    let found = found("maps", |dump| {
        elements(dump, "endpoints", |endpoints| {
            let mut more = endpoints.iter().find(|e| e.key.as_slice().starts_with(&[10, 96, 0, 2])).unwrap().clone();
            let mut key = more.key.as_slice().to_vec();
            let end = key.len() - 4;
            key[end..].copy_from_slice(&7_u32.to_ne_bytes());
            more.key = nft::Data::from_bytes(&key).unwrap();
            endpoints.push(more);
        });
    });
    let sentence = sentences(&found).join("\n");
    assert!(
        sentence.starts_with("shop/sticky:http| shop/sticky:http should not have the endpoint 10.244.1."),
        "{sentence}"
    );
}

#[test]
fn rules_that_are_missing_added_moved_or_changed_are_told_apart() {
    let one = |change: fn(&mut TableDump)| sentences(&found("maps", change)).join("\n");
    let removed = one(|dump| drop(rules(dump, "KUBE-SERVICES").remove(0)));
    assert!(
        removed.starts_with(
            "-| the chain KUBE-SERVICES lacks the rule `ip daddr . meta l4proto . th dport @lb-restricted"
        ),
        "{removed}"
    );
    let added = one(|dump| rules(dump, "KUBE-SERVICES").insert(0, drop_rule()));
    assert_eq!(added, "-| the chain KUBE-SERVICES should not have the rule `[ immediate reg 0 drop ]`");
    let moved = one(|dump| rules(dump, "KUBE-SERVICES").swap(0, 1));
    assert_eq!(moved, "-| the rules of the chain KUBE-SERVICES are in another order");
    let changed = one(|dump| rules(dump, "KUBE-REJECT")[0] = drop_rule());
    assert_eq!(
        changed,
        "-| the chain KUBE-REJECT has the rule `[ immediate reg 0 drop ]` in place of the rule `reject`"
    );
    let flushed = one(|dump| rules(dump, "KUBE-SERVICES-FILTER").clear());
    assert_eq!(flushed, "-| the chain KUBE-SERVICES-FILTER is empty; it should have 3 rules");
    let balancer = one(|dump| rules(dump, "lb-2").clear());
    assert!(balancer.starts_with("-| the chain lb-2 is empty"), "{balancer}");
}

#[test]
fn chains_of_a_service_name_it() {
    let one = |change: fn(&mut TableDump)| sentences(&found("chains", change)).join("\n");
    let removed = one(|dump| {
        let name = named(dump.chains.keys(), "KUBE-EXT-");
        dump.chains.remove(&name);
    });
    assert!(removed.starts_with("shop/web:") && removed.contains(" lacks the chain KUBE-EXT-"), "{removed}");
    let flushed = one(|dump| {
        let name = named(dump.chains.keys(), "KUBE-SVC-");
        rules(dump, &name).clear();
    });
    assert!(flushed.starts_with("shop/") && flushed.contains("the chain KUBE-SVC-"), "{flushed}");
    let endpoint = one(|dump| {
        let name = named(dump.chains.keys(), "KUBE-SEP-");
        rules(dump, &name).clear();
    });
    assert!(endpoint.starts_with("shop/") && endpoint.contains("the chain KUBE-SEP-"), "{endpoint}");
    let gone = one(|dump| {
        let name = named(dump.sets.keys(), "KUBE-SVC-");
        elements(dump, &name, |all| drop(all.remove(0)));
    });
    assert!(gone.starts_with("shop/") && gone.contains(" lacks the endpoint 10.244.1."), "{gone}");
    let timeout = one(|dump| {
        let name = named(dump.sets.keys(), "KUBE-SEP-");
        set(dump, &name).timeout = Some(std::time::Duration::from_secs(1));
    });
    assert!(timeout.contains("shop/sticky:http: the set KUBE-SEP-"), "{timeout}");
    assert!(timeout.ends_with("has another time-out"), "{timeout}");
}

#[test]
fn without_chains_of_endpoints_maps_of_a_service_name_it() {
    let one = |change: fn(&mut TableDump)| sentences(&found("service-chains", change)).join("\n");
    let endpoint = one(|dump| elements(dump, "counted-endpoints", |all| drop(all.remove(0))));
    assert!(endpoint.contains(" lacks the endpoint 10.244.1."), "{endpoint}");
    let gone = one(|dump| {
        let name = named(dump.sets.keys(), "affinity-shop/");
        dump.sets.remove(&name);
    });
    assert!(gone.starts_with("shop/sticky:http| shop/sticky:http lacks the map affinity-shop/"), "{gone}");
    let timeout = one(|dump| {
        let name = named(dump.sets.keys(), "affinity-shop/");
        set(dump, &name).timeout = Some(std::time::Duration::from_secs(1));
    });
    assert!(
        timeout.contains("shop/sticky:http: the map affinity-shop/") && timeout.ends_with("has another time-out"),
        "{timeout}"
    );
}

#[test]
fn what_would_have_the_table_made_anew_is_a_difference_of_its_own() {
    let one = |change: fn(&mut TableDump)| sentences(&found("maps", change)).join("\n");
    assert_eq!(one(|dump| dump.dormant = true), "-| the table ip kube-proxy is dormant: no packet passes it");
    assert_eq!(one(|dump| dump.table.comment = None), "-| the table ip kube-proxy has another comment");
    let flags = one(|dump| dump.unknown_flags = 8);
    assert_eq!(flags, "-| the table ip kube-proxy has flags that this program never sets (0x8)");
    let priority = one(|dump| dump.chains.get_mut("nat-output").unwrap().0.base.as_mut().unwrap().priority = -99);
    assert_eq!(
        priority,
        "-| the chain nat-output has the hook output (nat, priority -99) in place of the hook output (nat, priority -100)"
    );
    let foreign = one(|dump| {
        let base = dump.chains["filter-input"].0.base;
        let chain = Chain { name: "foreign".into(), base, comment: None };
        dump.chains.insert("foreign".into(), (chain, Vec::new()));
    });
    let expected = "-| the chain foreign with the hook input (filter, priority 0) in the table ip kube-proxy is not this program's";
    assert_eq!(foreign, expected);
    let size = one(|dump| set(dump, "cluster-ips").size = Some(1));
    assert_eq!(size, "-| the set cluster-ips has another size; it should have 3 elements");
    let unreadable = one(|dump| {
        dump.chains.remove("filter-input");
        let error =
            nft::decode::DecodeError { object: "chain", name: Some("filter-input".into()), attribute: "policy" };
        dump.unreadable.push(error);
    });
    assert_eq!(
        unreadable,
        "-| the table ip kube-proxy holds what this program never writes: chain filter-input: policy is missing, malformed or unknown"
    );
}

#[test]
fn the_elements_of_a_set_that_is_missing_or_of_another_form_are_no_differences_of_their_own() {
    let one = |layout, change: fn(&mut TableDump)| {
        let told = found(layout, change);
        let [one] = &told[..] else { panic!("{told:?}") };
        (sentences(&told).remove(0), one.command().to_owned())
    };
    let fill = "add element ip kube-proxy no-endpoints { 10.96.0.3 . tcp . 80 ";
    let (text, command) = one("maps", |dump| set(dump, "no-endpoints").comment = None);
    assert_eq!(text, "-| the map no-endpoints has another comment; it should have 1 element");
    let lines: Vec<&str> = command.lines().collect();
    assert!(lines[0] == "delete map ip kube-proxy no-endpoints" && lines.len() == 3, "{command}");
    assert!(lines[1].starts_with("add map ip kube-proxy no-endpoints ") && lines[2].starts_with(fill), "{command}");
    let (text, command) = one("maps", |dump| drop(dump.sets.remove("no-endpoints")));
    assert_eq!(text, "-| the map no-endpoints with 1 element is missing in the table ip kube-proxy");
    let lines: Vec<&str> = command.lines().collect();
    assert!(lines.len() == 2 && lines[1].starts_with(fill), "{command}");
    let (_, command) = one("maps", |dump| set(dump, "cluster-ips").size = Some(1));
    assert!(command.contains("\nadd element ip kube-proxy cluster-ips { 10.96.0.1, 10.96.0.2, "), "{command}");
    let (text, command) = one("chains", |dump| {
        let name = named(dump.sets.keys(), "KUBE-SVC-");
        set(dump, &name).comment = None;
    });
    assert!(text.starts_with("shop/") && text.ends_with(" has another comment; it should have 2 elements"), "{text}");
    assert_eq!(command.lines().count(), 3, "{command}");
    let one_by_one = found("chains", |dump| {
        let name = named(dump.sets.keys(), "KUBE-SVC-");
        dump.sets.remove(&name);
    });
    assert_eq!(one_by_one.len(), 3, "the map and its 2 endpoints: {one_by_one:?}");
    assert_eq!(sentences(&one_by_one).iter().filter(|text| text.contains(" lacks the endpoint ")).count(), 2);
}

/// A table in which another program has added this many cluster IPs, and how many frontends it has deleted.
fn many(foreign: u32, retain: impl Fn(&Element) -> bool) -> Told {
    let mut engine = engine("maps", &ENDPOINTS);
    let mut dumps = dumps(&mut engine);
    let dump = dumps[0].as_mut().unwrap();
    let address = |number: u32| std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(0xc000_0000 + number));
    // The order of a dump is that of the kernel's hash.
    elements(dump, "cluster-ips", |all| all.extend((0..foreign).rev().map(|n| Element::new(address(n).into()))));
    elements(dump, "services", |all| all.retain(retain));
    told(&engine.differences(dumps, None), Tense::Wrong)
}

#[test]
fn of_many_differences_the_first_ones_are_listed_and_the_others_counted() {
    let most = u32::try_from(MOST_LISTED).unwrap();
    let all = many(most, |_| true);
    assert_eq!((all.listed.len(), &all.unlisted[..]), (MOST_LISTED, &[0, 0][..]));
    let many = many(most + 7, |e| !e.comment.as_deref().is_some_and(|comment| comment.contains("sticky")));
    assert_eq!((many.listed.len(), &many.unlisted[..]), (MOST_LISTED, &[8, 0][..]));
    assert_eq!(many.count(), MOST_LISTED + 8);
    assert_eq!(sentences(&all.listed), sentences(&many.listed), "the smallest keys");
    let print = |format| {
        let mut written = Vec::new();
        print(&mut Output::to(&mut written, false), format, &many, "", "they differ").unwrap();
        String::from_utf8(written).unwrap()
    };
    assert!(print(Format::Table).ends_with("\nand 8 more, which are not listed\nthey differ\n"));
    let document: serde_json::Value = serde_json::from_str(&print(Format::Json)).unwrap();
    assert_eq!((&document["equal"], &document["more"]), (&false.into(), &8.into()));
}

// What only one of two looks finds is no difference (Q5). What one look lists and the other one only counts cannot be said.
#[test]
fn a_second_look_confirms_only_if_both_list_all_or_both_do_not() {
    let (few, other) = (many(3, |_| true), many(2, |_| true));
    let mut now = few.clone();
    assert!(now.retain_in(&other));
    assert_eq!(now, other);
    let (more, most) = (told_of(7, 2), told_of(7, 5));
    for (mut now, before) in [(more.clone(), &most), (most.clone(), &more)] {
        assert!(now.retain_in(before));
        assert_eq!(now, more, "the smaller count");
    }
    for (now, before) in [(&few, &more), (&more, &few)] {
        let mut compared = now.clone();
        assert!(!compared.retain_in(before));
        assert_eq!(compared, *now);
    }
}

/// Some differences of the first table, and the numbers of those of both that are not listed.
fn told_of(first: usize, second: usize) -> Told {
    Told { unlisted: vec![first, second], ..many(1, |_| true) }
}

#[test]
fn what_comes_and_goes_by_itself_is_no_difference() {
    let client = |dump: &mut TableDump, endpoint: &str| {
        let name = named(dump.sets.keys(), "affinity-shop/sticky");
        let [client, endpoint] =
            ["203.0.113.7", endpoint].map(|ip| nft::Data::from(ip.parse::<std::net::IpAddr>().unwrap()));
        elements(dump, &name, |all| all.push(Element::mapping(client, Value::Data(endpoint))));
    };
    assert_eq!(found("maps", |dump| client(dump, "10.244.1.4")), []);
    let stale = found("maps", |dump| client(dump, "10.244.9.9"));
    let sentence = sentences(&stale).join("\n");
    assert!(sentence.contains("sends the client 203.0.113.7 to 10.244.9.9, which is no endpoint for it"), "{sentence}");
    assert!(sentence.starts_with("shop/sticky:http|"), "{sentence}");
    let emptied = |dump: &mut TableDump| {
        let chain = Chain { name: "KUBE-SVC-GONE".into(), base: None, comment: None };
        dump.chains.insert("KUBE-SVC-GONE".into(), (chain, Vec::new()));
    };
    assert_eq!(found("chains", emptied), []);
}

#[test]
fn the_commands_are_those_of_nft() {
    let told = found("maps", |dump| {
        elements(dump, "services", |all| all.retain(|e| !e.key.as_slice().starts_with(&[10, 96, 0, 2])))
    });
    let expected = "add element ip kube-proxy services { 10.96.0.2 . tcp . 80 comment \"shop/sticky:http\" : goto \
                    affinity-shop/sticky/http/tcp }";
    assert_eq!(told.iter().map(DescribedDifference::command).collect::<Vec<_>>(), [expected]);
}

// The commands leave nothing that a second look would find (Q5); where only the proxy can do that, there are none.
#[test]
fn a_chain_at_another_hook_is_made_anew_with_its_rules_and_a_table_by_the_proxy_only() {
    for layout in LAYOUTS {
        let told = found(layout, |dump| {
            let (chain, rules) = dump.chains.get_mut("filter-input").unwrap();
            chain.base.as_mut().unwrap().priority = 7;
            rules.clear();
        });
        let [one] = &told[..] else { panic!("{told:?}") };
        let lines: Vec<&str> = one.command().lines().collect();
        let [flush, delete, add, rules @ ..] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(
            [*flush, *delete],
            ["flush chain ip kube-proxy filter-input", "delete chain ip kube-proxy filter-input"]
        );
        assert!(
            add.starts_with("add chain ip kube-proxy filter-input { ") && add.contains("priority filter;"),
            "{add}"
        );
        assert!(!rules.is_empty(), "{layout}");
        assert!(rules.iter().all(|rule| rule.starts_with("add rule ip kube-proxy filter-input ")), "{rules:?}");
    }
    let of_table = found("maps", |dump| dump.table.comment = None);
    assert_eq!(of_table.iter().map(DescribedDifference::command).collect::<Vec<_>>(), [""]);
}

#[test]
fn a_change_of_manifests_is_told_as_what_services_get_and_lose() {
    for layout in LAYOUTS {
        let (mut before, mut after) = (engine(layout, &ENDPOINTS), engine(layout, &["10.244.1.3", "10.244.1.5"]));
        let dumps = dumps(&mut before);
        let told = told(&after.differences(dumps, Some(&before)), Tense::Change).listed;
        let text = sentences(&told).join("\n");
        assert!(text.contains("shop/web:http| shop/web:http gets the endpoint 10.244.1.5:8080"), "{layout}: {text}");
        assert!(told.iter().all(|told| told.table() == V4), "{layout}: {text}");
        assert!(!text.contains("shop/sticky") && !text.contains("shop/empty"), "{layout}: {text}");
    }
}

#[test]
fn what_a_service_that_is_gone_had_is_told_as_its() {
    for layout in LAYOUTS {
        let (mut before, mut after) = (engine(layout, &ENDPOINTS), engine(layout, &ENDPOINTS));
        after.apply(Event::ServiceDeleted(rules::model::testing::name("shop/sticky")));
        let dumps = dumps(&mut before);
        let told = told(&after.differences(dumps, Some(&before)), Tense::Change).listed;
        let text = sentences(&told).join("\n");
        assert!(text.contains("shop/sticky:http loses"), "{layout}: {text}");
        let others: Vec<&DescribedDifference> =
            told.iter().filter(|told| !told.service().is_some_and(|label| label.starts_with("shop/sticky"))).collect();
        assert!(others.is_empty(), "{layout}: {others:?}");
    }
}

#[test]
fn names_of_tables_are_those_of_both_families() {
    let names = engine("maps", &ENDPOINTS).table_names();
    assert_eq!(names, [nft::Family::Ip, nft::Family::Ip6].map(|family| TableName::new(family, "kube-proxy")));
}
