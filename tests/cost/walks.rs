//! How often the kernel has to walk over its whole table of tracked connections: only when a flow may lead nowhere, and once for each family
//! that is concerned.

use crate::support::cluster::{config, endpoints, node, service, slice};
use crate::support::kernel::Recorder;
use kube_proxy::sync::Engine;
use rules::conntrack::Listing;
use rules::conntrack::Listing::{Udp, Unanswered};
use rules::model::{ClusterIps, Event, Family, Protocol, Service};
use rules::ruleset::Layout;

type Walks = Vec<(Family, Listing)>;

/// Service `n` of this protocol with these numbers of endpoints in the families; it has no address in a family without endpoints.
fn served(n: u16, protocol: Protocol, counts: &[(Family, u16)]) -> Vec<Event> {
    let mut service = service(n);
    let has = |family| counts.iter().any(|(other, _)| *other == family);
    let ClusterIps { v4, v6 } = service.cluster_ips;
    service.cluster_ips = ClusterIps { v4: v4.filter(|_| has(Family::V4)), v6: v6.filter(|_| has(Family::V6)) };
    service.ports[0].protocol = protocol;
    let slices = counts.iter().map(|(family, count)| {
        let mut slice = slice(n, *family, endpoints(n, *family, *count));
        slice.ports[0].protocol = protocol;
        Event::SliceApplied(slice)
    });
    [Event::ServiceApplied(Service { ports: service.ports.clone(), ..service })].into_iter().chain(slices).collect()
}

struct Node {
    engine: Engine<Recorder>,
    kernel: Recorder,
}

impl Node {
    fn start(kernel: &Recorder, events: Vec<Event>) -> (Self, Walks) {
        let engine = Engine::new(config(), Layout::Maps, &Family::BOTH, kernel.clone());
        let mut node = Self { engine, kernel: kernel.clone() };
        let walks = node.change([events, vec![self::node(None), Event::InitialListDone]].concat());
        (node, walks)
    }

    /// Returns the walks of a sync after these events, and of the time after it.
    fn change(&mut self, events: Vec<Event>) -> Walks {
        events.into_iter().for_each(|event| {
            self.engine.apply(event);
        });
        self.engine.sync(false).expect("this kernel takes everything");
        if let Some(at) = self.engine.next_client_check() {
            self.engine.check_clients(at);
        }
        assert_eq!(self.engine.next_client_check(), None);
        std::mem::take(&mut self.kernel.log.borrow_mut().walks)
    }
}

const V4: Family = Family::V4;
const V6: Family = Family::V6;

#[test]
fn a_start_walks_for_flows_that_an_earlier_process_or_missing_rules_left_and_only_for_families_in_use() {
    // UDP flows may have begun without rules (J7), all others only with the rules of an earlier process (J12).
    let tcp = |counts: &[(Family, u16)]| served(1, Protocol::Tcp, counts);
    let udp = |counts: &[(Family, u16)]| served(2, Protocol::Udp, counts);
    for (events, first, again) in [
        (tcp(&[(V4, 3), (V6, 3)]), vec![], vec![(V4, Unanswered), (V6, Unanswered)]),
        (tcp(&[(V4, 3)]), vec![], vec![(V4, Unanswered)]),
        ([tcp(&[(V4, 3)]), udp(&[(V4, 2)])].concat(), vec![(V4, Udp)], vec![(V4, Udp), (V4, Unanswered)]),
        (
            udp(&[(V4, 2), (V6, 2)]),
            vec![(V4, Udp), (V6, Udp)],
            vec![(V4, Udp), (V6, Udp), (V4, Unanswered), (V6, Unanswered)],
        ),
    ] {
        let kernel = Recorder::default();
        assert_eq!(Node::start(&kernel, events.clone()).1, first, "on a node without rules");
        assert_eq!(Node::start(&kernel, events.clone()).1, again, "over the rules of the process before");
        kernel.log.borrow_mut().tracks_nothing = true;
        assert_eq!(Node::start(&kernel, events).1, [], "the kernel tracks no connection");
    }
}

#[test]
fn a_change_walks_only_if_flows_may_lead_nowhere_because_of_it_and_only_for_its_families() {
    // An endpoint that comes takes nothing away; one that goes does (J1, J12).
    let tcp = |count| served(1, Protocol::Tcp, &[(V4, count)]);
    let udp = |count| served(2, Protocol::Udp, &[(V4, count), (V6, 2)]);
    let single = |count| served(3, Protocol::Udp, &[(V6, count)]);
    let kernel = Recorder::default();
    let (mut node, _) = Node::start(&kernel, [tcp(3), udp(3), single(3)].concat());
    assert_eq!(node.change(vec![]), []);
    assert_eq!(node.change(tcp(4)), [], "an endpoint more");
    assert_eq!(node.change(tcp(2)), [(V4, Unanswered), (V6, Unanswered)], "the list has the flows of all Services");
    assert_eq!(node.change(udp(2)), [(V4, Udp), (V6, Udp)]);
    assert_eq!(node.change(single(2)), [(V6, Udp)]);
    kernel.log.borrow_mut().tracks_nothing = true;
    assert_eq!(node.change([tcp(1), udp(1), single(1)].concat()), [], "the kernel tracks no connection");
}
