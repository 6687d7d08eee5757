//! Tests of the ring (it is bounded, whatever is reported; a reader that continues gets each entry once), and of entries as JSON and in words.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use inspect::history::{
    Action, ApiServer, Change, CommitOutcome, Connection, Endpoints, Entry, EntryKind, Fate, FieldChange,
    FrontendChange, Page, Program, Query, Repair, SyncRun, Trigger, TriggerKind, cut,
};
use rules::model::{Destination, Family, Frontend, ObjectName, Protocol};

fn name() -> impl Strategy<Value = ObjectName> {
    ("[a-z]{1,8}", "[a-z0-9-]{1,40}").prop_map(|(namespace, name)| ObjectName::new(namespace, name))
}

/// Generates any text, some so long that [`cut`] shortens it.
fn text() -> impl Strategy<Value = String> {
    (".{0,8}", 1..100_usize).prop_map(|(text, times)| cut(text.repeat(times)))
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

fn trigger() -> impl Strategy<Value = Trigger> {
    let kinds = vec![
        TriggerKind::Start,
        TriggerKind::Slice,
        TriggerKind::Service,
        TriggerKind::Claim,
        TriggerKind::Node,
        TriggerKind::Addresses,
        TriggerKind::ServiceCidr,
        TriggerKind::Retry,
        TriggerKind::Repair,
        TriggerKind::Takeover,
        TriggerKind::Resync,
    ];
    (prop::sample::select(kinds), option::of(name())).prop_map(|(kind, object)| Trigger { kind, object })
}

fn outcome() -> impl Strategy<Value = CommitOutcome> {
    let all =
        vec![CommitOutcome::Committed, CommitOutcome::Refused, CommitOutcome::Quarantined, CommitOutcome::Oversized];
    prop::sample::select(all)
}

/// Generates durations in whole microseconds, the precision of the JSON.
fn latency() -> impl Strategy<Value = Option<Duration>> {
    option::of((0..10_000_000_u64).prop_map(Duration::from_micros))
}

fn frontend() -> impl Strategy<Value = FrontendChange> {
    let destination = prop_oneof![
        address().prop_map(Destination::Address),
        prop::sample::select(Family::BOTH.to_vec()).prop_map(Destination::NodePort)
    ];
    let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    let fate = || option::of(prop::sample::select(vec![Fate::Served, Fate::Refused, Fate::Dropped]));
    (destination, protocol, any::<u16>(), fate(), fate()).prop_map(|(destination, protocol, port, before, after)| {
        FrontendChange { frontend: Frontend { destination, protocol, port }, before, after }
    })
}

fn field() -> impl Strategy<Value = FieldChange> {
    ("[a-zA-Z]{1,20}", text(), text()).prop_map(|(field, before, after)| FieldChange { field, before, after })
}

prop_compose! {
    fn change()(
        service in name(),
        action in prop::sample::select(vec![Action::Added, Action::Changed, Action::Removed, Action::Kept]),
        trigger in trigger(),
        (latency, cluster_latency) in (latency(), latency()),
        result in outcome(),
        error in option::of(text()),
        fields in vec(field(), 0..4),
        frontends in vec(frontend(), 0..70),
        (added, removed) in (vec((address(), any::<u16>()), 0..70), vec((address(), any::<u16>()), 0..70)),
    ) -> EntryKind {
        let mut change = Change {
            service, action, trigger, latency, cluster_latency, result,
            error,
            fields,
            frontends: Vec::new(),
            more_frontends: 0,
            endpoints: Endpoints { before: removed.len(), after: added.len(), ..Endpoints::default() },
        };
        frontends.into_iter().for_each(|frontend| change.frontend(frontend));
        added.into_iter().for_each(|(ip, port)| change.endpoints.add(SocketAddr::new(ip, port)));
        removed.into_iter().for_each(|(ip, port)| change.endpoints.remove(SocketAddr::new(ip, port)));
        EntryKind::Service(Box::new(change))
    }
}

fn repair() -> impl Strategy<Value = EntryKind> {
    let program = ("[a-z]{1,15}", any::<u32>()).prop_map(|(name, pid)| Program { name, pid });
    (vec(program, 0..5), vec(name(), 0..40), vec(text(), 0..3)).prop_map(|(by, services, found)| {
        let mut repair = Repair { by, found, times: 1, ..Repair::default() };
        services.into_iter().for_each(|name| repair.service(name));
        EntryKind::Repair(repair)
    })
}

fn others() -> impl Strategy<Value = EntryKind> {
    let run = (trigger(), outcome(), latency(), 0..100_usize).prop_map(|(trigger, result, latency, unlisted)| {
        let (elements_added, elements_removed, full) = (7, 3, true);
        let error = (result != CommitOutcome::Committed).then(|| "no".to_owned());
        EntryKind::Sync(SyncRun {
            trigger,
            services: 9,
            unlisted,
            full,
            elements_added,
            elements_removed,
            latency,
            result,
            error,
        })
    });
    let server = (latency(), option::of(text())).prop_map(|(lasted, error)| {
        let state = if error.is_some() { Connection::Lost } else { Connection::Found };
        EntryKind::ApiServer(ApiServer { state, resource: "services".to_owned(), error, lasted })
    });
    prop_oneof![run, server]
}

fn what() -> impl Strategy<Value = EntryKind> {
    prop_oneof![4 => change(), 1 => repair(), 1 => others()]
}

fn second(n: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(n)
}

/// Returns a ring with these entries, whose times are 0, 1, 2 and so on seconds after the epoch.
fn ring(entries: impl IntoIterator<Item = EntryKind>) -> History {
    let changes = History::new(second(0));
    (0..).zip(entries).for_each(|(n, what)| drop(changes.push(second(n), Some(n), what)));
    changes
}

fn page(changes: &History, query: &Query, now: u64) -> Page {
    serde_json::from_str(&changes.snapshot(query.after).page(query, second(now))).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_as_json_is_read_back(what in what()) {
        let changes = ring([what]);
        let [entry] = &changes.snapshot(0).entries[..] else { panic!("one entry") };
        let read: Entry = serde_json::from_str(&serde_json::to_string(&**entry).unwrap()).unwrap();
        prop_assert_eq!(&read, &**entry);
        prop_assert!(!read.what.to_string().is_empty());
    }

    #[test]
    fn the_ring_stays_within_its_limits_and_keeps_the_latest(entries in vec(what(), 1..8), times in 1..1000_usize) {
        let changes = History::new(second(0));
        let all = entries.iter().cycle().take(entries.len() * times);
        let mut count = 0;
        for what in all {
            count = changes.push(second(0), None, what.clone()).number;
        }
        let Snapshot { entries, first, last, .. } = changes.snapshot(0);
        prop_assert_eq!(last, count);
        prop_assert!(entries.len() <= MAX_ENTRIES);
        prop_assert!(entries.iter().map(|entry| entry.size()).sum::<usize>() <= MAX_BYTES);
        let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
        prop_assert_eq!(numbers, (first..=last).collect::<Vec<_>>());
        let next = entries.first().map_or(0, |entry| entry.size()) + MAX_BYTES / 8;
        let is_full = entries.iter().map(|entry| entry.size()).sum::<usize>() + next > MAX_BYTES;
        prop_assert!(first == 1 || is_full || entries.len() == MAX_ENTRIES, "nothing goes before the ring is full");
    }

    #[test]
    fn a_reader_that_goes_on_sees_each_entry_once(entries in vec(what(), 0..8), times in 0..30_usize, later in vec(what(), 0..4)) {
        let all = entries.iter().cycle().take(entries.len() * times);
        let changes = ring(all.cloned());
        let (mut query, mut seen) = (Query::default(), Vec::new());
        let mut later = later.into_iter();
        loop {
            let page = page(&changes, &query, 0);
            prop_assert!(page.last >= query.after);
            query.after = page.last;
            seen.extend(page.changes.into_iter().map(|entry| entry.number));
            match later.next() {
                Some(what) => drop(changes.push(second(0), None, what)),
                None if page.more => {}
                None => break,
            }
        }
        let all = changes.snapshot(0);
        prop_assert_eq!(seen, (all.first..=all.last).collect::<Vec<_>>());
    }
}

#[test]
fn an_entry_that_is_larger_than_the_ring_is_not_kept_and_counts_all_the_same() {
    let name = ObjectName::new("a", "b".repeat(MAX_BYTES));
    let mut repair = Repair { times: 1, ..Repair::default() };
    repair.service(name);
    let changes = ring([EntryKind::Repair(Repair::default()), EntryKind::Repair(repair)]);
    let snapshot = changes.snapshot(0);
    assert_eq!((snapshot.entries.len(), snapshot.first, snapshot.last), (0, 3, 2));
    changes.push(second(0), None, EntryKind::Repair(Repair::default()));
    assert_eq!(changes.snapshot(2).entries.len(), 1);
    assert_eq!(changes.snapshot(u64::MAX).entries.len(), 0);
}

/// Returns a change that replaces a Service's only endpoint.
fn replaced(service: &str) -> EntryKind {
    let (namespace, name) = service.split_once('/').unwrap();
    let mut endpoints = Endpoints { before: 1, after: 1, ..Endpoints::default() };
    endpoints.add("10.244.1.9:8080".parse().unwrap());
    endpoints.remove("10.244.1.2:8080".parse().unwrap());
    EntryKind::Service(Box::new(Change {
        service: ObjectName::new(namespace, name),
        action: Action::Changed,
        trigger: Trigger { kind: TriggerKind::Slice, object: Some(ObjectName::new(namespace, "web-x1")) },
        latency: Some(Duration::from_micros(412)),
        cluster_latency: None,
        result: CommitOutcome::Committed,
        error: None,
        fields: Vec::new(),
        frontends: Vec::new(),
        more_frontends: 0,
        endpoints,
    }))
}

#[test]
fn the_form_in_json_is_the_documented_one() {
    let changes = ring([replaced("shop/web")]);
    let body = changes.snapshot(0).page(&Query::default(), second(9));
    let expected = serde_json::json!({
        "started": "1970-01-01T00:00:00Z", "first": 1, "last": 1, "more": false,
        "changes": [{
            "number": 1, "time": "1970-01-01T00:00:00Z", "sync": 0, "kind": "service",
            "service": "shop/web", "action": "changed",
            "trigger": {"kind": "slice", "object": "shop/web-x1"},
            "latencySeconds": 0.000_412, "clusterLatencySeconds": null,
            "result": "committed", "error": null,
            "fields": [], "fronts": [], "moreFronts": 0,
            "endpoints": {
                "before": 1, "after": 1,
                "added": ["10.244.1.9:8080"], "moreAdded": 0, "removed": ["10.244.1.2:8080"], "moreRemoved": 0,
            },
        }],
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&body).unwrap(), expected);
}

#[test]
fn a_page_has_what_is_asked_for() {
    let changes = ring([replaced("shop/web"), replaced("shop/api"), replaced("test/web"), replaced("shop/web")]);
    let numbers = |query: &str| -> Vec<u64> {
        let query = Query::parse(query).unwrap();
        page(&changes, &query, 3).changes.iter().map(|entry| entry.number).collect()
    };
    assert_eq!(numbers(""), [1, 2, 3, 4]);
    assert_eq!(numbers("after=2"), [3, 4]);
    assert_eq!(numbers("since=1"), [3, 4], "of the seconds 2 and 3");
    assert_eq!(numbers("service=shop/web"), [1, 4]);
    assert_eq!(numbers("service=shop%2Fweb&after=1"), [4]);
    assert_eq!(numbers("service=web"), [1, 3, 4]);
    assert_eq!(numbers("after=99"), [0; 0]);
    let wanted = Query { since: Some(Duration::from_millis(1500)), service: Some("a/b".to_owned()), after: 7 };
    assert_eq!(Query::parse(&wanted.to_text()), Ok(wanted));
}

#[test]
fn a_wrong_parameter_is_named() {
    for (query, text) in [
        ("since=5m", "since: \"5m\" is not a number of seconds"),
        ("since=-1", "since: \"-1\" is not"),
        ("after=x", "after: \"x\" is not the number"),
        ("service=", "service: \"\" is not"),
        ("sinc=5", "\"sinc\" is not known; there are since, service and after"),
    ] {
        let error = Query::parse(query).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_service_is_found_in_repairs_and_in_syncs_that_do_not_list_all() {
    let mut repair = Repair { times: 1, ..Repair::default() };
    repair.service(ObjectName::new("shop", "web"));
    let run = |unlisted| {
        EntryKind::Sync(SyncRun {
            trigger: Trigger::of(TriggerKind::Node),
            services: 200,
            unlisted,
            full: false,
            elements_added: 0,
            elements_removed: 0,
            latency: None,
            result: CommitOutcome::Committed,
            error: None,
        })
    };
    let changes = ring([EntryKind::Repair(repair), run(0), run(100)]);
    let about = |service| changes.snapshot(0).entries.iter().map(|entry| entry.is_about(service)).collect::<Vec<_>>();
    assert_eq!(about("shop/web"), [true, false, true]);
    assert_eq!(about("shop/api"), [false, false, true]);
}

#[test]
fn words_say_what_came_and_what_went() {
    let EntryKind::Service(mut change) = replaced("shop/web") else { panic!() };
    assert_eq!(change.to_string(), "endpoints 1 -> 1: +10.244.1.9:8080 -10.244.1.2:8080");
    let frontend = |destination, port| Frontend { destination, protocol: Protocol::Udp, port };
    let (address, node_port) = (Destination::Address("fd00::1".parse().unwrap()), Destination::NodePort(Family::V4));
    let fates = (Some(Fate::Served), Some(Fate::Refused));
    change.frontend(FrontendChange { frontend: frontend(address, 53), before: fates.0, after: fates.1 });
    change.frontend(FrontendChange { frontend: frontend(node_port, 30053), before: None, after: Some(Fate::Dropped) });
    change.fields.push(FieldChange { field: "externalIPs".into(), before: String::new(), after: "192.0.2.1".into() });
    change.endpoints = Endpoints::default();
    (change.action, change.error) = (Action::Added, Some("cannot commit".into()));
    assert_eq!(
        change.to_string(),
        "added; externalIPs none -> 192.0.2.1; frontends: [fd00::1]:53/UDP served -> refused +*:30053/UDP (dropped); cannot commit"
    );
    let by = vec![Program { name: "nft".into(), pid: 4711 }];
    let mut repair = Repair { by, times: 2, elements_added: 3, elements_removed: 1, ..Repair::default() };
    repair.service(ObjectName::new("shop", "web"));
    assert_eq!(
        repair.to_string(),
        "nft (pid 4711) had changed the tables of shop/web; repaired: +3 -1 elements, 2 times"
    );
}
