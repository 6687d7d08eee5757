//! A proxy on the way to the API server, as HTTPS_PROXY and its relatives or the kubeconfig ask for one.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{base, served};
use super::tunnel::{Credentials, Speaks, Tunnel};
use crate::support::apiserver::{ApiServer, Format, Scheme, wait_for};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::proxy::{Proxy, config};

/// Where the API server is; an address of loopback would need no proxy.
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// Where the proxy is.
const BETWEEN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 20);
const USER: Credentials = Some(("me", "p@ss:w%rd"));
/// User and password as in a URL.
const USER_IN_URL: &str = "me:p%40ss%3Aw%25rd@";

/// A node, and an API server that is not on loopback.
struct World {
    server: ApiServer,
    node: Namespace,
}

impl World {
    fn new(scheme: Scheme) -> Self {
        let node = Namespace::new("node");
        node.ip(&[format!("addr add {SERVER}/32 dev lo"), format!("addr add {BETWEEN}/32 dev lo")]);
        let server = node.enter(|| ApiServer::start_at(SERVER, scheme, Format::Protobuf));
        server.apply(&base());
        server.apply(&served("web", 1));
        Self { server, node }
    }

    fn between(&self, port: u16, speaks: Speaks, credentials: Credentials) -> Tunnel {
        self.node.enter(|| Tunnel::start(SocketAddr::from((BETWEEN, port)), speaks, credentials))
    }

    /// A proxy with these variables, not started yet.
    fn prepared(&self, kubeconfig: &Path, variables: &[String]) -> Proxy<'_> {
        let mut config = config();
        config["logging"] = json!({ "verbosity": 10 });
        let mut proxy = Proxy::with_api(&self.node, &config, kubeconfig);
        let wrapper: Vec<&str> = ["env"].into_iter().chain(variables.iter().map(String::as_str)).collect();
        proxy.set_wrapper(&wrapper);
        proxy
    }

    fn serves(&self, name: &str) -> bool {
        nft::list_ruleset(&self.node).contains(&format!("\"shop/{name}:http\""))
    }

    fn kubeconfig(&self) -> PathBuf {
        self.server.kubeconfig(&json!({}))
    }

    /// A change reaches the rules.
    fn follows(&self, name: &str, n: u8) {
        self.server.apply(&served(name, n));
        wait_for("the rules of a change", || self.serves(name).then_some(()));
    }
}

/// No user and no password is in the log.
fn keeps_secrets(proxy: &Proxy<'_>) {
    for secret in ["p@ss", "p%40ss", "w%rd", "w%25rd", "bWU6"] {
        assert!(!proxy.log().contains(secret), "{}", proxy.log());
    }
}

#[test]
fn requests_go_through_a_proxy_of_each_kind() {
    for (variable, scheme, kind, user) in [
        ("HTTPS_PROXY", Scheme::Https, "http", None),
        ("https_proxy", Scheme::Https, "http", USER),
        ("HTTPS_PROXY", Scheme::Https, "https", USER),
        ("HTTPS_PROXY", Scheme::Https, "socks5", None),
        ("HTTPS_PROXY", Scheme::Https, "socks5", USER),
        ("HTTP_PROXY", Scheme::Http, "http", USER),
        ("http_proxy", Scheme::Http, "socks5h", None),
    ] {
        let world = World::new(scheme);
        let speaks = match kind {
            "http" => Speaks::Http,
            "https" => Speaks::Https(world.server.acceptor(&[&BETWEEN.to_string()])),
            _ => Speaks::Socks5,
        };
        let between = world.between(0, speaks, user);
        let user = if user.is_some() { USER_IN_URL } else { "" };
        let variable = format!("{variable}={kind}://{user}{}", between.address());
        let mut proxy = world.prepared(&world.kubeconfig(), slice::from_ref(&variable));
        proxy.launch();
        assert!(world.serves("web"), "{variable}");
        world.follows("api", 2);
        wait_for("the event of the start", || world.server.events().into_iter().next());
        assert_eq!(proxy.stop().code(), Some(0));
        let asked = between.asked();
        let target = world.server.address();
        let words = match (scheme, kind) {
            (_, "socks5" | "socks5h") => format!("SOCKS {target}"),
            (Scheme::Https, _) => format!("CONNECT {target} HTTP/1.1"),
            (Scheme::Http, _) => format!("http://{target}/"),
        };
        assert!(asked.len() >= 4 && asked.iter().all(|line| line.contains(&words)), "{variable}: {asked:?}");
        let log = proxy.log();
        let remark = format!("{}://{} (", kind.trim_end_matches('h'), between.address());
        assert!(log.contains("Requests to the API server go through a proxy") && log.contains(&remark), "{log}");
        keeps_secrets(&proxy);
    }
}

#[test]
fn exceptions_and_the_kubeconfig_come_before_the_environment() {
    let world = World::new(Scheme::Https);
    let (unused, used) = (world.between(0, Speaks::Http, None), world.between(0, Speaks::Http, None));
    let variable = format!("HTTPS_PROXY=http://{}", unused.address());
    // Nothing listens at the discard port, and the last value is no URL.
    for (proxy, exceptions) in [
        (&*variable, "NO_PROXY=192.0.2.0/28"),
        ("HTTPS_PROXY=http://192.0.2.20:9", "no_proxy=10.0.0.0/8,192.0.2.10"),
        ("HTTPS_PROXY=no URL", "NO_PROXY=*"),
    ] {
        let mut process = world.prepared(&world.kubeconfig(), &[proxy.to_owned(), exceptions.to_owned()]);
        process.launch();
        assert_eq!(process.stop().code(), Some(0));
    }
    let file = world.kubeconfig();
    let mut kubeconfig: Value = serde_json::from_str(&fs::read_to_string(&file).expect("it is there")).expect("JSON");
    kubeconfig["clusters"][0]["cluster"]["proxy-url"] = json!(format!("http://{}", used.address()));
    fs::write(&file, kubeconfig.to_string()).expect("it can be written");
    let mut process = world.prepared(&file, &[variable, "NO_PROXY=*".to_owned()]);
    process.launch();
    world.follows("api", 2);
    assert_eq!(process.stop().code(), Some(0));
    assert!(used.asked().len() >= 4 && unused.asked().is_empty(), "{:?} {:?}", used.asked(), unused.asked());
    assert!(process.log().contains("proxy-url of the kubeconfig"), "{}", process.log());
}

#[test]
fn a_proxy_that_cannot_be_used_is_named_and_does_not_end_the_process() {
    let world = World::new(Scheme::Https);
    let between = world.between(0, Speaks::Http, USER);
    let address = between.address();
    for (value, words) in [
        (format!("ftp://{USER_IN_URL}{address}"), "cannot use the proxy of HTTPS_PROXY: its scheme"),
        (format!("http://me:p@ss w%25rd@{address}"), "cannot use the proxy of HTTPS_PROXY: it is not a URL"),
        (
            format!("http://me:wrong@{address}"),
            "(HTTPS_PROXY) answered 407 Proxy Authentication Required; it needs a user",
        ),
        ("http://192.0.2.20:9".to_owned(), "the proxy http://192.0.2.20:9 (HTTPS_PROXY): "),
    ] {
        let mut proxy = world.prepared(&world.kubeconfig(), &[format!("HTTPS_PROXY={value}")]);
        proxy.spawn();
        wait_for("a word about it", || proxy.log().contains(words).then_some(()));
        thread::sleep(Duration::from_millis(500));
        assert!(proxy.is_running() && world.server.requests().is_empty(), "{}", proxy.log());
        assert!(!proxy.log().contains("wrong"), "{}", proxy.log());
        keeps_secrets(&proxy);
        assert_eq!(proxy.stop().code(), Some(0));
    }
}

#[test]
fn a_proxy_that_dies_and_comes_back_is_followed() {
    let world = World::new(Scheme::Https);
    let between = world.between(0, Speaks::Http, None);
    let address = between.address();
    let mut proxy = world.prepared(&world.kubeconfig(), &[format!("HTTPS_PROXY=http://{address}")]);
    proxy.launch();
    world.server.wait_for_watches();
    drop(between);
    world.server.apply(&served("api", 2));
    thread::sleep(Duration::from_secs(1));
    assert!(!world.serves("api") && world.serves("web"), "the rules stay as they were");
    let _between = world.between(address.port(), Speaks::Http, None);
    let since = Instant::now();
    wait_for("the rules of a change", || world.serves("api").then_some(()));
    println!("the change is there {:?} after the proxy", since.elapsed());
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}: {}", since.elapsed(), proxy.log());
    assert!(proxy.is_running());
}
