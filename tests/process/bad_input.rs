//! Input that is wrong in a part: that part is lost, one line of the log says which, and everything else goes on.
//!
//! Runs the binary in a node's namespace (root) and probes a good Service all the while.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects::{ServiceBuilder, node, service, service_cidr, slice, slices};
use crate::support::plan::Family::V4;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;
use serde_json::{Value, json};

const HTTP: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
/// Cluster IP of the Service that must answer all the time.
const GOOD: u8 = 1;
const PATIENCE: Duration = Duration::from_secs(5);

/// A Service with a cluster IP and port 80.
fn plain(name: &str, n: u8) -> ServiceBuilder {
    service("shop", name).cluster_ip(V4.cluster_ip(n)).port("http", Proto::Tcp, 80)
}

fn start(world: &World) -> Proxy<'_> {
    let mut objects = vec![node(), service_cidr(), plain("good", GOOD).json()];
    objects.extend(slices("shop", "good", &[0], &HTTP));
    Proxy::start(&world.node, &config(), &objects)
}

/// What becomes of a connection from a pod to port 80 of a cluster IP: the number of the endpoint reached, or another outcome.
fn connect(world: &World, n: u8) -> Result<u8, Outcome> {
    match probe(&world.shell, Flow::new(Proto::Tcp, V4.shell(), V4.cluster_ip(n), 80)) {
        Outcome::Reached(answer) => Ok((0..4).find(|n| V4.endpoint(*n) == answer.endpoint).expect("in the plan")),
        other => Err(other),
    }
}

/// Runs `work` while the good Service is probed without a pause; each probe must be answered.
fn while_good_answers(world: &World, work: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let prober = scope.spawn(|| {
            let mut probes = 0_u32;
            while !ended.load(Ordering::Relaxed) {
                assert_eq!(connect(world, GOOD), Ok(0), "the good Service after {probes} probes");
                probes += 1;
            }
            probes
        });
        {
            let _stop_also_after_a_panic = Stop(&ended);
            work();
        }
        assert!(prober.join().expect("the good Service answers") > 0);
    });
}

/// The warnings and errors in which all of `words` stand, without the backslashes before quotation marks.
fn complaints(proxy: &Proxy<'_>, words: &[&str]) -> Vec<String> {
    let log = fs::read_to_string(proxy.directory().join("proxy.log")).expect("the log can be read");
    // The lines of a value stand behind tabs.
    let log = log.replace("\n\t", " ").replace("\n >", "").replace("\\\"", "\"");
    let is_complaint = |line: &&str| line.starts_with(['W', 'E']);
    let names_all = |line: &&str| words.iter().all(|word| line.contains(word));
    log.lines().filter(is_complaint).filter(names_all).map(str::to_owned).collect()
}

/// Writes a file of the manifest directory, whole at once, and waits for its first complaint.
fn write_bad_file(proxy: &mut Proxy<'_>, name: &str, documents: &[String]) {
    let path = proxy.manifests().path().join(name);
    let unfinished = path.with_extension("tmp");
    fs::write(&unfinished, documents.join("\n---\n")).expect("a manifest can be written");
    fs::rename(&unfinished, &path).expect("a manifest can be put in place");
    let end = Instant::now() + PATIENCE;
    while complaints(proxy, &[name]).is_empty() {
        assert!(Instant::now() < end, "no complaint about {name}");
        thread::sleep(Duration::from_millis(10));
    }
    proxy.wait_until_quiet();
}

/// A file with one flaw.
struct Case {
    file: &'static str,
    documents: Vec<String>,
    /// The number of the flawed document, from 1.
    document: usize,
    /// A text in the one log line about the flaw.
    says: &'static str,
}

fn case<const N: usize>(file: &'static str, objects: [Value; N], document: usize, says: &'static str) -> Case {
    Case { file, documents: objects.map(|object| object.to_string()).to_vec(), document, says }
}

/// Service number `n` called `name` with a second port.
fn second_port(name: &str, n: u8, port: Value) -> Value {
    let mut object = plain(name, n).port("second", Proto::Tcp, 81).json();
    object["spec"]["ports"][1]["port"] = port;
    object
}

/// Each case has a Service of its own, number 10 and up in this order, whose port 80 is in order.
fn cases() -> Vec<Case> {
    let mut bad_slice = slice("shop", "endpoint", "endpoint-1", &[V4.endpoint(2), V4.endpoint(3)], &HTTP);
    bad_slice["endpoints"][1]["addresses"][0] = json!("10.244.2");
    let beside = |n: u8, bad: Value| [plain(&format!("beside-{n}"), n).json(), bad];
    let [ten, sixteen] = [10, 16].map(|n| plain(&format!("web-{n}"), n).json().to_string());
    vec![
        Case {
            file: "broken.yaml",
            documents: vec![ten, "kind: Service\nspec: [".to_owned(), sixteen],
            document: 2,
            says: "unclosed bracket '[' at line 4",
        },
        case(
            "field.yaml",
            [plain("field", 11).spec("externalIPz", json!([])).json()],
            1,
            "spec.externalIPz: unknown field; ignored",
        ),
        case(
            "external.yaml",
            [plain("external", 12).spec("externalIPs", json!(["300.1.1.1"])).json()],
            1,
            "Service shop/external: spec.externalIPs[0]: \"300.1.1.1\" is not an IP address; ignored",
        ),
        case(
            "zero.yaml",
            [second_port("zero", 13, json!(0))],
            1,
            "Service shop/zero: spec.ports[1].port: 0 is not a port",
        ),
        case(
            "large.yaml",
            [second_port("large", 14, json!(70_000))],
            1,
            "Service shop/large: spec.ports[1].port: 70000 is not a port",
        ),
        case(
            "endpoint.yaml",
            [plain("endpoint", 15).json(), bad_slice],
            2,
            "EndpointSlice shop/endpoint-1: endpoints[1].addresses[0]: \"10.244.2\" is not an IP address; ignored",
        ),
        case("name.yaml", beside(17, plain(&"n".repeat(254), 30).json()), 2, "metadata.name: "),
        case(
            "namespace.yaml",
            beside(
                18,
                service(&"n".repeat(64), "web").cluster_ip(V4.cluster_ip(30)).port("http", Proto::Tcp, 80).json(),
            ),
            2,
            "metadata.namespace: ",
        ),
        case(
            "number.yaml",
            beside(19, second_port("number", 30, json!("eighty"))),
            2,
            "spec.ports[1].port: invalid type",
        ),
    ]
}

#[test]
fn a_flaw_costs_itself_and_one_line_that_names_it() {
    // External IPs, address types and addresses that are wrong are left out and logged (A7, B3, B6).
    let world = World::new();
    let mut proxy = start(&world);
    while_good_answers(&world, || {
        for Case { file, documents, document, says } in cases() {
            write_bad_file(&mut proxy, file, &documents);
            let all = complaints(&proxy, &[file]);
            let fitting = complaints(&proxy, &[file, &format!("document={document}"), says]);
            assert_eq!((all.len(), fitting.len()), (1, 1), "{file}: {all:#?}");
        }
        // The good parts of the flawed objects are used: a Service without endpoints is refused, unlike a free address.
        for n in [10, 11, 12, 13, 14, 16, 17, 18, 19] {
            assert_eq!(connect(&world, n), Err(Outcome::Refused), "Service {n}");
        }
        assert_eq!(connect(&world, 15), Ok(2), "the good endpoint beside the bad one");
        assert_eq!(connect(&world, 30), Err(Outcome::Dropped), "what was flawed as a whole");
        assert_eq!(complaints(&proxy, &[]).len(), cases().len(), "nothing is logged twice, or about anything else");
    });
    let rejected = |kind: &str| proxy.series(&format!("kubeproxy_nft_rejected_objects_total{{kind=\"{kind}\"}}"));
    for (kind, count) in
        [("Service", 7.0), ("EndpointSlice", 1.0), ("Node", 0.0), ("ServiceCIDR", 0.0), ("unknown", 1.0)]
    {
        assert_eq!(rejected(kind), [count], "{kind}");
    }
}

#[test]
fn a_document_that_breaks_later_leaves_what_it_held_before() {
    let world = World::new();
    let mut proxy = start(&world);
    let web = plain("web", 10).json();
    let web_slice = slice("shop", "web", "web-1", &[V4.endpoint(3)], &HTTP);
    proxy.apply(&[web.clone(), web_slice]);
    while_good_answers(&world, || {
        assert_eq!(connect(&world, 10), Ok(3));
        write_bad_file(&mut proxy, "service-shop-web.json", &["{ \"apiVersion\": ".to_owned()]);
        assert_eq!(connect(&world, 10), Ok(3));
        assert_eq!(complaints(&proxy, &["service-shop-web.json", "document=1"]).len(), 1);
        proxy.delete(&[web]);
        assert_eq!(connect(&world, 10), Err(Outcome::Dropped), "a file that is gone takes its objects along");
    });
}

fn born(mut service: Value, time: &str) -> Value {
    service["metadata"]["creationTimestamp"] = json!(time);
    service
}

#[test]
fn of_two_services_with_one_frontend_the_older_gets_it_and_the_other_once_it_is_deleted() {
    let world = World::new();
    let mut proxy = start(&world);
    let younger = born(plain("a-younger", 20).json(), "2026-02-01T00:00:00Z");
    let older = born(plain("b-older", 20).json(), "2026-01-01T00:00:00Z");
    let of_one = |name: &str, n| slice("shop", name, &format!("{name}-1"), &[V4.endpoint(n)], &HTTP);
    while_good_answers(&world, || {
        proxy.apply(&[younger, of_one("a-younger", 2), of_one("b-older", 3)]);
        assert_eq!(connect(&world, 20), Ok(2));
        assert_eq!(complaints(&proxy, &[]), Vec::<String>::new());
        proxy.apply(std::slice::from_ref(&older));
        assert_eq!(connect(&world, 20), Ok(3));
        // A change of another object does not log it again.
        proxy.apply(&[of_one("a-younger", 0), plain("another", 21).json()]);
        assert_eq!(connect(&world, 20), Ok(3));
        let logged = complaints(&proxy, &["shop/a-younger", "shop/b-older", "10.96.0.20 port 80/tcp"]);
        assert_eq!((logged.len(), complaints(&proxy, &[]).len()), (1, 1), "{logged:?}");
        assert!(logged[0].contains("shop/b-older gets it"), "{logged:?}");
        proxy.delete(&[older]);
        assert_eq!(connect(&world, 20), Ok(0));
        assert_eq!(complaints(&proxy, &[]).len(), 1);
    });
}

#[test]
fn names_of_full_length_work_and_their_comments_are_cut() {
    // Tables with the longest names can be listed (F1).
    let world = World::new();
    let mut proxy = start(&world);
    let (namespace, name, port) = ("n".repeat(63), "s".repeat(253), "p".repeat(15));
    let long = service(&namespace, &name).cluster_ip(V4.cluster_ip(10)).port(&port, Proto::Tcp, 80).node_port(30_010);
    let endpoints = slice(&namespace, &name, &"e".repeat(253), &[V4.endpoint(1)], &[(&port, Proto::Tcp, 8080)]);
    while_good_answers(&world, || {
        // One file for both: such names are too long for a file's.
        let path = proxy.manifests().path().join("long.yaml");
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [long.json(), endpoints] });
        fs::write(path, list.to_string()).expect("a manifest can be written");
        let end = Instant::now() + PATIENCE;
        while connect(&world, 10) != Ok(1) {
            assert!(Instant::now() < end, "the long-named Service never answers");
        }
        proxy.wait_until_quiet();
        assert_eq!(complaints(&proxy, &[]), Vec::<String>::new());
    });
    let listing = nft::list_ruleset(&world.node);
    let comments = listing.split("comment \"").skip(1).filter_map(|rest| rest.split('"').next());
    let long: Vec<&str> = comments.filter(|comment| comment.starts_with(&namespace)).collect();
    assert!(!long.is_empty(), "{listing}");
    for comment in long {
        assert_eq!((comment.len(), comment.ends_with("sss...")), (127, true), "{comment}");
    }
    let fresh = Namespace::new("fresh");
    nft::load(&fresh, &nft::without_owner(&listing));
    assert_eq!(nft::normalised(&nft::list_ruleset(&fresh)), nft::normalised(&listing));
}
