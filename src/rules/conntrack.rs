//! Finds the conntrack entries (flows) that lead nowhere: to an endpoint that no longer serves, or to a frontend that is gone.
//!
//! Takes the [`State`], what changed and the flows that the kernel tracks; says of each flow whether it is to end. Pure: crate `node`
//! lists the flows of the kernel and ends them.
//!
//! A UDP connection has no end: if its flow stayed, the packets of a client that keeps sending would go to a removed endpoint for as long
//! as the client sends (J1). The same holds for the first packet of a TCP connection or SCTP association that nobody answered, because the
//! client repeats it (J12). Open connections end only where an annotation of the Service asks for it, and only those to an address that was
//! an endpoint of the Service (J13): other programs translate connections to the same addresses and ports.
//!
//! UDP flows are examined only for removed frontends and for Services that changed: the flows of any other Service were checked when that
//! Service last changed, and its endpoints are still the same. Listed TCP and SCTP flows are examined for all Services.
//!
//! Two of the differences from upstream kube-proxy (section J of `tests/BEHAVIOUR.md` has all of them): flows of a service port without
//! serving endpoints are deleted as well, so that the client gets a refusal and not silence (upstream before 1.37 keeps them, J4). A flow
//! to the number of a node port is deleted only if it goes to an address of this node; upstream deletes flows of other programs to that
//! port (J6).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use crate::endpoints::{allowed_sources, is_load_balancer};
use crate::model::{
    CloseConnections, Conditions, Destination, Endpoint, EndpointSlice, Family, Frontend, ObjectName, PortSlice,
    PortSlices, Protocol, Ranges, Service, State,
};

/// A flow that the kernel tracks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The transport protocol. Flows of other protocols, such as ICMP, are left out.
    pub protocol: Protocol,
    /// The client's address and port.
    pub client: SocketAddr,
    /// The destination of the client's packets.
    pub original_destination: SocketAddr,
    /// The source of the replies: the endpoint, or the original destination if the flow was never translated (J7).
    pub reply_source: SocketAddr,
    /// Whether this is a TCP connection or SCTP association whose first packet nobody has answered.
    pub is_unanswered: bool,
    /// The seconds after which the kernel forgets the flow, unless a packet comes.
    pub timeout: u32,
    /// The data that crate `node` needs to end the flow; this module does not look into it.
    pub handle: Vec<u8>,
}

impl Flow {
    /// Whether this is a TCP connection that an endpoint has answered: only a reset tells its client that the flow has ended.
    #[must_use]
    pub fn needs_reset(&self) -> bool {
        self.protocol == Protocol::Tcp && !self.is_unanswered
    }
}

/// The flows that one list of the kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// All UDP flows.
    Udp,
    /// TCP and SCTP flows with a translated destination that nobody answered.
    Unanswered,
    /// All TCP and SCTP flows with a translated destination.
    Translated,
}

/// UDP frontends that were removed since flows were last examined, and endpoints that they may have had.
#[derive(Debug, Default)]
pub struct Gone {
    /// UDP frontends that no Service has any more.
    pub frontends: HashSet<Frontend>,
    /// The UDP endpoints that these frontends may have had.
    pub endpoints: HashSet<SocketAddr>,
}

/// What Services that ask to close connections have lost (J13).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The addresses that were endpoints of a Service.
    pub endpoints: HashMap<ObjectName, HashSet<IpAddr>>,
    /// The addresses that were endpoints of some Service of an earlier process, and are in no slice.
    pub of_any: HashSet<IpAddr>,
    /// The frontends that no Service has any more, each with the Service that had it.
    pub frontends: HashMap<Frontend, ObjectName>,
}

impl Lost {
    /// Whether an address was an endpoint of a Service.
    fn had(&self, service: &ObjectName, address: IpAddr) -> bool {
        self.of_any.contains(&address) || self.endpoints.get(service).is_some_and(|lost| lost.contains(&address))
    }
}

impl Gone {
    /// Adds the UDP endpoints of a slice.
    pub fn add_endpoints(&mut self, slice: &EndpointSlice) {
        let ports = slice.ports.iter().filter(|port| port.protocol == Protocol::Udp);
        let addresses = || slice.endpoints.iter().map(|endpoint| endpoint.address);
        self.endpoints.extend(ports.flat_map(|port| addresses().map(|address| SocketAddr::new(address, port.port))));
    }

    /// Whether a flow went to one of `frontends` and was translated to one of `endpoints`: other flows are left alone, because another
    /// program translated them, or none did.
    fn has(&self, flow: &Flow, node_addresses: &[IpAddr]) -> bool {
        let is_gone = frontends_of(flow, node_addresses).any(|frontend| self.frontends.contains(&frontend));
        is_gone && self.endpoints.contains(&flow.reply_source)
    }
}

/// The frontends that a flow may have used: the Service address (J5), then the node port (J6).
fn frontends_of(flow: &Flow, node_addresses: &[IpAddr]) -> impl Iterator<Item = Frontend> {
    let (protocol, to) = (flow.protocol, flow.original_destination);
    let node_port = node_addresses.contains(&to.ip()).then(|| Destination::NodePort(Family::of(to.ip())));
    let destinations = [Some(Destination::Address(to.ip())), node_port].into_iter().flatten();
    destinations.map(move |destination| Frontend { destination, protocol, port: to.port() })
}

/// Whether a slice loses a TCP or SCTP endpoint or port that may answer the first packet of a connection: an endpoint of `before` is not in
/// `after`, or can no longer answer. Also true if the endpoint has only moved to another slice, because only one slice is compared.
#[must_use]
pub fn loses_endpoints(before: &EndpointSlice, after: Option<&EndpointSlice>) -> bool {
    let answers = |endpoint: &&Endpoint| may_answer(endpoint.conditions);
    let mut ports = before.ports.iter().filter(|port| port.protocol != Protocol::Udp).peekable();
    let mut endpoints = before.endpoints.iter().enumerate().filter(|(_, endpoint)| answers(endpoint));
    if ports.peek().is_none() {
        return false;
    }
    let Some(after) = after.filter(|after| after.service == before.service) else { return endpoints.next().is_some() };
    // Nearly all endpoints keep their place in the list.
    let is_left = |(index, endpoint): (usize, &Endpoint)| {
        let is_it = |other: &&Endpoint| other.address == endpoint.address && answers(other);
        after.endpoints.get(index).filter(is_it).or_else(|| after.endpoints.iter().find(is_it)).is_some()
    };
    ports.any(|port| !after.ports.contains(port)) || !endpoints.all(is_left)
}

/// Returns the addresses of the TCP and SCTP endpoints of a slice that `after` no longer has, whatever their conditions. They may have moved
/// to another slice, because only one slice is compared.
pub fn lost_addresses(before: &EndpointSlice, after: Option<&EndpointSlice>) -> impl Iterator<Item = IpAddr> {
    let counts = before.ports.iter().any(|port| port.protocol != Protocol::Udp);
    let endpoints = if counts { &before.endpoints[..] } else { &[] };
    let after = after.filter(|after| after.service == before.service).map_or(&[][..], |after| &after.endpoints);
    // Most changes leave all endpoints in their places.
    let same = endpoints.iter().zip(after).take_while(|(one, other)| one.address == other.address).count();
    let left: HashSet<IpAddr> = after[same..].iter().map(|endpoint| endpoint.address).collect();
    let addresses = endpoints[same..].iter().map(|endpoint| endpoint.address);
    addresses.filter(move |address| !left.contains(address))
}

/// Whether an endpoint may answer the first packet of a connection.
const fn may_answer(conditions: Conditions) -> bool {
    conditions.ready || conditions.serving
}

/// Says which flows are to end.
pub struct Examiner<'a> {
    state: &'a State,
    /// The Services whose UDP flows are examined.
    services: HashSet<&'a ObjectName>,
    gone: &'a Gone,
    lost: &'a Lost,
    node_addresses: &'a [IpAddr],
    /// The valid endpoints and clients of each frontend that a flow has used so far.
    targets: HashMap<Frontend, Target>,
}

impl<'a> Examiner<'a> {
    /// Takes the Services whose UDP flows are examined, the UDP frontends and endpoints that are gone, and what Services that ask to close
    /// connections have lost. `node_addresses` are the addresses of this node. If `gone` has frontends, adds the endpoints of `services` to it: a Service that lost a frontend may still have the
    /// endpoints to which flows of that frontend go.
    pub fn new(
        state: &'a State,
        services: impl IntoIterator<Item = &'a ObjectName>,
        gone: &'a mut Gone,
        lost: &'a Lost,
        node_addresses: &'a [IpAddr],
    ) -> Self {
        let services: HashSet<_> = services.into_iter().collect();
        if !gone.frontends.is_empty() {
            services.iter().flat_map(|name| state.slices_of(name)).for_each(|slice| gone.add_endpoints(slice));
        }
        Self { state, services, gone, lost, node_addresses, targets: HashMap::new() }
    }

    /// Whether a flow of this family and listing can lead nowhere: a Service that is examined, or a frontend that is gone, has the family.
    #[must_use]
    pub fn concerns(&self, family: Family, listing: Listing) -> bool {
        let has_family = |service: &Service| service.cluster_ips.get(family).is_some();
        let is_any = match listing {
            Listing::Udp => self.services.iter().filter_map(|name| self.state.service(name)).any(has_family),
            Listing::Unanswered => self.state.services_unordered().any(has_family),
            // Connections may be open to frontends of Services that are gone.
            Listing::Translated => true,
        };
        is_any || self.gone.frontends.iter().any(|frontend| frontend.family() == family)
    }

    /// Whether a flow leads nowhere: it went to a frontend of a Service but not to an endpoint with which it may stay, or (UDP) its client
    /// is not in the allowed source ranges, or its frontend is gone.
    pub fn is_stale(&mut self, flow: &Flow) -> bool {
        // No endpoint has port 0. A flow to it took the place of a deleted flow so that the client gets a reset. It must not be replaced
        // again: the client may have got the reset already, and may connect from the same port again.
        if flow.reply_source.port() == 0 {
            return false;
        }
        let (state, is_udp) = (self.state, flow.protocol == Protocol::Udp);
        let owned = frontends_of(flow, self.node_addresses)
            .find_map(|frontend| state.owner(&frontend).map(|(service, port)| (frontend, service, port)));
        match owned {
            Some((frontend, service, port)) if !is_udp || self.services.contains(&service.name) => {
                let target = self.targets.entry(frontend);
                let target = target.or_insert_with(|| Target::new(state, service, port, &frontend));
                let is_open = !is_udp && !flow.is_unanswered;
                !target.admits(flow) && (!is_open || self.lost.had(&service.name, flow.reply_source.ip()))
            }
            _ if is_udp => self.gone.has(flow, self.node_addresses),
            _ => self.lost_its_frontend(flow),
        }
    }

    /// Whether a TCP or SCTP flow went to a frontend that is gone, and to an address that is or was an endpoint of its Service.
    fn lost_its_frontend(&self, flow: &Flow) -> bool {
        let address = flow.reply_source.ip();
        let mut services = frontends_of(flow, self.node_addresses).filter_map(|gone| self.lost.frontends.get(&gone));
        services.any(|service| {
            let mut slices = self.state.slices_of(service);
            self.lost.had(service, address)
                || slices.any(|slice| slice.endpoints.iter().any(|endpoint| endpoint.address == address))
        })
    }
}

/// The endpoints and clients that are valid for flows to one frontend.
struct Target {
    /// The endpoints of the service port in any slice.
    endpoints: HashMap<SocketAddr, Conditions>,
    /// The client addresses that may connect (D17); `None` if all may.
    sources: Option<Ranges>,
    /// Whether a UDP flow stays as long as its endpoint is in a slice (J3).
    keeps_unready: bool,
    /// The addresses to which open connections stay: those in the Service's slices (J13); `None` if all stay.
    open: Option<HashSet<IpAddr>>,
}

impl Target {
    fn new(state: &State, service: &Service, port: usize, frontend: &Frontend) -> Self {
        let family = frontend.family();
        let slices = || state.slices_of(&service.name);
        let endpoints = service.ports.get(port).map(|port| endpoints(PortSlices::of(slices()).get(port, family)));
        let addresses = || slices().flat_map(|slice| slice.endpoints.iter().map(|endpoint| endpoint.address));
        let restricted = frontend.protocol == Protocol::Udp && is_load_balancer(service, frontend);
        let sources = restricted.then(|| allowed_sources(service, family, state.node())).flatten();
        Self {
            endpoints: endpoints.unwrap_or_default(),
            sources: sources.map(Ranges::from_iter),
            keeps_unready: service.keeps_unready_udp_flows,
            open: service.close_connections.map(|_: CloseConnections| addresses().collect()),
        }
    }

    fn admits(&self, flow: &Flow) -> bool {
        let conditions = self.endpoints.get(&flow.reply_source);
        if flow.protocol == Protocol::Udp {
            let serves = conditions.is_some_and(|conditions| conditions.serving || self.keeps_unready);
            return serves && self.sources.as_ref().is_none_or(|sources| sources.contains(flow.client.ip()));
        }
        if flow.is_unanswered {
            return conditions.is_some_and(|conditions| may_answer(*conditions));
        }
        self.open.as_ref().is_none_or(|open| open.contains(&flow.reply_source.ip()))
    }
}

/// The endpoints of a service port, each with the conditions that it has in any of the slices.
fn endpoints(slices: &[PortSlice<'_>]) -> HashMap<SocketAddr, Conditions> {
    let mut endpoints = HashMap::new();
    for PortSlice { slice, port, .. } in slices {
        for endpoint in &slice.endpoints {
            let known = endpoints.entry(SocketAddr::new(endpoint.address, *port)).or_insert(endpoint.conditions);
            known.ready |= endpoint.conditions.ready;
            known.serving |= endpoint.conditions.serving;
        }
    }
    endpoints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::Gathered;
    use crate::model::Event;
    use crate::model::testing::{self, name, port, slice, slice_port};

    fn flow_of(protocol: Protocol, to: &str, answered_by: &str) -> Flow {
        Flow {
            protocol,
            client: "203.0.113.7:4000".parse().unwrap(),
            original_destination: to.parse().unwrap(),
            reply_source: answered_by.parse().unwrap(),
            is_unanswered: false,
            timeout: 30,
            handle: Vec::new(),
        }
    }

    fn flow(to: &str, answered_by: &str) -> Flow {
        flow_of(Protocol::Udp, to, answered_by)
    }

    fn dns(endpoints: &[&str]) -> State {
        let mut service = testing::service("shop/dns", &["10.96.0.10"]);
        service.external_ips = vec!["192.0.2.1".parse().unwrap()];
        service.load_balancer_ips = vec!["198.51.100.1".parse().unwrap()];
        service.ports = vec![port("dns/udp", 53), port("dns-tcp", 53)];
        service.ports[0].node_port = Some(30053);
        let ports = [slice_port("dns/udp", 5353), slice_port("dns-tcp", 5353)];
        let slice = slice("shop/dns-1", "shop/dns", &ports, endpoints);
        testing::state([Event::ServiceApplied(service), Event::SliceApplied(slice)])
    }

    fn deleted(state: &State, flow: Flow) -> bool {
        let node = ["192.168.0.2".parse().unwrap()];
        Examiner::new(state, [&name("shop/dns")], &mut Gone::default(), &Lost::default(), &node).is_stale(&flow)
    }

    // Clients that source ranges exclude lose their flows to load balancer IPs, but not those to other frontends (J11).
    #[test]
    fn flows_of_clients_out_of_the_source_ranges_are_deleted_on_load_balancer_ips() {
        let mut state = dns(&["10.244.0.1"]);
        let mut service = state.service(&name("shop/dns")).unwrap().clone();
        for (range, excluded) in [("203.0.113.0/24", false), ("203.0.113.8/29", true), ("2001:db8::/32", false)] {
            service.source_ranges = vec![range.parse().unwrap()];
            state.apply(Event::ServiceApplied(service.clone()));
            assert_eq!(deleted(&state, flow("198.51.100.1:53", "10.244.0.1:5353")), excluded, "{range}");
            for frontend in ["10.96.0.10:53", "192.0.2.1:53", "192.168.0.2:30053"] {
                assert!(!deleted(&state, flow(frontend, "10.244.0.1:5353")), "{frontend}");
            }
        }
    }

    // A flow to a removed frontend is deleted if it was translated to an endpoint of that frontend (J10).
    #[test]
    fn of_the_flows_to_a_frontend_that_is_gone_those_to_its_endpoints_are_deleted() {
        let mut state = dns(&["10.244.0.1"]);
        let frontend = |destination, port| Frontend { destination, protocol: Protocol::Udp, port };
        let frontends = [
            frontend(Destination::Address("10.96.0.10".parse().unwrap()), 53),
            frontend(Destination::NodePort(Family::V4), 30053),
        ];
        let mut gone =
            Gone { frontends: frontends.into(), endpoints: HashSet::from(["10.244.0.9:5353".parse().unwrap()]) };
        state.apply(Event::ServiceDeleted(name("shop/dns")));
        let node = ["192.168.0.2".parse().unwrap()];
        let mut deleted = |to: &str, answered_by: &str| {
            let lost = Lost::default();
            Examiner::new(&state, [&name("shop/dns")], &mut gone, &lost, &node).is_stale(&flow(to, answered_by))
        };
        for to in ["10.96.0.10:53", "192.168.0.2:30053"] {
            assert!(deleted(to, "10.244.0.1:5353"), "{to}: an endpoint that its slices still have");
            assert!(deleted(to, "10.244.0.9:5353"), "{to}: an endpoint that went as well");
            assert!(!deleted(to, "10.244.0.5:5353"), "{to}: another program's");
            assert!(!deleted(to, to), "{to}: not translated");
        }
        for to in ["10.96.0.10:54", "10.96.0.11:53", "203.0.113.5:30053", "192.168.0.2:30054"] {
            assert!(!deleted(to, "10.244.0.1:5353"), "{to}: no such frontend is gone");
        }
    }

    // Flows to every address of the Service are examined: cluster IP, external IP and load balancer IP (J5).
    #[test]
    fn a_flow_to_a_removed_endpoint_is_deleted_on_every_address() {
        let state = dns(&["10.244.0.1"]);
        for frontend in ["10.96.0.10:53", "192.0.2.1:53", "198.51.100.1:53"] {
            assert!(deleted(&state, flow(frontend, "10.244.0.9:5353")), "{frontend}");
            assert!(!deleted(&state, flow(frontend, "10.244.0.1:5353")), "{frontend}");
        }
        assert!(!deleted(&state, flow("10.96.0.10:54", "10.244.0.9:5353")), "not a port of the Service");
        assert!(!deleted(&state, flow("10.96.0.11:53", "10.244.0.9:5353")), "not an address of the Service");
    }

    // A flow stays as long as its endpoint has condition `serving`; `ready` and `terminating` do not matter (J3).
    #[test]
    fn an_endpoint_that_serves_keeps_its_flows_even_when_it_terminates() {
        let state = dns(&["10.244.0.1 terminating", "10.244.0.2 unready"]);
        assert!(!deleted(&state, flow("10.96.0.10:53", "10.244.0.1:5353")));
    }

    // A flow of a service port without a serving endpoint is deleted, so that the client is refused (J4).
    #[test]
    fn without_serving_endpoints_all_flows_are_deleted() {
        assert!(deleted(&dns(&[]), flow("10.96.0.10:53", "10.244.0.1:5353")));
    }

    // A flow to another machine is not a flow of the Service, even if its destination port is the Service's node port; upstream deletes it
    // (J6).
    #[test]
    fn node_port_flows_count_on_the_nodes_addresses_only() {
        let state = dns(&["10.244.0.1"]);
        assert!(deleted(&state, flow("192.168.0.2:30053", "10.244.0.9:5353")));
        assert!(!deleted(&state, flow("192.168.0.2:30053", "10.244.0.1:5353")));
        assert!(!deleted(&state, flow("203.0.113.5:30053", "203.0.113.5:30053")), "a flow of another host");
    }

    // A flow to a Service that was never translated, such as one that is older than the rules, is deleted like a flow to a wrong endpoint
    // (J7).
    #[test]
    fn a_flow_that_was_never_translated_is_deleted() {
        assert!(deleted(&dns(&["10.244.0.1"]), flow("10.96.0.10:53", "10.96.0.10:53")));
    }

    // `has_udp_endpoints` is true if a slice of the Service has a UDP port. It decides whether a change asks for the UDP flows to be
    // examined (B15).
    #[test]
    fn a_service_has_udp_endpoints_by_its_slices() {
        let state = dns(&["10.244.0.1"]);
        assert!(Gathered::of(&state, &name("shop/dns")).has_udp_endpoints());
        assert!(!Gathered::of(&state, &name("shop/other")).has_udp_endpoints());
    }

    /// A Service with a TCP and an SCTP port on endpoint ports 8080 and 9090, and these endpoints.
    fn web(endpoints: &[&str], close_connections: Option<CloseConnections>) -> State {
        let mut web = testing::service("shop/web", &["10.96.0.11"]);
        web.ports = vec![port("http", 80), port("sig/sctp", 90)];
        web.ports[0].node_port = Some(30080);
        web.close_connections = close_connections;
        let ports = [slice_port("http", 8080), slice_port("sig/sctp", 9090)];
        let slice = slice("shop/web-1", "shop/web", &ports, endpoints);
        testing::state([Event::ServiceApplied(web), Event::SliceApplied(slice)])
    }

    /// What Service `shop/web` has lost: these endpoints, and its frontends if there are any in the list.
    fn lost(endpoints: &[&str], frontends: &[Frontend]) -> Lost {
        let endpoints = endpoints.iter().map(|address| address.parse().unwrap()).collect();
        let frontends = frontends.iter().map(|frontend| (*frontend, name("shop/web"))).collect();
        Lost { endpoints: [(name("shop/web"), endpoints)].into(), of_any: HashSet::new(), frontends }
    }

    /// Whether a TCP flow and an SCTP flow from a client to this endpoint of the Service end. A TCP flow by way of the node port must have
    /// the same result. The Service had all endpoints below 10.
    fn ended(state: &State, endpoint: &str, is_unanswered: bool) -> [bool; 2] {
        let node = ["192.168.0.2".parse().unwrap()];
        let mut gone = Gone::default();
        let had: Vec<String> = (0..10).map(|n| format!("10.244.0.{n}")).collect();
        let lost = lost(&had.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        let mut examiner = Examiner::new(state, [], &mut gone, &lost, &node);
        let flows = [
            (Protocol::Tcp, "10.96.0.11:80", 8080),
            (Protocol::Sctp, "10.96.0.11:90", 9090),
            (Protocol::Tcp, "192.168.0.2:30080", 8080),
        ];
        let [tcp, sctp, node_port] = flows.map(|(protocol, to, port)| {
            let flow = flow_of(protocol, to, &format!("{endpoint}:{port}"));
            examiner.is_stale(&Flow { is_unanswered, ..flow })
        });
        assert_eq!(tcp, node_port, "{endpoint}");
        [tcp, sctp]
    }

    // A flow that nobody answered ends unless its endpoint can still answer; an open connection stays (J9, J12).
    #[test]
    fn unanswered_connections_to_an_endpoint_that_cannot_answer_end() {
        let endpoints = ["10.244.0.1", "10.244.0.2 terminating", "10.244.0.3 published", "10.244.0.4 dead"];
        let state = web(&endpoints, None);
        for (endpoint, ends) in [(1, false), (2, false), (3, false), (4, true), (9, true)] {
            let endpoint = format!("10.244.0.{endpoint}");
            assert_eq!(ended(&state, &endpoint, true), [ends; 2], "{endpoint}");
            assert_eq!(ended(&state, &endpoint, false), [false; 2], "{endpoint}");
        }
        let (mut gone, lost) = Default::default();
        let mut examiner = Examiner::new(&state, [], &mut gone, &lost, &[]);
        for to in ["10.96.0.11:81", "10.96.0.12:80", "192.168.0.2:30080"] {
            let other = Flow { is_unanswered: true, ..flow_of(Protocol::Tcp, to, "10.244.0.9:8080") };
            assert!(!examiner.is_stale(&other), "{to}: no frontend of the Service");
        }
    }

    // With the annotation `close-connections` an open connection ends once the address of its endpoint is in no slice. It is reset only
    // once (J13).
    #[test]
    fn open_connections_end_with_the_address_of_their_endpoint() {
        let endpoints = ["10.244.0.1", "10.244.0.2 dead", "10.244.0.3 unready"];
        let state = web(&endpoints, Some(CloseConnections::EndpointGone));
        for (endpoint, ends) in [(1, false), (2, false), (3, false), (9, true)] {
            assert_eq!(ended(&state, &format!("10.244.0.{endpoint}"), false), [ends; 2], "{endpoint}");
        }
        let (mut gone, lost) = (Gone::default(), lost(&["10.244.0.1", "10.244.0.9"], &[]));
        let mut examiner = Examiner::new(&state, [], &mut gone, &lost, &[]);
        let mut ends = |by: &str| examiner.is_stale(&flow_of(Protocol::Tcp, "10.96.0.11:80", by));
        assert!(!ends("10.244.0.1:8081"), "a former port of an endpoint that is there");
        assert!(!ends("192.168.0.2:0"), "its reset is on the way");
        assert!(!ends("10.244.0.8:8080"), "another program translated it: the Service never had this endpoint");
        assert!(ends("10.244.0.9:8080"));
        let needs_reset = |protocol, is_unanswered| {
            Flow { is_unanswered, ..flow_of(protocol, "10.96.0.11:80", "10.244.0.9:8080") }.needs_reset()
        };
        assert!(needs_reset(Protocol::Tcp, false) && !needs_reset(Protocol::Tcp, true));
        assert!(!needs_reset(Protocol::Sctp, false));
    }

    // If the Service asks for it, a UDP flow stays with an endpoint that does not serve, but not with one that is in no slice (J3).
    #[test]
    fn flows_of_endpoints_that_do_not_serve_are_kept_on_demand() {
        for keeps in [false, true] {
            let mut state = dns(&["10.244.0.1 dead", "10.244.0.2 unready"]);
            let mut service = state.service(&name("shop/dns")).unwrap().clone();
            service.keeps_unready_udp_flows = keeps;
            state.apply(Event::ServiceApplied(service));
            for endpoint in ["10.244.0.1:5353", "10.244.0.2:5353"] {
                assert_eq!(deleted(&state, flow("10.96.0.10:53", endpoint)), !keeps, "{endpoint}");
            }
            assert!(deleted(&state, flow("10.96.0.10:53", "10.244.0.9:5353")));
        }
    }

    // A slice loses an endpoint for TCP or SCTP when its address, its conditions, its port or the slice's Service changes (J12).
    #[test]
    fn a_slice_that_loses_endpoints_is_noticed() {
        let with = |port: &str, number, endpoints: &[&str]| {
            slice("shop/web-1", "shop/web", &[slice_port(port, number)], endpoints)
        };
        let before = with("http", 80, &["10.244.0.1", "10.244.0.2"]);
        assert!(loses_endpoints(&before, None));
        assert!(!loses_endpoints(&with("dns/udp", 53, &["10.244.0.1"]), None));
        assert!(!loses_endpoints(&with("http", 80, &["10.244.0.1 dead"]), None), "it took none before");
        for (after, loses) in [
            (with("http", 80, &["10.244.0.1", "10.244.0.2", "10.244.0.3"]), false),
            (with("http", 80, &["10.244.0.2 terminating", "10.244.0.1"]), false),
            (with("http", 80, &["10.244.0.1", "10.244.0.2 unready"]), true),
            (with("http", 80, &["10.244.0.1", "10.244.0.3"]), true),
            (with("http", 81, &["10.244.0.1", "10.244.0.2"]), true),
            (EndpointSlice { service: name("shop/other"), ..before.clone() }, true),
        ] {
            assert_eq!(loses_endpoints(&before, Some(&after)), loses, "{after:?}");
        }
    }

    // For open connections a slice loses the addresses that it no longer has, whatever the conditions of the endpoints (J13).
    #[test]
    fn the_addresses_that_a_slice_loses_are_those_that_it_no_longer_has() {
        let with =
            |number, endpoints: &[&str]| slice("shop/web-1", "shop/web", &[slice_port("http", number)], endpoints);
        let before = with(80, &["10.244.0.1", "10.244.0.2 dead", "10.244.0.3"]);
        let lost = |after: Option<&EndpointSlice>| {
            lost_addresses(&before, after).map(|address| address.to_string()).collect::<Vec<_>>()
        };
        let all = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
        assert_eq!(lost(None), all);
        assert_eq!(lost(Some(&EndpointSlice { service: name("shop/other"), ..before.clone() })), all);
        for (endpoints, left) in [
            (&["10.244.0.1 dead", "10.244.0.2", "10.244.0.3"][..], &[][..]),
            (&["10.244.0.3", "10.244.0.2", "10.244.0.1"], &[]),
            (&["10.244.0.2", "10.244.0.3"], &["10.244.0.1"]),
            (&["10.244.0.1", "10.244.0.9", "10.244.0.3", "10.244.0.4"], &["10.244.0.2"]),
            (&[], &all),
        ] {
            assert_eq!(lost(Some(&with(81, endpoints))), left, "{endpoints:?}");
        }
        let udp = slice("shop/dns-1", "shop/dns", &[slice_port("dns/udp", 53)], &["10.244.0.1"]);
        assert_eq!(lost_addresses(&udp, None).count(), 0);
    }

    // A connection to a frontend that is gone ends if its endpoint is or was one of the Service (J13).
    #[test]
    fn of_the_connections_to_a_frontend_that_is_gone_those_to_its_endpoints_end() {
        let mut state = web(&["10.244.0.1"], Some(CloseConnections::EndpointOrServiceGone));
        state.apply(Event::ServiceDeleted(name("shop/web")));
        let frontend = |destination, port| Frontend { destination, protocol: Protocol::Tcp, port };
        let frontends = [
            frontend(Destination::Address("10.96.0.11".parse().unwrap()), 80),
            frontend(Destination::NodePort(Family::V4), 30080),
        ];
        let (mut gone, lost) = (Gone::default(), lost(&["10.244.0.9"], &frontends));
        let node = ["192.168.0.2".parse().unwrap()];
        let mut examiner = Examiner::new(&state, [], &mut gone, &lost, &node);
        let mut ends = |to, by: &str| examiner.is_stale(&flow_of(Protocol::Tcp, to, by));
        for to in ["10.96.0.11:80", "192.168.0.2:30080"] {
            assert!(ends(to, "10.244.0.1:8080"), "{to}: an endpoint that its slices still have");
            assert!(ends(to, "10.244.0.9:8080"), "{to}: an endpoint that went as well");
            assert!(!ends(to, "10.244.0.5:8080"), "{to}: another program's");
        }
        assert!(!ends("10.96.0.11:81", "10.244.0.1:8080"), "this frontend is not gone");
    }
}
