//! What very many objects cost that share one key: claims on one frontend in any order, slices of one Service, ranges and addresses.
//!
//! Each case is run with a thousand of them and with ten thousand. What is asserted are the allocations, their bytes and what stays
//! of these: ten times as many objects may take little more than ten times as much, in the whole way from the events to the encoded
//! transaction. Work that allocates nothing shows in the processor time of the thread, which is compared in the same way; how busy the
//! machine is plays little part in that.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::changes::Encoding;
use crate::support::cluster::{config, config_from};
use crate::support::plan::NODE;
use crate::support::proxy;
use crate::{count, turn};
use kube_proxy::sync::{Engine, LostReport};
use rules::conntrack::{Examiner, Flow, Gone, Lost};
use rules::model::{
    ClusterIps, Conditions, Endpoint, EndpointSlice, Event, Family, ObjectName, Protocol, Service, ServicePort,
    SlicePort, State, TrafficPolicy, TriggerTime, Weights,
};
use rules::ruleset::Layout;

const FEW: u32 = 1_000;
const MANY: u32 = 10_000;
/// How much more `MANY` may take than `FEW`: ten times, and the logarithm.
const GROWTH: usize = 15;
/// How much more processor time `MANY` may take: work that grows with the square takes a hundred times as much. Larger tables are slower for
/// the processor's caches, too.
const SLOWER: u32 = 30;
/// What `FEW` are taken to need at least, so that the measure's own steps do not count.
const SHORT: Duration = Duration::from_millis(10);

/// What some work took.
#[derive(Clone, Copy, Debug)]
struct Work {
    calls: usize,
    bytes: usize,
    /// Bytes that are kept.
    kept: usize,
    /// Processor time of this thread.
    time: Duration,
}

/// The processor time that this thread has used.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts it");
    Duration::from_nanos(text.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number"))
}

/// Measures a piece of work, and gives what it gave.
fn measure<T>(work: impl FnOnce() -> T) -> (Work, T) {
    let start = processor_time();
    let before = count();
    let result = work();
    let after = count();
    let work = Work {
        calls: after.calls - before.calls,
        bytes: after.bytes - before.bytes,
        kept: after.live.saturating_sub(before.live),
        time: processor_time() - start,
    };
    (work, result)
}

type Proxy = Engine<Encoding>;

/// An engine before the first sync that has these objects.
fn engine(events: Vec<Event>) -> Proxy {
    // No size is too large here: what shares a key is to be worked on, and not left out.
    let mut config = config();
    config.service_elements_limit = u64::MAX;
    let mut engine = Engine::new(config, Layout::Maps, &[Family::V4], Encoding::default());
    events.into_iter().chain([Event::InitialListDone]).for_each(|event| {
        engine.apply(event);
    });
    engine
}

/// What a start with these objects takes: the events, the report of lost claims, and the first sync.
fn start(events: Vec<Event>) -> (Work, Proxy) {
    measure(|| {
        let mut engine = engine(events);
        assert_bounded(&engine.take_lost_claims());
        engine.sync(false).unwrap();
        engine
    })
}

/// What these events take, each followed by the report of lost claims, and a sync after all of them.
fn change(engine: &mut Proxy, events: Vec<Event>) -> Work {
    let (work, ()) = measure(|| {
        for event in events {
            engine.apply(event);
            assert_bounded(&engine.take_lost_claims());
        }
        engine.sync(false).unwrap();
    });
    work
}

/// A report has few lines, whatever it is about.
fn assert_bounded(report: &LostReport) {
    let (frontends, services) =
        (report.frontends.len(), report.frontends.iter().map(|frontend| frontend.services.len()).sum::<usize>());
    let length: usize = report.frontends.iter().map(|frontend| frontend.reason.len()).sum();
    assert!(
        frontends <= 16 && services <= 80 && length <= 16_384,
        "{frontends} lines, {services} Services, {length} bytes"
    );
}

/// Asserts that work grows with the number of objects, and not with its square.
fn assert_linear(what: &str, [few, many]: [Work; 2]) {
    println!("{what}: {few:?}, {many:?}");
    for (unit, few, many) in
        [("allocations", few.calls, many.calls), ("bytes", few.bytes, many.bytes), ("bytes kept", few.kept, many.kept)]
    {
        // A table that doubles may do so just there.
        assert!(many <= GROWTH * few.max(10_000), "{what}: {many} {unit} for {MANY}, {few} for {FEW}");
    }
    let most = few.time.max(SHORT) * SLOWER;
    assert!(many.time <= most, "{what}: {:?} of processor time for {MANY}, {:?} for {FEW}", many.time, few.time);
}

fn ip(block: u32, n: u32) -> IpAddr {
    Ipv4Addr::from((block << 24) + n).into()
}

/// Service `n` of many, with a cluster IP and port 80 of its own.
fn service(n: u32) -> Service {
    let IpAddr::V4(v4) = ip(10, n) else { unreachable!("it is an IPv4 address") };
    Service {
        name: ObjectName::new("tenant", format!("service-{n:05}")),
        created: 0,
        cluster_ips: ClusterIps { v4: Some(v4), v6: None },
        ignores_external_ips: false,
        asks_for_hints: false,
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        source_ranges: Vec::new(),
        external_policy: TrafficPolicy::Cluster,
        internal_policy: TrafficPolicy::Cluster,
        affinity_seconds: None,
        scheduler: None,
        close_connections: None,
        keeps_unready_udp_flows: false,
        weights: Weights::default(),
        health_check_node_port: None,
        ports: vec![port(80)],
    }
}

fn port(number: u16) -> ServicePort {
    ServicePort { name: format!("p{number}").into(), protocol: Protocol::Tcp, port: number, node_port: None }
}

/// Slice `n` of Service 0 with one endpoint, on port 8080 of an address.
fn slice(n: u32, service: u32, address: IpAddr) -> Event {
    let name = ObjectName::new("tenant", format!("slice-{n:05}"));
    let ports = vec![SlicePort { name: "p80".into(), protocol: Protocol::Tcp, port: 8080 }];
    let endpoints = vec![Endpoint { address, conditions: Conditions::READY, node: None, zone: None, hints: None }];
    let service = self::service(service).name;
    let slice = EndpointSlice {
        name,
        service,
        family: Family::V4,
        ports,
        endpoints,
        weight: 1,
        trigger: TriggerTime::default(),
    };
    Event::SliceApplied(slice)
}

/// `count` Services, each changed by its number.
fn services(count: u32, change: impl Fn(u32, &mut Service)) -> Vec<Event> {
    let changed = |n| {
        let mut service = service(n);
        change(n, &mut service);
        Event::ServiceApplied(service)
    };
    (0..count).map(changed).collect()
}

/// The order in which `count` claims come, as numbers of their precedence.
type Order = fn(u32, u32) -> u32;

const ORDERS: [(&str, Order); 4] = [
    ("each wins over those before", |n, count| count - n),
    ("the first wins", |n, _| n),
    ("all are as old", |_, _| 0),
    // 7,919 is a prime number.
    ("in no order", |n, count| n * 7_919 % count),
];

/// What gives Services one frontend: something that is set in each of them.
type Sharing = fn(&mut Service);

const SHARINGS: [(&str, Sharing); 4] = [
    ("external IP", |service| service.external_ips = vec![ip(192, 1)]),
    ("load balancer IP", |service| service.load_balancer_ips = vec![ip(192, 1)]),
    ("node port", |service| service.ports[0].node_port = Some(30_080)),
    ("cluster IP", |service| service.cluster_ips.v4 = Some(Ipv4Addr::new(10, 0, 0, 1))),
];

#[test]
fn claims_on_one_frontend_cost_no_more_than_services_that_share_nothing() {
    // The oldest Service's claim counts, in whatever order they come (A16).
    let _turn = turn();
    let (ordinary, _) = start(services(MANY, |n, service| service.external_ips = vec![ip(192, n)]));
    println!("{MANY} Services with an external IP each: {ordinary:?}");
    for (index, (sharing, share)) in SHARINGS.into_iter().enumerate() {
        // All kinds of claims go the same way, so one of them comes in every order, and the others in the worst.
        for (order, place) in ORDERS.into_iter().take(if index == 0 { ORDERS.len() } else { 1 }) {
            let what = format!("{sharing}, {order}");
            let [few, many] = [FEW, MANY].map(|count| {
                let events = services(count, |n, service| {
                    service.created = place(n, count).into();
                    share(service);
                });
                let (work, engine) = start(events);
                assert_eq!(engine.lost_claims(), usize::try_from(count - 1).unwrap(), "{what}");
                work
            });
            assert_linear(&what, [few, many]);
            for (unit, ordinary, many) in [
                ("allocations", ordinary.calls, many.calls),
                ("bytes", ordinary.bytes, many.bytes),
                ("bytes kept", ordinary.kept, many.kept),
            ] {
                assert!(many <= ordinary, "{what}: {many} {unit}, {ordinary} with an address each");
            }
        }
    }
}

#[test]
fn winners_that_go_one_after_the_other_cost_little_each() {
    let _turn = turn();
    let works = [FEW, MANY].map(|count| {
        let (_, mut engine) = start(services(count, |n, service| {
            service.created = n.into();
            service.external_ips = vec![ip(192, 1)];
        }));
        let work = change(&mut engine, (0..count - 1).map(|n| Event::ServiceDeleted(service(n).name)).collect());
        assert_eq!(engine.lost_claims(), 0);
        work
    });
    assert_linear("the winner is deleted again and again", works);
}

#[test]
fn what_bars_and_frees_a_frontend_again_and_again_costs_little_each_time() {
    let _turn = turn();
    let range = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let address = "192.0.0.1:80".parse().unwrap();
    let bars: [(&str, [Event; 2]); 2] = [
        (
            "a ServiceCIDR",
            [Event::ServiceCidrApplied("x".into(), range(&["192.0.0.0/24"])), Event::ServiceCidrDeleted("x".into())],
        ),
        ("an endpoint of the API server", [Event::ApiServerAt(vec![address]), Event::ApiServerAt(Vec::new())]),
    ];
    for (what, pair) in bars {
        let works = [FEW, MANY].map(|count| {
            let (_, mut engine) = start(services(count, |_, service| service.external_ips = vec![ip(192, 1)]));
            let times = usize::try_from(count).unwrap();
            change(&mut engine, pair.iter().cycle().take(times).cloned().collect())
        });
        assert_linear(&format!("{what} comes and goes"), works);
    }
}

#[test]
fn services_in_conflict_on_many_frontends_cost_as_many_claims() {
    let _turn = turn();
    const FRONTENDS: u16 = 5;
    let works = [FEW, MANY].map(|count| {
        let (work, engine) = start(services(count, |n, service| {
            service.created = (count - n).into();
            service.external_ips = vec![ip(192, 1)];
            service.ports = (1..=FRONTENDS).map(port).collect();
        }));
        assert_eq!(engine.lost_claims(), usize::from(FRONTENDS) * usize::try_from(count - 1).unwrap());
        work
    });
    assert_linear("five frontends each", works);
    // Each pair of neighbours has a frontend in common: as many contests as Services.
    let works = [FEW, MANY]
        .map(|count| start(services(count, |n, service| service.external_ips = vec![ip(192, n), ip(192, n + 1)])).0);
    assert_linear("each with its neighbour", works);
}

#[test]
fn slices_of_one_service_cost_as_many_of_others() {
    let _turn = turn();
    type Address = fn(u32) -> IpAddr;
    let addresses: [(&str, Address); 2] =
        [("another endpoint each", |n| ip(11, n)), ("the same endpoint", |_| ip(11, 1))];
    for (what, address) in addresses {
        for is_reversed in [false, true] {
            let works = [FEW, MANY].map(|count| {
                let mut slices: Vec<Event> = (0..count).map(|n| slice(n, 0, address(n))).collect();
                if is_reversed {
                    slices.reverse();
                }
                let (work, mut engine) = start([vec![Event::ServiceApplied(service(0))], slices].concat());
                // Each of them changes before the next sync.
                let again = (0..count).map(|n| slice(n, 0, ip(12, n))).collect();
                let changed = change(&mut engine, again);
                Work {
                    calls: work.calls + changed.calls,
                    bytes: work.bytes + changed.bytes,
                    kept: work.kept,
                    time: work.time + changed.time,
                }
            });
            assert_linear(&format!("slices with {what}, reversed: {is_reversed}"), works);
        }
    }
}

/// The objects of a case, by the number of what is listed.
type Objects<'a> = &'a dyn Fn(u32) -> Vec<Event>;

#[test]
fn what_one_object_lists_costs_as_much_as_it_lists() {
    let _turn = turn();
    let whole = |count: u32, change: fn(u32, &mut Service)| {
        let mut service = service(0);
        change(count, &mut service);
        vec![Event::ServiceApplied(service), slice(0, 0, ip(11, 1))]
    };
    let ranges = |block: u32, count: u32| (0..count).map(move |n| format!("{}/32", ip(block, 2 * n)).parse().unwrap());
    let cases: [(&str, Objects<'_>); 7] = [
        ("ports", &|count| {
            whole(count, |count, service| {
                service.ports = (0..count).map(|n| port(u16::try_from(n + 1).unwrap())).collect()
            })
        }),
        ("external IPs", &|count| {
            whole(count, |count, service| service.external_ips = (0..count).map(|n| ip(192, n)).collect())
        }),
        ("load balancer IPs with a source range", &|count| {
            whole(count, |count, service| {
                service.load_balancer_ips = (0..count).map(|n| ip(192, n)).collect();
                service.source_ranges = vec!["203.0.113.0/24".parse().unwrap()];
            })
        }),
        ("source ranges", &|count| {
            let mut service = service(0);
            service.load_balancer_ips = vec![ip(192, 1)];
            service.source_ranges = ranges(172, count).collect();
            vec![Event::ServiceApplied(service), slice(0, 0, ip(11, 1))]
        }),
        ("ServiceCIDRs", &|count| {
            let cidrs = ranges(192, count)
                .zip(0..)
                .map(|(range, n)| Event::ServiceCidrApplied(format!("c{n}").into(), vec![range]));
            services(count, |n, service| service.external_ips = vec![ip(192, n)]).into_iter().chain(cidrs).collect()
        }),
        ("ServiceCIDRs of one range", &|count| {
            let cidrs = (0..count).map(|n| Event::ServiceCidrApplied(format!("c{n}").into(), ranges(192, 1).collect()));
            services(count, |n, service| service.external_ips = vec![ip(192, n)]).into_iter().chain(cidrs).collect()
        }),
        ("slices of the API server's Service", &|count| {
            let of_kubernetes = |n| {
                let Event::SliceApplied(slice) = slice(n, 0, ip(11, n)) else { unreachable!("it is a slice") };
                Event::SliceApplied(EndpointSlice { service: ObjectName::new("default", "kubernetes"), ..slice })
            };
            (0..count).map(of_kubernetes).collect()
        }),
    ];
    for (what, objects) in cases {
        let works = [FEW, MANY].map(|count| {
            let events = objects(count);
            start(events).0
        });
        assert_linear(what, works);
    }
}

#[test]
fn health_checks_local_endpoints_and_node_addresses_cost_as_many_as_they_are() {
    let _turn = turn();
    let works =
        [FEW, MANY].map(|count| start(services(count, |_, service| service.health_check_node_port = Some(32_000))).0);
    assert_linear("one health-check node port", works);
    // A pair of an endpoint with itself stands in the tables once, whoever uses it.
    let works = [FEW, MANY].map(|count| {
        let local = |event| {
            let Event::SliceApplied(mut slice) = event else { unreachable!("it is a slice") };
            slice.endpoints[0].node = Some(NODE.into());
            Event::SliceApplied(slice)
        };
        let slices = (0..count).map(|n| local(slice(n, n, ip(11, 1))));
        start(services(count, |_, _| ()).into_iter().chain(slices).collect()).0
    });
    assert_linear("one endpoint of this node in all Services", works);
    let works = [FEW, MANY].map(|count| {
        let addresses: Vec<IpAddr> = (0..count).map(|n| ip(192, n)).collect();
        let mut configuration = proxy::config();
        configuration["nodePortAddresses"] = addresses.iter().map(|ip| format!("{ip}/32")).collect::<Vec<_>>().into();
        let config = config_from(&configuration);
        let (work, _) = measure(|| {
            let mut engine = Engine::new(config, Layout::Maps, &[Family::V4], Encoding { addresses });
            services(1, |_, service| service.ports[0].node_port = Some(30_080)).into_iter().for_each(|event| {
                engine.apply(event);
            });
            engine.apply(Event::InitialListDone);
            engine.sync(false).unwrap();
            engine
        });
        work
    });
    assert_linear("node addresses and ranges of them", works);
}

#[test]
fn udp_flows_are_looked_up_among_source_ranges_in_a_time_that_hardly_grows_with_these() {
    // Clients that source ranges exclude lose their flows (J11).
    let _turn = turn();
    let works = [FEW, MANY].map(|count| {
        let mut service = service(0);
        service.ports[0].protocol = Protocol::Udp;
        service.load_balancer_ips = vec![ip(192, 1)];
        service.source_ranges = (0..count).map(|n| format!("{}/32", ip(172, 2 * n)).parse().unwrap()).collect();
        let Event::SliceApplied(mut slice) = slice(0, 0, ip(11, 1)) else { unreachable!("it is a slice") };
        slice.ports[0].protocol = Protocol::Udp;
        let name = service.name.clone();
        let mut state = State::new(NODE);
        [Event::ServiceApplied(service), Event::SliceApplied(slice)].into_iter().for_each(|event| {
            state.apply(event);
        });
        // Each second client is not in a range.
        let flow = |n| Flow {
            protocol: Protocol::Udp,
            client: SocketAddr::new(ip(172, n), 4000),
            original_destination: SocketAddr::new(ip(192, 1), 80),
            reply_source: SocketAddr::new(ip(11, 1), 8080),
            is_unanswered: false,
            timeout: 30,
            handle: Vec::new(),
        };
        let flows: Vec<Flow> = (0..count).map(flow).collect();
        let (work, stale) = measure(|| {
            let mut gone = Gone::default();
            let lost = Lost::default();
            let mut examiner = Examiner::new(&state, [&name], &mut gone, &lost, &[]);
            flows.iter().filter(|flow| examiner.is_stale(flow)).count()
        });
        assert_eq!(stale, usize::try_from(count / 2).unwrap());
        work
    });
    assert_linear("flows of clients, and source ranges", works);
}
