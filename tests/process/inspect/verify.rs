//! `kube-proxy verify`: tables that another program changed, tables that change while it looks, and objects from an API server.

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{json as document, run};
use crate::support::apiserver::{ApiServer, Scheme};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::mixed;
use crate::support::netns::{self, Namespace};
use crate::support::nft::{list_ruleset, normalised, without_unused_chains};
use crate::support::objects::slices;
use crate::support::proxy::{Proxy, config, config_in};

/// A change of a table, the Service that has to be named for it, and a part of the sentence.
struct Tampering {
    change: String,
    service: Option<&'static str>,
    says: &'static str,
}

fn tampering(change: &str, service: Option<&'static str>, says: &'static str) -> Tampering {
    Tampering { change: change.to_owned(), service, says }
}

fn nft(node: &Namespace, commands: &str) {
    netns::run_with_input(
        node.command("nft").args(["-f", "-"]),
        &commands.replace("; add ", "\nadd ").replace("; delete ", "\ndelete "),
    );
}

/// A node with the rules of a proxy that has ended, and the arguments of `verify` for them.
struct Left<'a> {
    node: &'a Namespace,
    proxy: Proxy<'a>,
}

impl<'a> Left<'a> {
    fn new(node: &'a Namespace, layout: Layout) -> Self {
        let mut proxy = Proxy::start(node, &config_in(layout), &mixed::cluster());
        proxy.kill();
        Self { node, proxy }
    }

    fn arguments(&self) -> Vec<String> {
        let path = |path: &std::path::Path| path.to_str().expect("a temporary path is text").to_owned();
        let (config, manifests) = (self.proxy.config_path(), self.proxy.manifests().path());
        ["verify".to_owned(), "--config".to_owned(), path(&config), "--manifests".to_owned(), path(manifests)].to_vec()
    }

    fn verify(&self) -> (Option<i32>, Value) {
        let arguments = self.arguments();
        document(self.node, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Has the rules be as they were, by another run of the proxy.
    fn restore(&mut self) {
        self.proxy.launch();
        self.proxy.kill();
        assert_eq!(self.verify().0, Some(0));
    }

    /// Makes all these changes, and finds each of them.
    fn find_each(&self, all: &[Tampering]) -> Value {
        for tampering in all {
            nft(self.node, &tampering.change);
        }
        let (code, found) = self.verify();
        assert_eq!((code, &found["equal"]), (Some(1), &Value::Bool(false)), "{found:#}");
        let differences = found["differences"].as_array().expect("a list");
        for Tampering { change, service, says } in all {
            let is_it = |difference: &&Value| {
                difference["service"].as_str() == *service
                    && difference["text"].as_str().is_some_and(|text| text.contains(says))
            };
            assert!(differences.iter().any(|d| is_it(&d)), "{change}: {service:?} {says}: {found:#}");
        }
        found
    }

    /// Types the commands that were given, until nft lists what it listed before. nft writes some rules in another way than the proxy does, so
    /// such rules may still differ.
    fn put_right(&self, mut found: Value, before: &BTreeMap<String, Vec<String>>) {
        const ROUNDS: usize = 4;
        for _ in 0..ROUNDS {
            for difference in found["differences"].as_array().expect("a list") {
                let command = difference["command"].as_str().expect("a text");
                // One may need another one first; then it is given again.
                let _ = netns::try_run(self.node.command("nft").args(["-f", "-"]), command);
            }
            if rules(self.node) == *before {
                return;
            }
            found = self.verify().1;
        }
        panic!("the commands do not put it right: {found:#}");
    }
}

/// What nft lists, without what the order of changes decides.
fn rules(node: &Namespace) -> BTreeMap<String, Vec<String>> {
    without_unused_chains(normalised(&list_ruleset(node)))
}

/// The first object of a kind whose block has this comment, such as `chain KUBE-SVC-...`.
fn named(listing: &str, start: &str, comment: &str) -> String {
    let mut last = "";
    for line in listing.lines().map(str::trim) {
        if line.ends_with('{') && line.starts_with(start) {
            last = line;
        } else if line.starts_with("comment ") && line.contains(comment) && !last.is_empty() {
            return last.split(' ').nth(1).expect("a name").to_owned();
        } else if line == "}" {
            last = "";
        }
    }
    panic!("no {start} with the comment {comment}");
}

/// What a listed map holds at a key.
fn value_of<'a>(listing: &'a str, key: &str) -> &'a str {
    let start = format!("{key} : ");
    let rest = listing.split(&start).nth(1).unwrap_or_else(|| panic!("no {key} in {listing}"));
    rest.split([',', '}', '\n']).next().unwrap_or_default().trim()
}

/// Changes of what both layouts have.
fn in_both_layouts() -> Vec<Tampering> {
    let web = Some("shop/web");
    let empty = Some("shop/empty:http");
    let of_no_service = None;
    let rejected = "10.96.0.6 . tcp . 80";
    vec![
        tampering("delete element ip kube-proxy cluster-ips { 10.96.0.1 }", web, "lacks the cluster IP 10.96.0.1"),
        tampering(
            "add element ip kube-proxy cluster-ips { 192.0.2.1 }",
            of_no_service,
            "an element of no Service: the cluster IP 192.0.2.1",
        ),
        tampering(
            "add element ip kube-proxy service-cidrs { 198.18.0.0/24 }",
            of_no_service,
            "the range 198.18.0.0/24",
        ),
        tampering(
            "insert rule ip kube-proxy KUBE-SERVICES drop",
            of_no_service,
            "the chain KUBE-SERVICES should not have the rule",
        ),
        tampering("flush chain ip6 kube-proxy KUBE-POSTROUTING", of_no_service, "the chain KUBE-POSTROUTING is empty"),
        tampering(
            "add set ip kube-proxy foreign { type ipv4_addr; }",
            of_no_service,
            "the set foreign in the table ip kube-proxy is not",
        ),
        tampering(
            "add chain ip kube-proxy foreign { type filter hook input priority 5; }",
            of_no_service,
            "the chain foreign with the hook input (filter, priority 5)",
        ),
        tampering(
            "add chain ip kube-proxy stray; add rule ip kube-proxy stray drop",
            of_no_service,
            "should have no rule, and has 1 rule",
        ),
        tampering("add counter ip6 kube-proxy foreign", of_no_service, "holds the counter foreign"),
        tampering(
            "delete element ip6 kube-proxy no-endpoints { fd00:10:96::6 . tcp . 80 }",
            empty,
            "lacks the refusal of [fd00:10:96::6]:80/tcp",
        ),
        tampering(
            &format!(
                "delete element ip kube-proxy no-endpoints {{ {rejected} }}; \
                 add element ip kube-proxy no-endpoints {{ {rejected} comment \"x\" : goto KUBE-REJECT }}"
            ),
            empty,
            "has another comment at the refusal of 10.96.0.6:80/tcp",
        ),
        tampering(
            "flush map ip kube-proxy health-check-nodeports",
            Some("shop/local:http"),
            "lacks the health-check node port 32083",
        ),
    ]
}

/// Changes of what only this layout has.
fn in_layout(layout: Layout, listing: &str) -> Vec<Tampering> {
    let (http, dns, sticky) = (Some("shop/web:http"), Some("shop/web:dns"), Some("shop/sticky:http"));
    if layout == Layout::Maps {
        let (slot, commented) = ("10.96.0.1 . udp . 53 . 0", "10.96.0.1 . tcp . 80 . 0");
        return vec![
            tampering(
                "delete element ip kube-proxy services { 10.96.0.1 . tcp . 80 }",
                http,
                "lacks the frontend 10.96.0.1:80/tcp in services",
            ),
            tampering(
                "delete element ip kube-proxy services { 10.96.0.2 . tcp . 80 }; \
                 add element ip kube-proxy services { 10.96.0.2 . tcp . 80 comment \"shop/sticky:http\" : drop }",
                sticky,
                "has `drop` in place of `goto affinity-shop/sticky/http/tcp`",
            ),
            tampering(
                "delete element ip kube-proxy endpoints { 10.96.0.5 . sctp . 3868 . 0 }",
                Some("shop/sctp:signalling"),
                "lacks the endpoint 10.244.1.10:9090 of 10.96.0.5:3868/sctp in endpoints",
            ),
            tampering(
                &format!(
                    "delete element ip kube-proxy endpoints {{ {slot} }}; \
                     add element ip kube-proxy endpoints {{ {slot} : 10.244.9.9 . 9090 }}"
                ),
                dns,
                "has the endpoint 10.244.9.9:9090 in place of the endpoint 10.244.",
            ),
            tampering(
                &format!(
                    "delete element ip kube-proxy endpoints {{ {commented} }}; \
                     add element ip kube-proxy endpoints {{ {commented} comment \"x\" : {} }}",
                    value_of(listing, commented)
                ),
                http,
                "has another comment at",
            ),
            tampering("flush map ip6 kube-proxy endpoints", http, "of [fd00:10:96::1]:80/tcp in endpoints"),
            tampering(
                "delete element ip kube-proxy nodeports { tcp . 30080 }",
                http,
                "lacks the frontend node port 30080/tcp",
            ),
            tampering(
                "flush set ip kube-proxy lb-sources",
                Some("shop/local:http"),
                "lacks the source range 203.0.113.0/24 of 192.0.2.131:80/tcp",
            ),
            tampering("flush set ip6 kube-proxy hairpin", Some("shop/local:http"), "on this node in hairpin"),
            tampering(
                "flush chain ip kube-proxy learn-affinity-shop/sticky/http/tcp",
                sticky,
                "the chain learn-affinity-shop/sticky/http/tcp is empty",
            ),
            tampering(
                "delete element ip kube-proxy affinity-services-tcp { 10.96.0.2 . 80 }",
                sticky,
                "lacks the session affinity of 10.96.0.2:80/tcp",
            ),
        ];
    }
    let (of_dns, of_sticky) =
        (named(listing, "chain KUBE-EXT-", "shop/web:dns"), named(listing, "chain KUBE-EXT-", "shop/sticky:http"));
    let firewall = named(listing, "chain KUBE-FW-", "shop/local:http");
    let of_endpoint = match layout {
        Layout::Chains => format!("{} {{ 0 }}", named(listing, "map KUBE-SVC-", "shop/web:http")),
        Layout::Maps | Layout::ServiceChains => format!("{} {{ 10.96.0.1 . tcp . 80 . 0 }}", layout.endpoints()),
    };
    vec![
        tampering(
            "delete element ip kube-proxy KUBE-SERVICES { 10.96.0.1 . tcp . 80 }",
            http,
            "lacks the frontend 10.96.0.1:80/tcp in KUBE-SERVICES",
        ),
        tampering(
            "delete element ip kube-proxy KUBE-SERVICES { 10.96.0.2 . tcp . 80 }; \
             add element ip kube-proxy KUBE-SERVICES { 10.96.0.2 . tcp . 80 comment \"shop/sticky:http\" : drop }",
            sticky,
            "has `drop` in place of `goto KUBE-SVC-",
        ),
        tampering(&format!("delete element ip kube-proxy {of_endpoint}"), http, "lacks the endpoint 10.244."),
        tampering(&format!("flush chain ip kube-proxy {of_dns}"), dns, "is empty"),
        tampering(&format!("insert rule ip kube-proxy {of_sticky} drop"), sticky, "should not have the rule"),
        tampering(&format!("flush chain ip kube-proxy {firewall}"), Some("shop/local:http"), "is empty"),
        tampering("flush map ip6 kube-proxy KUBE-SERVICES", http, "lacks the frontend [fd00:10:96::1]:80/tcp"),
        tampering(
            "delete element ip kube-proxy KUBE-NODEPORTS { tcp . 30080 }",
            http,
            "lacks the frontend node port 30080/tcp",
        ),
    ]
}

/// A rule of a chain that nft 1.0.6 writes as the proxy does, in nft's words, and its handle.
fn a_rule(node: &Namespace, chain: &str) -> (String, String) {
    let listing = netns::run(node.command("nft").args(["-a", "list", "chain", "ip", "kube-proxy", chain]));
    let mut rules = listing.lines().filter_map(|line| line.trim().split_once(" # handle "));
    let (rule, handle) = rules.rfind(|(rule, _)| rule.contains("jump ") || rule.contains("goto lb-")).expect("a rule");
    (rule.to_owned(), handle.to_owned())
}

/// The changes that need more than one command: a rule in another place, a set with another time-out, a set that is gone. Each is made by
/// itself, since the second and the third are about the same set.
fn of_affinity(node: &Namespace, layout: Layout, listing: &str) -> [Tampering; 3] {
    let sticky = Some("shop/sticky:http");
    let (kind, map, elements) = match layout {
        Layout::Chains => ("set", named(listing, "set KUBE-SEP-", "shop/sticky:http"), "type ipv4_addr"),
        Layout::Maps | Layout::ServiceChains => {
            ("map", named(listing, "map affinity-shop/", "shop/sticky:http"), "typeof ip saddr : ip daddr")
        }
    };
    // The chains whose rules look at the map or set.
    let chains = match layout {
        Layout::Chains => vec![named(listing, "chain KUBE-SVC-", "shop/sticky:http"), map.clone()],
        Layout::Maps => {
            ["", "nodeport-", "learn-"].map(|start| format!("{start}affinity-shop/sticky/http/tcp")).to_vec()
        }
        Layout::ServiceChains => {
            let choice = named(listing, "chain KUBE-SVC-", "shop/sticky:http");
            vec![choice, "learn-affinity-shop/sticky/http/tcp".to_owned()]
        }
    };
    // To the other end of the chain.
    let (moved, end) = match layout {
        Layout::Maps => (chains[0].clone(), "insert"),
        Layout::Chains | Layout::ServiceChains => (named(listing, "chain KUBE-EXT-", "shop/sticky:http"), "add"),
    };
    let (rule, handle) = a_rule(node, &moved);
    let emptied: String = chains.iter().map(|chain| format!("flush chain ip kube-proxy {chain}\n")).collect();
    let gone = format!("{emptied}delete {kind} ip kube-proxy {map}");
    let anew = format!(
        "add {kind} ip kube-proxy {map} {{ {elements}; size 65536; flags dynamic,timeout; timeout 1h; comment \"shop/sticky:http\"; }}"
    );
    let moved = format!("delete rule ip kube-proxy {moved} handle {handle}\n{end} rule ip kube-proxy {moved} {rule}");
    [
        Tampering { change: moved, service: sticky, says: "are in another order" },
        Tampering { change: format!("{gone}\n{anew}"), service: sticky, says: "has another time-out" },
        Tampering { change: gone, service: sticky, says: "shop/sticky:http lacks the " },
    ]
}

/// Changes after which the proxy makes a table anew.
fn of_the_structure() -> Vec<Tampering> {
    vec![
        tampering("add table ip kube-proxy { flags dormant; }", None, "the table ip kube-proxy is dormant"),
        tampering(
            "flush chain ip6 kube-proxy filter-output\ndelete chain ip6 kube-proxy filter-output\n\
             add chain ip6 kube-proxy filter-output { type filter hook output priority 7; }",
            None,
            "the hook output (filter, priority 7) in place of the hook output (filter, priority 0)",
        ),
        tampering("add chain ip6 kube-proxy filter-input { policy drop; }", None, "chain filter-input: policy"),
        tampering(
            "delete map ip6 kube-proxy health-check-nodeports\nadd map ip6 kube-proxy health-check-nodeports { type ipv6_addr : mark; }",
            None,
            "the map health-check-nodeports has another type of key",
        ),
        tampering(
            "delete map ip kube-proxy health-check-nodeports",
            None,
            "the map health-check-nodeports with 1 element is missing in the table ip kube-proxy",
        ),
    ]
}

// Each difference is found, with its Service and its remedy (Q5).
test_in_each_layout!(each_kind_of_tampering_is_found_with_its_service_and_the_commands_put_it_right);

fn each_kind_of_tampering_is_found_with_its_service_and_the_commands_put_it_right(layout: Layout) {
    let node = Namespace::new("verify");
    let mut left = Left::new(&node, layout);
    let listing = list_ruleset(&node);
    let before = rules(&node);
    let (code, found) = left.verify();
    assert_eq!((code, &found["equal"], &found["differences"]), (Some(0), &json!(true), &json!([])));
    assert_eq!(list_ruleset(&node), listing, "it changes nothing");
    left.put_right(left.find_each(&in_both_layouts()), &before);
    left.restore();
    left.put_right(left.find_each(&in_layout(layout, &list_ruleset(&node))), &before);
    left.restore();
    for tampering in of_affinity(&node, layout, &list_ruleset(&node)) {
        left.find_each(&[tampering]);
        left.restore();
    }
    let of_the_structure = of_the_structure();
    left.find_each(&of_the_structure);
    left.restore();
    // The commands make a chain with another hook anew, with its rules.
    left.put_right(left.find_each(&of_the_structure[1..2]), &before);
    left.restore();
    // nft 1.0.6 does not take the rules of the first chain one by one, and writes one of the second in other instructions.
    let emptied = match layout {
        Layout::Maps => tampering("flush chain ip kube-proxy lb-4", None, "the chain lb-4 is empty"),
        Layout::Chains | Layout::ServiceChains => {
            let chain = named(&list_ruleset(&node), "chain KUBE-SVC-", "shop/web:dns");
            tampering(&format!("flush chain ip kube-proxy {chain}"), Some("shop/web:dns"), "is empty")
        }
    };
    left.find_each(&[emptied]);
    left.restore();
    left.find_each(&[tampering("delete table ip6 kube-proxy", None, "there is no table ip6 kube-proxy")]);
    left.restore();
}

// A proxy that runs but does not come to repair, as one that hangs, changes nothing of what is found, and repairs it when it goes on (Q5).
test_in_each_layout!(tampering_beside_a_proxy_that_hangs_is_found_until_it_repairs);

fn tampering_beside_a_proxy_that_hangs_is_found_until_it_repairs(layout: Layout) {
    let node = Namespace::new("verify");
    let mut left = Left { node: &node, proxy: Proxy::start(&node, &config_in(layout), &mixed::cluster()) };
    let listing = list_ruleset(&node);
    for tampering in of_affinity(&node, layout, &listing).into_iter().chain(in_both_layouts().into_iter().take(2)) {
        left.proxy.signal(Signal::STOP);
        left.find_each(&[tampering]);
        left.proxy.signal(Signal::CONT);
        let end = Instant::now() + Duration::from_secs(20);
        while left.verify().0 != Some(0) {
            assert!(Instant::now() < end, "{}", left.proxy.log());
        }
    }
    assert!(left.proxy.is_running() && left.proxy.series("kubeproxy_nft_repairs_total")[0] > 0.0);
}

#[test]
fn people_read_a_sentence_and_the_commands_below_it() {
    let node = Namespace::new("verify");
    let left = Left::new(&node, Layout::Maps);
    let arguments = left.arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (code, text, stderr) = run(&node, &arguments);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert_eq!(text, "ip kube-proxy and ip6 kube-proxy hold what they should: 6 Services\n");
    nft(&node, "delete element ip kube-proxy services { 10.96.0.5 . sctp . 3868 }");
    nft(&node, "flush chain ip kube-proxy KUBE-REJECT");
    let (code, text, _) = run(&node, &arguments);
    assert_eq!((code, text.as_str()), (Some(1), include_str!("../../data/inspect/verify.txt")), "{text}");
}

// What the second look does not find any more is no difference (Q5).
test_in_each_layout!(a_proxy_at_work_is_no_difference);

fn a_proxy_at_work_is_no_difference(layout: Layout) {
    let node = Namespace::new("verify");
    let proxy = Proxy::start(&node, &config_in(layout), &mixed::cluster());
    let path = |path: &std::path::Path| path.to_str().expect("a temporary path is text").to_owned();
    let (config, manifests) = (path(&proxy.config_path()), path(proxy.manifests().path()));
    for round in 0..4_u8 {
        for object in slices("shop", "web", &[round % 4, (round + 1) % 4], &mixed::WEB_PORTS) {
            proxy.manifests().apply(&object);
        }
        let (code, found) = document(&node, &["verify", "--config", &config, "--manifests", &manifests]);
        assert_eq!(code, Some(0), "{found:#}");
    }
}

#[test]
fn the_running_proxy_exports_when_it_last_compared_its_tables() {
    let node = Namespace::new("verify");
    let proxy = Proxy::start(&node, &config(), &mixed::cluster());
    let verified = || proxy.series("kubeproxy_nft_tables_verified_timestamp_seconds")[0];
    let first = verified();
    assert!(first > 0.0, "the first sync read everything back");
    // A write without an effect has the proxy compare everything.
    nft(
        &node,
        "add element ip kube-proxy cluster-ips { 192.0.2.1 }\ndelete element ip kube-proxy cluster-ips { 192.0.2.1 }",
    );
    let end = Instant::now() + Duration::from_secs(20);
    while verified() == first {
        assert!(Instant::now() < end, "{:?}", proxy.log());
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(proxy.series("kubeproxy_nft_repairs_total"), [0.0]);
}

#[test]
fn objects_may_come_from_an_api_server_and_without_one_it_could_not_look() {
    let node = Namespace::new("verify");
    let server = node.enter(|| ApiServer::start(Scheme::Https));
    server.apply(&mixed::cluster());
    let kubeconfig = server.kubeconfig(&server.certified_user("system:kube-proxy"));
    let mut proxy = Proxy::with_api(&node, &config(), &kubeconfig);
    proxy.launch();
    let path = proxy.config_path();
    let path = path.to_str().expect("a temporary path is text");
    let within = |seconds| ["verify", "--timeout", seconds, "--config", path];
    let (code, found) = document(&node, &within("60"));
    assert_eq!(code, Some(0), "{found:#}");
    proxy.kill();
    nft(&node, "delete element ip kube-proxy services { 10.96.0.5 . sctp . 3868 }");
    let (code, found) = document(&node, &within("60"));
    assert_eq!(code, Some(1), "{found:#}");
    assert_eq!(found["differences"][0]["service"], "shop/sctp:signalling", "{found:#}");
    server.close();
    let (code, stdout, stderr) = run(&node, &within("3"));
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("the API server") && stderr.contains("kube-proxy check"), "{stderr}");
}

#[test]
fn without_the_right_to_read_nf_tables_it_could_not_look() {
    let node = Namespace::new("verify");
    let left = Left::new(&node, Layout::Maps);
    let mut command: Command = node.command("setpriv");
    command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"]).arg(crate::support::proxy::binary());
    let output = command.args(left.arguments()).output().expect("setpriv is installed");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("CAP_NET_ADMIN"), "{output:?}");
}
