//! Starts that cannot serve: the node goes on in mode iptables, with the same treatment of packets and the same sysctls.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::iptables::{self, NODE_PORT, PORT};
use crate::judge::{Source, assert_outcome, assert_reaches, endpoints};
use crate::support::apiserver::fault::{Ending, Fault, On};
use crate::support::apiserver::{ApiServer, Scheme, wait_for};
use crate::support::netns::run;
use crate::support::nft;
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

const WEB: [u8; 2] = [0, 2];
/// Enough probes that one of two endpoints is missed by chance less than once in a billion times.
const PROBES: u32 = 40;
/// Longer than a start takes to change what it should not, on a slow machine too.
const A_WHILE: Duration = Duration::from_secs(4);
const HEALTHZ: &str = "127.0.0.1:10256";
/// A sysctl that the configuration of these tests changes, as its path below `/proc/sys/net`, and the value it has before.
const SYSCTL: (&str, &str) = ("netfilter/nf_conntrack_udp_timeout", "33");

/// A node in mode iptables.
fn node_in_mode_iptables() -> (World, String, String) {
    let world = World::new();
    world.node.set_sysctl(SYSCTL.0, SYSCTL.1);
    iptables::install(&world.node, &WEB);
    // The table of a fast path that an earlier start of this proxy left.
    nft::load(&world.node, "add table inet kube-proxy-flowtable\n");
    let (chains, ruleset) = (iptables::listing(&world.node), tables(&world));
    assert_serves(&world);
    (world, chains, ruleset)
}

/// The names of all tables.
fn tables(world: &World) -> String {
    nft::list_tables(&world.node)
}

fn sysctl(world: &World) -> String {
    run(world.node.command("cat").arg(format!("/proc/sys/net/{}", SYSCTL.0))).trim().to_owned()
}

/// A configuration that wants another sysctl.
fn wanting() -> Value {
    let mut config = config();
    config["conntrack"]["udpTimeout"] = "59s".into();
    config
}

fn assert_serves(world: &World) {
    for family in Family::ALL {
        let to = endpoints(family, &WEB, PORT);
        let flow = |source, address, port| Flow::new(Proto::Tcp, source, address, port);
        let from_pod = flow(family.shell(), family.cluster_ip(1), 80);
        assert_reaches(&world.shell, from_pod, &to, Source::Kept, PROBES);
        let from_outside = flow(family.client(), family.cluster_ip(1), 80);
        assert_reaches(&world.client, from_outside, &to, Source::Masqueraded, PROBES);
        let node_port = flow(family.client(), family.node(), NODE_PORT);
        assert_reaches(&world.client, node_port, &to, Source::Masqueraded, PROBES);
        assert_outcome(&world.shell, flow(family.shell(), family.cluster_ip(2), 80), &Outcome::Refused);
    }
}

fn assert_unchanged(world: &World, before: &(String, String), what: &str) {
    assert_eq!((iptables::listing(&world.node), tables(world)), *before, "{what}");
    assert_serves(world);
}

/// The status and the body of `/readyz`.
fn readyz(proxy: &Proxy<'_>) -> (String, String) {
    let answer = proxy.get(HEALTHZ, "/readyz");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

/// A proxy whose API server does not give it its objects changes nothing, and `/readyz` answers that it is not ready.
fn assert_waits(world: &World, before: &(String, String), kubeconfig: &Path, what: &str) {
    let mut proxy = Proxy::with_api(&world.node, &wanting(), kubeconfig);
    proxy.spawn();
    wait_for("a log", || proxy.log().contains("Serving healthz").then_some(()));
    thread::sleep(A_WHILE);
    assert_unchanged(world, before, what);
    let (status, body) = readyz(&proxy);
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable", "{what}: {body}");
    let reason = serde_json::from_str::<Value>(&body).unwrap()["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("API server"), "{what}: {reason}");
    for kind in ["Node", "Service", "EndpointSlice"] {
        assert!(reason.contains(kind), "{what}: {reason}");
    }
    assert!(proxy.get(HEALTHZ, "/livez").starts_with("HTTP/1.1 200 "), "{what}: a restart would not help");
    assert!(proxy.stop().success());
    assert_unchanged(world, before, what);
}

fn kubeconfig(directory: &Path, server: &str, user: &Value) -> std::path::PathBuf {
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": user }],
    });
    let path = directory.join("kubeconfig");
    fs::write(&path, text.to_string()).unwrap();
    path
}

#[test]
fn an_api_server_that_gives_nothing_leaves_mode_iptables_in_force() {
    let (world, chains, tables) = node_in_mode_iptables();
    let before = (chains, tables);
    let directory = tempfile::tempdir().unwrap();
    // No API server has this address.
    let wrong = kubeconfig(directory.path(), "https://192.0.2.77:6443", &json!({ "token": "x" }));
    assert_waits(&world, &before, &wrong, "wrong address");
    let later = kubeconfig(directory.path(), "https://192.0.2.77:6443", &json!({ "tokenFile": "/nowhere/token" }));
    assert_waits(&world, &before, &later, "a token file that does not exist yet");
    let refused = kubeconfig(directory.path(), "https://127.0.0.1:1", &json!({ "token": "x" }));
    assert_waits(&world, &before, &refused, "connection refused");
    // A server accepts connections and sends nothing.
    let silent = world.node.enter(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let server = format!("http://{}", silent.local_addr().unwrap());
    let silent_file = kubeconfig(directory.path(), &server, &json!({ "token": "x" }));
    assert_waits(&world, &before, &silent_file, "no answer");
    let server = world.node.enter(|| ApiServer::start(Scheme::Http));
    for (fault, what) in
        [(Fault::Refuse(403, None), "RBAC refused"), (Fault::Unanswered(Ending::Silence), "no HTTP answer")]
    {
        server.lasting_fault(On::All, fault);
        assert_waits(&world, &before, &server.kubeconfig(&json!({})), what);
        server.clear_faults();
    }
}

/// Asserts that a start that ends at once changes no rule and no sysctl, and that its only log line has the text `says`.
fn assert_ends(world: &World, before: &(String, String), mut proxy: Proxy<'_>, says: &str) {
    proxy.spawn();
    assert_eq!(proxy.wait_for_end().code(), Some(1), "{says}: {}", proxy.log());
    let log = proxy.log();
    assert!(log.contains(says), "no {says:?} in {log}");
    assert_unchanged(world, before, says);
    assert_eq!(sysctl(world), SYSCTL.1, "{says}: a sysctl was written: {log}");
}

#[test]
fn what_cannot_be_read_ends_the_start_and_leaves_mode_iptables_and_sysctls() {
    let (world, chains, tables) = node_in_mode_iptables();
    let before = (chains, tables);
    let node = &world.node;
    let files = tempfile::tempdir().unwrap();
    let missing = Proxy::with_api(node, &wanting(), Path::new("/nowhere/kubeconfig"));
    assert_ends(&world, &before, missing, "/nowhere/kubeconfig");
    let user = json!({ "client-certificate": "/nowhere/user.crt", "client-key": "/nowhere/user.key" });
    let path = kubeconfig(files.path(), "https://192.0.2.77:6443", &user);
    assert_ends(&world, &before, Proxy::with_api(node, &wanting(), &path), "/nowhere/user");
    let mut in_cluster = wanting();
    in_cluster["clientConnection"]["kubeconfig"] = "".into();
    let proxy = Proxy::with_api(node, &in_cluster, Path::new(""));
    proxy.configure(&in_cluster);
    assert_ends(&world, &before, proxy, "no API server");

    let mut invalid = wanting();
    invalid["nftables"]["masqueradeBit"] = 99.into();
    assert_ends(&world, &before, Proxy::prepare(node, &invalid, &[]), "masqueradeBit");

    let mut proxy = Proxy::prepare(node, &wanting(), &[]);
    let directory = proxy.manifests().path().to_owned();
    fs::set_permissions(&directory, Permissions::from_mode(0o000)).unwrap();
    let says = directory.display().to_string();
    // Root reads everything but for these capabilities.
    proxy.set_wrapper(&["setpriv", "--bounding-set=-dac_override,-dac_read_search"]);
    assert_ends(&world, &before, proxy, &says);
    let mut proxy = Proxy::prepare(node, &wanting(), &[]);
    let directory = proxy.manifests().path().to_owned();
    fs::remove_dir_all(&directory).unwrap();
    proxy.set_wrapper(&[]);
    assert_ends(&world, &before, proxy, &directory.display().to_string());
}
