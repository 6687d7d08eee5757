//! `/debug/endpoints/NAMESPACE/NAME`: why a Service has the endpoints that it has, in numbers and in sentences.
//!
//! Takes the path of a request, asks the sync thread through an [`Asker`], and formats its [`Causes`] as a [`Page`]. The sentences of the
//! page are made here, so that programs that show the page print equal sentences; [`page`] is pure.

use hyper::StatusCode;

use super::questions::{Answer, Asker};
use component::http::{self, JSON, PLAIN, Response};
use inspect::services::causes::{Cause, Counts, Hints, Page, PortCauses, Taken};
use rules::endpoints::causes::{self, Causes, PortCause};
use rules::endpoints::{Category, Hint, Ignored, Topology};
use rules::model::{CloseConnections, ObjectName, Protocol, TrafficPolicy, Weights};

/// The beginning of the paths of these pages.
pub(super) const PATH: &str = "/debug/endpoints/";
/// The longest namespace and name together; the API allows 63 and 253 characters.
const LONGEST_NAME: usize = 512;

/// Returns the page at a path.
pub(super) async fn respond(asker: &Asker, path: &str) -> Response {
    let text = |status, text: &str| http::response(status, PLAIN, format!("{text}\n"));
    let Some(service) = service(path) else {
        return text(StatusCode::BAD_REQUEST, "cannot read the path: expected /debug/endpoints/NAMESPACE/NAME");
    };
    match asker.ask(service.clone()).await {
        Some(Answer::Known(causes)) => match serde_json::to_string(&page(&causes)) {
            Ok(json) => http::response(StatusCode::OK, JSON, json),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
        Some(Answer::Unknown) => text(
            StatusCode::NOT_FOUND,
            &format!(
                "the proxy serves no Service {service}: it does not exist, has no cluster IP, or another proxy serves it"
            ),
        ),
        Some(Answer::NotYet) => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the proxy has not received all Services and EndpointSlices yet")
        }
        None => text(StatusCode::SERVICE_UNAVAILABLE, "the proxy is busy; ask again"),
    }
}

/// The Service that a path names; `None` if the path has no namespace and name, or is too long.
fn service(path: &str) -> Option<ObjectName> {
    let name = path.strip_prefix(PATH).filter(|name| name.len() <= LONGEST_NAME)?;
    let (namespace, name) = name.split_once('/')?;
    let is_name = |text: &str| !text.is_empty() && !text.contains('/');
    (is_name(namespace) && is_name(name)).then(|| ObjectName::new(namespace, name))
}

fn page(causes: &Causes) -> Page {
    let ports = causes.ports.iter().map(|port| PortCauses {
        service: port.label.to_string(),
        protocol: port.protocol.api_name().to_owned(),
        family: port.family.to_string(),
        internal: cause(causes, port, "internalTrafficPolicy", port.internal),
        external: port.external.map(|policy| cause(causes, port, "externalTrafficPolicy", policy)),
    });
    Page { ports: ports.collect(), is_complete: causes.is_complete }
}

/// Makes the cause for the frontends to which `policy` applies. `field` is the field of the Service that has this policy.
fn cause(causes: &Causes, port: &PortCause, field: &str, policy: TrafficPolicy) -> Cause {
    let is_local = policy == TrafficPolicy::Local;
    // With external policy Local, clients in the cluster reach all endpoints.
    let reaches_all = !is_local || field == "externalTrafficPolicy";
    let cluster = port.cluster.filter(|_| reaches_all);
    let local = port.local.filter(|_| is_local);
    let mut texts = Vec::new();
    if port.endpoints.ready + port.endpoints.terminating == 0 {
        texts.push(format!("no endpoints: {}", no_endpoints(port)));
    } else {
        if let Some((causes::Taken { category: Category::Terminating, count }, _)) = cluster {
            texts.push(format!("served by {}: none is ready", pods_text(count, "terminating ")));
        }
        texts.extend(local.and_then(|taken| no_local(port, taken)).map(|text| format!("{field} Local: {text}")));
    }
    let hints = match cluster.filter(|_| !is_local) {
        None => {
            texts.extend(causes.asks_for_hints.then(|| format!("topology: hints not used: {field} is Local")));
            Hints::PolicyLocal
        }
        Some((taken, topology)) => {
            texts.extend(hints_text(causes, port, taken, topology).map(|text| format!("topology: hints {text}")));
            hints(topology)
        }
    };
    texts.extend(flows_text(causes, port).map(str::to_owned));
    texts.extend(weights(causes, field, is_local));
    let taken =
        |taken: causes::Taken| Taken { count: taken.count, terminating: taken.category == Category::Terminating };
    Cause {
        pods: counts(port.pods),
        with_port: counts(port.endpoints),
        on_node: counts(port.here),
        cluster: cluster.map(|(it, _)| taken(it)),
        local: local.map(taken),
        hints,
        texts,
    }
}

/// What the Service's annotations say about the flows of a port; `None` if they say nothing.
fn flows_text(causes: &Causes, port: &PortCause) -> Option<&'static str> {
    match (port.protocol, causes.close_connections) {
        (Protocol::Udp, _) => {
            causes.keeps_unready_udp_flows.then_some("UDP flows: kept while their endpoint is not ready")
        }
        (_, Some(CloseConnections::EndpointGone)) => Some("connections: closed when their endpoint is gone"),
        (_, Some(CloseConnections::EndpointOrServiceGone)) => {
            Some("connections: closed when their endpoint or the Service is gone")
        }
        (_, None) => None,
    }
}

/// Returns the sentence about the weights in the Service's annotation, and which of them have no effect; `None` without weights.
fn weights(causes: &Causes, field: &str, is_local: bool) -> Option<String> {
    let Causes { weights, zone, .. } = causes;
    let without_effect = match weights.zone {
        _ if *weights == Weights::default() => return None,
        _ if is_local => format!("; no effect on connections that {field} Local keeps on this node"),
        Some(_) if zone.is_none() => {
            "; zone has no effect: the Node has no label topology.kubernetes.io/zone".to_owned()
        }
        _ => String::new(),
    };
    Some(format!("weights: {weights}{without_effect}"))
}

const fn counts(counts: causes::Counts) -> Counts {
    let causes::Counts { all, ready, terminating } = counts;
    Counts { all, ready, terminating }
}

/// Why no endpoint is usable on any node.
fn no_endpoints(port: &PortCause) -> String {
    let (pods, with_port) = (port.pods, port.endpoints);
    let name = match &*port.port {
        "" => format!("the unnamed {} port", port.protocol.api_name()),
        name => format!("a port named {name}/{}", port.protocol.api_name()),
    };
    match with_port.all {
        _ if pods.all == 0 => {
            format!("no EndpointSlice has an {} one (does the selector match?)", port.family)
        }
        0 if pods.ready == 0 => format!("{}, none is ready, none has {name} (targetPort)", pods_text(pods.all, "")),
        0 => format!("{}, none has {name} (targetPort)", pods_text(pods.ready, "ready ")),
        all if all == pods.all => format!("{}, none is ready", pods_text(all, "")),
        all => format!("{all} of {} have {name}, none of these is ready", pods_text(pods.all, "")),
    }
}

/// Why no ready endpoint on this node is used; `None` when one is.
fn no_local(port: &PortCause, taken: causes::Taken) -> Option<String> {
    let (all, here) = (port.endpoints, port.here);
    match taken.category {
        Category::Ready => None,
        Category::Terminating => {
            Some(format!("served by {}: none here is ready", pods_text(taken.count, "terminating ")))
        }
        Category::Nothing => {
            let usable = match all.ready {
                0 => pods_text(all.terminating, "terminating "),
                ready => pods_text(ready, "ready "),
            };
            let unready = if here.all == 0 { String::new() } else { format!(" ({} unready)", here.all) };
            Some(format!("{usable}, none on this node{unready}"))
        }
    }
}

/// Returns the sentence that says whether topology hints are used, or why they are not; `None` when there is nothing to say.
fn hints_text(causes: &Causes, port: &PortCause, taken: causes::Taken, topology: Topology) -> Option<String> {
    let place = |hint| match (hint, &causes.zone) {
        (Hint::Node, _) => "this node".to_owned(),
        (Hint::Zone, zone) => format!("zone {}", zone.as_deref().unwrap_or_default()),
    };
    let of_all = |count: usize| format!("{count} of {} ready endpoints", port.endpoints.ready);
    let (is, has) = (|count| if count == 1 { "is" } else { "are" }, |count| if count == 1 { "has" } else { "have" });
    let reason = match topology {
        Topology::Used(hint) => {
            return Some(format!("used: {} {} for {}", of_all(taken.count), is(taken.count), place(hint)));
        }
        Topology::Ignored(Ignored::NoneReady) => return None,
        Topology::Ignored(Ignored::NoHints) if !causes.asks_for_hints => return None,
        Topology::Ignored(Ignored::NoHints) => "the Service asks for them, but no endpoint has any".to_owned(),
        Topology::Ignored(Ignored::Missing { hint: Hint::Zone, without }) => {
            format!("{} {} none for a zone", of_all(without), has(without))
        }
        Topology::Ignored(Ignored::Missing { hint: Hint::Node, without }) => {
            format!("{} {} none for a node", of_all(without), has(without))
        }
        Topology::Ignored(Ignored::NoZone) => "the Node has no label topology.kubernetes.io/zone".to_owned(),
        Topology::Ignored(Ignored::NotHere(hint)) => format!("no ready endpoint is for {}", place(hint)),
    };
    Some(format!("not used: {reason}"))
}

const fn hints(topology: Topology) -> Hints {
    match topology {
        Topology::Used(Hint::Zone) => Hints::UsedForZone,
        Topology::Used(Hint::Node) => Hints::UsedForNode,
        Topology::Ignored(Ignored::NoneReady) => Hints::NoneReady,
        Topology::Ignored(Ignored::NoHints) => Hints::None,
        Topology::Ignored(Ignored::Missing { .. }) => Hints::Missing,
        Topology::Ignored(Ignored::NoZone) => Hints::NodeWithoutZone,
        Topology::Ignored(Ignored::NotHere(_)) => Hints::NotHere,
    }
}

fn pods_text(count: usize, adjective: &str) -> String {
    format!("{count} {adjective}{}", if count == 1 { "pod" } else { "pods" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::endpoints::Gathered;
    use rules::model::testing::{name, node, port, service as named, slice, slice_port, state};
    use rules::model::{Event, Service, ServicePort};

    const LOCAL: TrafficPolicy = TrafficPolicy::Local;

    fn web() -> Service {
        let port = ServicePort { node_port: Some(30080), ..port("http", 80) };
        Service { ports: vec![port], ..named("shop/web", &["10.96.0.1"]) }
    }

    /// The sentences about the cluster IP and about the node port, on a node in zone a.
    fn texts(service: Service, slice_port_name: &str, endpoints: &[&str]) -> [Vec<String>; 2] {
        texts_in(Some("a"), service, slice_port_name, endpoints)
    }

    fn texts_in(zone: Option<&str>, service: Service, slice_port_name: &str, endpoints: &[&str]) -> [Vec<String>; 2] {
        let addresses: Vec<String> = endpoints.iter().map(|text| format!("10.244.0.{text}")).collect();
        let endpoints: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let state = state([
            Event::NodeApplied(node(zone)),
            Event::ServiceApplied(service),
            Event::SliceApplied(slice("shop/web-1", "shop/web", &[slice_port(slice_port_name, 8080)], &endpoints)),
        ]);
        let page = page(&Gathered::of(&state, &name("shop/web")).causes().unwrap());
        let port = page.ports.into_iter().next().unwrap();
        [port.internal.texts, port.external.unwrap().texts]
    }

    // The weights that the annotation gives, and those of them that have no effect (E15).
    #[test]
    fn weights_are_told_and_what_of_them_has_no_effect() {
        let weighted = |local, zone| Service { weights: Weights { local, zone }, ..web() };
        let [internal, external] = texts(weighted(Some(4), Some(2)), "http", &["1", "2 @here"]);
        assert_eq!(
            (internal, external),
            (vec!["weights: local=4,zone=2".to_owned()], vec!["weights: local=4,zone=2".to_owned()])
        );
        let [internal, _] = texts_in(None, weighted(None, Some(2)), "http", &["1"]);
        let without = "weights: zone=2; zone has no effect: the Node has no label topology.kubernetes.io/zone";
        assert_eq!(internal, [without]);
        let local = Service { external_policy: LOCAL, ..weighted(Some(4), None) };
        let [internal, external] = texts(local, "http", &["1", "2 @here"]);
        let kept = "weights: local=4; no effect on connections that externalTrafficPolicy Local keeps on this node";
        assert_eq!((internal, external), (vec!["weights: local=4".to_owned()], vec![kept.to_owned()]));
        assert_eq!(texts(web(), "http", &["1"]), [vec![""; 0], vec![""; 0]]);
    }

    #[test]
    fn no_endpoints_has_its_cause() {
        let cases: [(&str, &[&str], &str); 7] = [
            ("http", &[], "no EndpointSlice has an IPv4 one (does the selector match?)"),
            ("http", &["1 unready"], "1 pod, none is ready"),
            ("http", &["1 unready", "2 dead", "3 serving"], "3 pods, none is ready"),
            ("web", &["1", "2", "3 unready"], "2 ready pods, none has a port named http/TCP (targetPort)"),
            ("http/udp", &["1"], "1 ready pod, none has a port named http/TCP (targetPort)"),
            ("web", &["1 unready"], "1 pod, none is ready, none has a port named http/TCP (targetPort)"),
            ("", &["1"], "1 ready pod, none has a port named http/TCP (targetPort)"),
        ];
        for (port, endpoints, cause) in cases {
            let expected = vec![format!("no endpoints: {cause}")];
            assert_eq!(texts(web(), port, endpoints), [expected.clone(), expected], "{port} {endpoints:?}");
        }
        let unnamed = Service { ports: vec![ServicePort { node_port: Some(30080), ..port("", 80) }], ..web() };
        let [internal, _] = texts(unnamed, "web", &["1"]);
        assert_eq!(internal, ["no endpoints: 1 ready pod, none has the unnamed TCP port (targetPort)"]);
    }

    #[test]
    fn a_policy_says_what_it_leaves_out() {
        let local = Service { internal_policy: LOCAL, external_policy: LOCAL, ..web() };
        let cases: [(&[&str], &str); 4] = [
            (&["1 @there", "2 @there"], "2 ready pods, none on this node"),
            (&["1 @there", "2 @here unready"], "1 ready pod, none on this node (1 unready)"),
            (&["1 @there", "2 @here terminating"], "served by 1 terminating pod: none here is ready"),
            (&["1 @here", "2"], ""),
        ];
        for (endpoints, cause) in cases {
            let expected = |field| match cause {
                "" => vec![],
                cause => vec![format!("{field} Local: {cause}")],
            };
            let expected = ["internalTrafficPolicy", "externalTrafficPolicy"].map(expected);
            assert_eq!(texts(local.clone(), "http", endpoints), expected, "{endpoints:?}");
        }
        // With external policy Local, clients in the cluster also reach the node port's endpoints on other nodes.
        let [internal, external] = texts(local.clone(), "http", &["1 @there terminating"]);
        assert_eq!(internal, ["internalTrafficPolicy Local: 1 terminating pod, none on this node"]);
        let served = "served by 1 terminating pod: none is ready".to_owned();
        assert_eq!(external, [served, internal[0].replace("internal", "external")]);
        let [internal, _] = texts(Service { asks_for_hints: true, ..local }, "http", &["1 @here zones=a"]);
        assert_eq!(internal, ["topology: hints not used: internalTrafficPolicy is Local"]);
    }

    #[test]
    fn hints_are_used_or_have_a_reason() {
        let cases: [(&[&str], &str); 9] = [
            (&["1 zones=a", "2 zones=a", "3 zones=b"], "used: 2 of 3 ready endpoints are for zone a"),
            (&["1 nodes=here", "2 nodes=there"], "used: 1 of 2 ready endpoints is for this node"),
            (&["1 zones=a", "2", "3"], "not used: 2 of 3 ready endpoints have none for a zone"),
            (&["1 nodes=here", "2"], "not used: 1 of 2 ready endpoints has none for a node"),
            (&["1 zones=b"], "not used: no ready endpoint is for zone a"),
            (&["1 nodes=there"], "not used: no ready endpoint is for this node"),
            (&["1", "2"], ""),
            (&["1 @here terminating", "2 terminating"], "none"),
            (&[], "none"),
        ];
        for (endpoints, text) in cases {
            let [internal, external] = texts(web(), "http", endpoints);
            let found: Vec<&String> = internal.iter().filter(|text| text.starts_with("topology")).collect();
            let expected = if text.contains("used") { vec![format!("topology: hints {text}")] } else { Vec::new() };
            assert_eq!(found, expected.iter().collect::<Vec<_>>(), "{endpoints:?}");
            assert_eq!(internal, external);
        }
        let [internal, _] = texts(Service { asks_for_hints: true, ..web() }, "http", &["1"]);
        assert_eq!(internal, ["topology: hints not used: the Service asks for them, but no endpoint has any"]);
        let terminating = texts(web(), "http", &["1 terminating", "2 terminating"]);
        assert_eq!(terminating[0], ["served by 2 terminating pods: none is ready"]);
    }

    // Each annotation is mentioned at the ports whose protocol it concerns (J3, J13).
    #[test]
    fn what_becomes_of_flows_is_said() {
        let said = |protocol, close_connections| {
            let port = ServicePort { protocol, ..web().ports.remove(0) };
            let web = Service { close_connections, keeps_unready_udp_flows: true, ports: vec![port], ..web() };
            let slice_port = if protocol == Protocol::Udp { "http/udp" } else { "http" };
            texts(web, slice_port, &["1"]).concat()
        };
        assert_eq!(said(Protocol::Tcp, None), [""; 0]);
        assert_eq!(said(Protocol::Udp, None), ["UDP flows: kept while their endpoint is not ready"; 2]);
        let (gone, both) = (CloseConnections::EndpointGone, CloseConnections::EndpointOrServiceGone);
        assert_eq!(said(Protocol::Tcp, Some(gone)), ["connections: closed when their endpoint is gone"; 2]);
        assert_eq!(
            said(Protocol::Tcp, Some(both)),
            ["connections: closed when their endpoint or the Service is gone"; 2]
        );
    }

    #[test]
    fn each_sentence_fits_80_columns_below_its_frontend() {
        let slices: [(&str, &[&str]); 7] = [
            ("http", &[]),
            ("web", &["1", "2"]),
            ("http", &["1 unready"]),
            ("http", &["1 zones=b"]),
            ("http", &["1"]),
            ("http", &["1 @here terminating", "2"]),
            ("http", &["1 @here unready", "2"]),
        ];
        for (port, endpoints) in slices {
            for policy in [TrafficPolicy::Cluster, LOCAL] {
                let web = Service { asks_for_hints: true, internal_policy: policy, external_policy: policy, ..web() };
                for text in texts(web, port, endpoints).concat() {
                    assert!(text.len() <= 78, "{text}");
                }
            }
        }
    }

    #[test]
    fn only_a_path_with_a_namespace_and_a_name_is_one_of_a_service() {
        let named = |path: &str| service(path).map(|service| service.to_string());
        assert_eq!(named("/debug/endpoints/shop/web"), Some("shop/web".to_owned()));
        for path in ["", "shop", "shop/", "/web", "shop/web/", "shop/web/x"] {
            assert_eq!(named(&format!("{PATH}{path}")), None, "{path}");
        }
        assert_eq!(named(&format!("{PATH}shop/{}", "w".repeat(600))), None);
    }
}
