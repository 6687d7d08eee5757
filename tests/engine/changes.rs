//! What the sync loop tells of a sync: how much of a change of many Services, and which object made each necessary.
//!
//! A kernel that only remembers; needs no root.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::support::cluster::{address, config, endpoint, endpoints, name, node, served, service, slice};
use crate::support::kernel::Recorder;
use inspect::history::{Action, Change, CommitOutcome, Entry, EntryKind, SyncRun, TriggerKind};
use kube_proxy::health;
use kube_proxy::history::History;
use kube_proxy::metrics::Metrics;
use kube_proxy::sync::{Engine, Schedule, Sync};
use rules::model::{Endpoint, Event, Family, Hints};
use rules::ruleset::Layout;

const PATIENCE: Duration = Duration::from_secs(60);

/// What is told of these events, each list of which is one sync.
fn told(layout: Layout, steps: Vec<Vec<Event>>) -> Vec<Vec<Entry>> {
    let changes = History::new(SystemTime::now());
    let (sender, events) = channel();
    let ring = changes.clone();
    let steps = thread::spawn(move || {
        let mut last = 0;
        let mut all = Vec::new();
        for step in steps {
            // One piece, so that the loop takes all of it before it syncs.
            step.into_iter().for_each(|event| sender.send(event).expect("the loop runs"));
            let end = Instant::now() + PATIENCE;
            // The entries of a sync come one after the other.
            let mut seen = ring.snapshot(last);
            loop {
                thread::sleep(Duration::from_millis(200));
                let now = ring.snapshot(last);
                if now.last > last && now.last == seen.last {
                    break;
                }
                assert!(Instant::now() < end, "nothing is told");
                seen = now;
            }
            last = seen.last;
            all.push(seen.entries.iter().map(|entry| (**entry).clone()).collect());
        }
        all
    });
    let engine = Engine::new(config(), layout, &Family::BOTH, Recorder::default());
    // The next sync waits until long after a step was sent, so that it takes all of it, also where this thread gets no processor.
    let schedule = Schedule::new(Some(Duration::from_secs(2)), Duration::from_secs(4));
    let (reporter, _health) = health::new(Duration::from_secs(60));
    let sync = Sync::new(engine, schedule, Metrics::new(), reporter, Box::new(|_| Ok(())));
    sync.telling(changes).run(&events).expect("the loop ends with its source");
    steps.join().expect("no panic")
}

fn start(services: u16) -> Vec<Event> {
    let objects = (0..services).flat_map(|n| served(n, 3));
    [node(Some("a"))].into_iter().chain(objects).chain([Event::InitialListDone]).collect()
}

fn services(entries: &[Entry]) -> Vec<&Change> {
    let change = |entry| match entry {
        &Entry { what: EntryKind::Service(ref change), .. } => Some(&**change),
        _ => None,
    };
    entries.iter().filter_map(change).collect()
}

fn runs(entries: &[Entry]) -> Vec<&SyncRun> {
    let run = |entry| match entry {
        &Entry { what: EntryKind::Sync(ref run), .. } => Some(run),
        _ => None,
    };
    entries.iter().filter_map(run).collect()
}

/// The slice of Service `n` with an IPv4 endpoint more.
fn grown(n: u16) -> Event {
    let mut list = endpoints(n, Family::V4, 3);
    list.push(endpoint(address(Family::V4, 245, n)));
    Event::SliceApplied(slice(n, Family::V4, list))
}

#[test]
fn many_services_are_told_by_their_number() {
    for layout in Layout::ALL {
        let all = (0..300).map(grown).collect();
        let [first, many, one] =
            &told(layout, vec![start(300), all, vec![grown(300), Event::ServiceDeleted(name(7))]])[..]
        else {
            panic!("three syncs")
        };
        let [run] = runs(first)[..] else { panic!("{first:?}") };
        assert_eq!((first.len(), run.services, run.trigger.kind, run.unlisted), (1, 300, TriggerKind::Start, 0));
        assert!(run.elements_added > 300, "{run:?}");

        let [run] = runs(many)[..] else { panic!("one entry for all") };
        let listed = services(many);
        assert_eq!((listed.len(), run.unlisted, run.trigger.kind), (100, 200, TriggerKind::Slice));
        for change in listed {
            assert_eq!((change.endpoints.before, change.endpoints.after), (3, 4));
            assert_eq!(
                (change.endpoints.added.len(), change.action, change.result),
                (1, Action::Changed, CommitOutcome::Committed)
            );
            assert!(change.latency.is_some_and(|latency| latency < PATIENCE));
        }

        let [gone] = services(one)[..] else { panic!("{one:?}") };
        assert_eq!((&gone.service, gone.action, gone.trigger.kind), (&name(7), Action::Removed, TriggerKind::Service));
        assert_eq!((gone.endpoints.before, gone.endpoints.after, gone.endpoints.removed.len()), (7, 0, 7));
        assert_eq!(gone.frontends.len(), 8, "four kinds in two families");
    }
}

#[test]
fn what_no_event_of_its_own_explains_has_the_larger_cause() {
    let claims = |n: u16| {
        let mut service = service(n);
        service.external_ips = vec![address(Family::V4, 97, 0)];
        Event::ServiceApplied(service)
    };
    // One endpoint a zone, so that another zone of the node is another endpoint.
    let zoned = |zone: &str, n: u16| {
        let hints = Hints { zones: vec![zone.into()], nodes: Vec::new() };
        Endpoint { hints: Some(Box::new(hints)), ..endpoint(address(Family::V4, 246, n)) }
    };
    let hinted = Event::SliceApplied(slice(3, Family::V4, vec![zoned("a", 1), zoned("b", 2)]));
    let steps =
        vec![start(4), vec![claims(1)], vec![Event::ServiceDeleted(name(0))], vec![hinted], vec![node(Some("b"))]];
    let [_, lost, freed, _, moved] = &told(Layout::Maps, steps)[..] else { panic!("five syncs") };
    let [lost] = services(lost)[..] else { panic!("{lost:?}") };
    assert_eq!((&lost.service, lost.trigger.kind), (&name(1), TriggerKind::Service));

    let got = services(freed).into_iter().find(|change| change.service == name(1)).expect("it got the frontend");
    assert_eq!((got.trigger.kind, &got.trigger.object, got.latency), (TriggerKind::Claim, &None, None));
    assert_eq!(got.frontends.iter().filter(|frontend| frontend.before.is_none()).count(), 1);

    let [moved] = services(moved)[..] else { panic!("{moved:?}") };
    assert_eq!((&moved.service, moved.trigger.kind), (&name(3), TriggerKind::Node));
    assert_eq!((moved.endpoints.added.len(), moved.endpoints.removed.len()), (1, 1));
}
