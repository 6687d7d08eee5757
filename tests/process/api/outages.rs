//! The server goes away and comes back: the rules stay, and only what changed meanwhile changes.

use std::env;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{Cluster, base, sent, served};
use crate::support::apiserver::fault::{Command, Ending};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{ApiServer, Format, Scheme, test_in_each_format, wait_for};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe_served};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

/// A value that is set when it is dropped, also by a panic.
struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connects to the Service number 1 again and again until it is stopped. Gives how often; each has to succeed.
fn connect_until(stop: &AtomicBool, from: &Namespace) -> u32 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        for family in Family::ALL {
            let flow = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
            let outcome = probe_served(from, flow);
            assert!(matches!(outcome, Outcome::Reached(_)), "connection {count}: {outcome:?}");
            count += 1;
        }
    }
    count
}

/// The start of a Service's keys in nft's listings.
fn frontend(family: Family, n: u8) -> String {
    format!(" {} . tcp . 80", family.cluster_ip(n))
}

/// `nft monitor`: every change of the rules, as it happens.
struct Monitor(Child);

impl Monitor {
    fn start(node: &Namespace) -> Self {
        let mut child = node.command("nft").arg("monitor").stdout(Stdio::piped()).spawn().expect("nft can be run");
        // It is ready when it has reported a change.
        let mut first = String::new();
        let stdout = child.stdout.as_mut().expect("standard output was piped");
        thread::scope(|scope| {
            let reader = scope.spawn(|| BufReader::with_capacity(1, stdout).read_line(&mut first));
            while !reader.is_finished() {
                nft::load(node, "add table ip monitored; delete table ip monitored");
                thread::sleep(Duration::from_millis(20));
            }
        });
        assert!(first.contains("monitored"), "{first}");
        Self(child)
    }

    /// What it printed.
    fn stop(mut self) -> String {
        thread::sleep(Duration::from_millis(200));
        self.0.kill().expect("a child can be killed");
        let mut text = String::new();
        self.0.stdout.take().expect("standard output was piped").read_to_string(&mut text).expect("nft writes text");
        self.0.wait().expect("a child ends");
        text
    }
}

test_in_each_format!(traffic_does_not_notice_an_outage_and_the_rules_catch_up);
fn traffic_does_not_notice_an_outage_and_the_rules_catch_up(format: Format) {
    // The rules stay as they are while the API server is away (O10).
    let world = World::new();
    let server = world.node.enter(|| ApiServer::start_with(Scheme::Http, format));
    server.apply(&base());
    (1..=3).for_each(|n| server.apply(&served(["", "web", "old", "moved"][usize::from(n)], n)));
    let mut proxy = Proxy::with_api(&world.node, &config(), &server.kubeconfig(&json!({})));
    proxy.launch();
    proxy.wait_until_quiet();
    let stop = AtomicBool::new(false);
    let rules = || nft::list_ruleset(&world.node);
    let connections = thread::scope(|scope| {
        let traffic = scope.spawn(|| connect_until(&stop, &world.shell));
        let _stop = Flag(&stop);
        let (before, written) = (nft::normalised(&rules()), sent(&proxy));

        server.close();
        server.delete(Resource::Service, "shop", "old");
        server.delete(Resource::EndpointSlice, "shop", "old-v4");
        server.delete(Resource::EndpointSlice, "shop", "old-v6");
        server.apply(&served("moved", 4));
        server.apply(&served("new", 5));
        server.compact();
        thread::sleep(Duration::from_secs(3));
        assert_eq!(nft::normalised(&rules()), before, "the outage changed the rules");
        assert_eq!(sent(&proxy), written);

        let monitor = Monitor::start(&world.node);
        server.open();
        let is_there = |name: &str| rules().contains(&format!("\"shop/{name}:http\""));
        wait_for("the change of the Services", || (is_there("new") && !is_there("old")).then_some(()));
        proxy.wait_until_quiet();
        let changes = monitor.stop();
        for (n, changed) in [(1, false), (2, true), (3, true), (5, true)] {
            let of_service = |line: &&str| Family::ALL.iter().any(|family| line.contains(&frontend(*family, n)));
            let found: Vec<&str> = changes.lines().filter(of_service).collect();
            assert_eq!(!found.is_empty(), changed, "Service {n}: {found:?}");
        }
        stop.store(true, Ordering::Relaxed);
        traffic.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert!(connections > 20, "{connections}");
    let gone =
        server.requests_for(Resource::Service).iter().any(|request| request.query.get("sendInitialEvents") == "true");
    assert!(gone, "nothing was listed again");
    assert!(proxy.series("kubeproxy_nft_source_reconnects_total").iter().sum::<f64>() > 0.5);
}

test_in_each_format!(a_listing_of_what_is_known_sends_nothing);
fn a_listing_of_what_is_known_sends_nothing(format: Format) {
    // Listing the same objects again asks for no sync (O9).
    let cluster = Cluster::new(format);
    let mut proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    proxy.wait_until_quiet();
    let (before, rules) = (sent(&proxy), nft::list_ruleset(&cluster.node));
    let listings = |kind| {
        let asked = cluster.server.requests_for(kind);
        asked.iter().filter(|request| request.query.is_true("sendInitialEvents")).count()
    };
    cluster.server.order(None, Command::Expire);
    for kind in Resource::ALL {
        wait_for("another listing", || (listings(kind) == 2).then_some(()));
    }
    proxy.wait_until_quiet();
    assert_eq!(sent(&proxy), before);
    assert_eq!(nft::list_ruleset(&cluster.node), rules);
    // The new watches deliver changes.
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
}

/// The lines of the log about a kind that hold these words.
fn lines_about(log: &str, kind: &str, words: &str) -> Vec<String> {
    let kind = format!("type=\"{kind}\"");
    log.lines().filter(|line| line.contains(words) && line.contains(&kind)).map(str::to_owned).collect()
}

const KINDS: [&str; 4] = ["Node", "Service", "EndpointSlice", "ServiceCIDR"];
const CONNECTED: &str = "kubeproxy_nft_source_connected";
const RECEIVED: &str = "kubeproxy_nft_source_last_received_timestamp_seconds";

/// How long the API server is away: `KUBE_PROXY_OUTAGE_SECONDS`, or 6 s.
fn outage() -> Duration {
    let seconds = env::var("KUBE_PROXY_OUTAGE_SECONDS").map_or(6, |text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds)
}

test_in_each_format!(an_outage_is_in_the_log_and_in_the_metrics_and_so_is_its_end);
fn an_outage_is_in_the_log_and_in_the_metrics_and_so_is_its_end(format: Format) {
    let cluster = Cluster::new(format);
    let proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    let all_connected = |value: f64| (proxy.series(CONNECTED) == [value; 4]).then_some(());
    wait_for("four kinds connected", || all_connected(1.0));

    let received = proxy.series(RECEIVED);
    thread::sleep(Duration::from_millis(50));
    cluster.server.order(None, Command::Bookmark);
    let later = |now: &[f64]| now.len() == 4 && now.iter().zip(&received).all(|(now, before)| now > before);
    wait_for("bookmarks to count", || later(&proxy.series(RECEIVED)).then_some(()));

    // Fields of the health pages say how long ago the API server last sent anything (L11).
    let word = |path: &str| api_servers_word(&proxy, path);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(word(path)["connected"], true, "{path}");
        assert!(word(path)["ageSeconds"].as_u64().is_some_and(|age| age < 60), "{path}: {}", word(path));
    }
    cluster.server.close();
    wait_for("no kind connected", || all_connected(0.0));
    let (received, url) = (proxy.series(RECEIVED), cluster.server.url());
    let warnings = |kind| lines_about(&proxy.log(), kind, "Failed to watch");
    for kind in KINDS {
        wait_for("a warning", || (!warnings(kind).is_empty()).then_some(()));
    }
    // Two more tries of each kind, at least.
    let outage = outage();
    thread::sleep(outage);
    // The first warning comes at once, then one every five minutes.
    let expected = 1 + usize::try_from(outage.as_secs() / 300).expect("a small number");
    for kind in KINDS {
        let found = warnings(kind);
        assert_eq!(found.len(), expected, "{found:?}");
        assert!(found[1..].iter().all(|line| line.contains(" lasted=")), "{found:?}");
        assert!(found[0].contains(&url) && found[0].contains("refused"), "{found:?}");
    }
    assert_eq!((proxy.series(RECEIVED), proxy.series(CONNECTED)), (received, vec![0.0; 4]));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(word(path)["connected"], false, "{path}");
        assert!(word(path)["ageSeconds"].as_u64().is_some_and(|age| age >= outage.as_secs()), "{path}: {}", word(path));
    }

    let asked = cluster.server.requests().len();
    cluster.server.open();
    let first = wait_for("an answer", || cluster.server.requests().into_iter().skip(asked).find(|r| r.answered == 200));
    for kind in KINDS {
        let words = format!("url=\"{url}\" lasted=");
        wait_for("a line about the end", || (lines_about(&proxy.log(), kind, &words).len() == 1).then_some(()));
    }
    assert!(first.at.elapsed() < Duration::from_secs(1), "{:?} after the first answer", first.at.elapsed());
    wait_for("four kinds connected", || all_connected(1.0));
    assert!(!proxy.log().contains("kube_client"), "the library logs too: {}", proxy.log());
}

/// The field `apiServer` of a health page.
fn api_servers_word(proxy: &Proxy<'_>, path: &str) -> Value {
    let answer = proxy.get("127.0.0.1:10256", path);
    let (_, body) = answer.split_once("\r\n\r\n").expect("an answer has a head and a body");
    serde_json::from_str::<Value>(body).expect("a page of health is JSON")["apiServer"].clone()
}

test_in_each_format!(a_watch_that_breaks_and_goes_on_is_one_line_in_the_log);
fn a_watch_that_breaks_and_goes_on_is_one_line_in_the_log(format: Format) {
    let cluster = Cluster::new(format);
    let proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    cluster.server.order(Some(Resource::Service), Command::End(Ending::Reset));
    wait_for("its end", || (lines_about(&proxy.log(), "Service", "Watching again").len() == 1).then_some(()));
    let warnings = proxy.log().lines().filter(|line| line.starts_with('W')).count();
    assert_eq!(warnings, 0, "{}", proxy.log());
    assert_eq!(proxy.series(CONNECTED), [1.0; 4]);
}

test_in_each_format!(a_restart_without_a_server_keeps_the_rules_until_it_is_back);
fn a_restart_without_a_server_keeps_the_rules_until_it_is_back(format: Format) {
    // The rules outlive the process, and nothing is written before the server is back (G1, O7).
    let cluster = Cluster::new(format);
    let mut proxy = cluster.proxy();
    let rules = nft::list_ruleset(&cluster.node);
    proxy.stop();
    cluster.server.close();
    proxy.spawn();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(nft::list_ruleset(&cluster.node), rules);
    cluster.server.open();
    proxy.wait_until_synced();
    assert_eq!(nft::list_ruleset(&cluster.node), rules);
    assert!(sent(&proxy)[1..].iter().all(|elements| *elements < 0.5), "{:?}", sent(&proxy));
}
