//! A map that is full of remembered clients, which expire while an endpoint is taken away.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kube_proxy::sync::Engine;
use nft::{Command, Data, Element, Set, TableName, Value};
use node::kernel::Kernel;
use rules::model::{Endpoint, Event, Family};
use rules::ruleset::Layout;

use super::kernel::{Age, Aged};
use crate::support::cluster::{address, config, endpoint, node, service, slice};
use crate::support::netns::Namespace;

/// As many as a map has room for.
const FULL: u32 = 65_536;

/// A synced Service with affinity and two endpoints, one of which changes.
struct Remembering {
    engine: Engine<Aged>,
    kernel: Aged,
    map: Arc<Set>,
    /// The endpoint that changes next is the one with this number.
    turn: u16,
}

fn table() -> TableName {
    TableName::new(nft::Family::Ip, "kube-proxy")
}

fn changing(turn: u16) -> Endpoint {
    endpoint(address(Family::V4, 245, turn))
}

fn endpoints(turn: u16) -> Event {
    Event::SliceApplied(slice(0, Family::V4, vec![endpoint(address(Family::V4, 244, 1)), changing(turn)]))
}

impl Remembering {
    fn new(age: Age) -> Self {
        let kernel = Aged::open(age);
        let mut engine = Engine::new(config(), Layout::Maps, &Family::BOTH, kernel.clone());
        let mut web = service(0);
        web.affinity_seconds = Some(1);
        for event in [node(None), Event::ServiceApplied(web), endpoints(0), Event::InitialListDone] {
            engine.apply(event);
        }
        engine.sync(false).expect("nothing is wrong yet");
        let dump = kernel.clone().read(&table()).expect("it can be read").expect("a table");
        let (map, _) =
            dump.sets.into_values().find(|(set, _)| set.flags.dynamic).expect("the map of remembered clients");
        Self { engine, kernel, map: Arc::new(map), turn: 0 }
    }

    /// Has the map remember clients for the endpoint that changes next, each for a time that is chosen by its number.
    fn remember(&mut self, clients: u32, time: impl Fn(u32) -> Duration) {
        let value = Value::Data(Data::from(changing(self.turn).address));
        let client = |n: u32| Data::from(IpAddr::V4(Ipv4Addr::from(0x6440_0000 + n)));
        let element = |n| Element { timeout: Some(time(n)), ..Element::mapping(client(n), value.clone()) };
        let add = Command::AddElements(table(), Arc::clone(&self.map), (0..clients).map(element).collect());
        // The kernel needs a moment to remove expired clients.
        let start = Instant::now();
        while let Err(error) = self.kernel.commit(std::slice::from_ref(&add)) {
            assert!(start.elapsed() < Duration::from_secs(20), "what rules do is refused: {error}");
            sleep(Duration::from_millis(50));
        }
    }

    /// Takes the endpoint away that clients are remembered for, and adds another.
    fn replace(&mut self) -> Result<(), String> {
        self.turn += 1;
        self.engine.apply(endpoints(self.turn));
        self.engine.sync(false).map(drop).map_err(|error| format!("replacement {}: {error}", self.turn))
    }

    /// Checks the remembered clients as often as the sync loop would.
    fn check_clients(&mut self) {
        while let Some(look) = self.engine.next_client_check() {
            sleep(look.saturating_duration_since(Instant::now()));
            self.engine.check_clients(Instant::now());
        }
    }

    /// The clients that are remembered for an endpoint that is gone.
    fn misled(&mut self) -> usize {
        let known = self.kernel.elements(&table(), &self.map).expect("it can be read");
        let gone = |turn: u16| Value::Data(Data::from(changing(turn).address));
        known.iter().filter(|element| (0..self.turn).any(|turn| element.value == gone(turn))).count()
    }
}

fn in_a_namespace(test: impl Fn(Age) + Sync) {
    for age in [Age::Present, Age::Old] {
        Namespace::new("memory").enter(|| test(age));
    }
}

#[test]
fn clients_that_all_expire_before_the_commit_cost_no_sync() {
    // Clients that the kernel forgets meanwhile do not make the transaction fail that forgets them (E6).
    in_a_namespace(|age| {
        let mut remembering = Remembering::new(age);
        remembering.remember(FULL, |_| Duration::from_millis(1500));
        remembering.kernel.orders.borrow_mut().wait = Duration::from_secs(2);
        remembering.replace().unwrap_or_else(|error| panic!("{age:?}: {error}"));
        assert_eq!((remembering.misled(), remembering.engine.quarantined().len()), (0, 0), "{age:?}");
    });
}

#[test]
fn a_full_map_whose_clients_expire_all_the_time_costs_no_sync() {
    // A map with as many clients as it may have forgets those of a removed endpoint while others expire (E6, E7).
    in_a_namespace(|age| {
        let mut remembering = Remembering::new(age);
        let time = |n| Duration::from_millis(if n % 2 == 0 { 60_000 } else { 300 + u64::from(n % 1_000) });
        for _ in 0..3 {
            remembering.remember(FULL, time);
            remembering.replace().unwrap_or_else(|error| panic!("{age:?}: {error}"));
            remembering.check_clients();
        }
        assert_eq!((remembering.misled(), remembering.engine.quarantined().len()), (0, 0), "{age:?}");
    });
}
