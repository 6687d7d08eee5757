//! The requests of the proxy, and the credentials that it uses.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{Cluster, served};
use crate::support::apiserver::fault::{Command, Ending, Fault, On};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::state::Streaming;
use crate::support::apiserver::wait_for;
use crate::support::apiserver::{Format, Scheme, test_in_each_format};
use crate::support::plan::NODE;
use crate::support::proxy::{Proxy, config};

/// Version of what plugins print.
const CREDENTIAL: &str = "client.authentication.k8s.io/v1";
/// A secret that is easy to find in a log.
const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.c2VjcmV0.c2lnbmF0dXJl";

// The selectors are upstream's, and the role is enough (P10).
test_in_each_format!(requests_carry_the_selectors_of_upstream_and_nothing_outside_the_role);
fn requests_carry_the_selectors_of_upstream_and_nothing_outside_the_role(format: Format) {
    // Requests have upstream's selectors, so that Services of other proxies and headless ones never come (A1, A2, B1).
    for streaming in [Streaming::On, Streaming::Refused] {
        let cluster = Cluster::new(format);
        cluster.server.settings().streaming = streaming;
        let mut proxy = cluster.proxy();
        cluster.server.wait_for_watches();
        proxy.stop();
        for request in cluster.server.requests() {
            assert_ne!(request.answered, 403, "{request:?}");
            assert!(request.headers["user-agent"].starts_with("kube-proxy"), "{request:?}");
            let (label, field) = match request.path.as_str() {
                "/api/v1/services" => ("!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None".to_owned()),
                "/apis/discovery.k8s.io/v1/endpointslices" => ("!service.kubernetes.io/headless", String::new()),
                "/api/v1/nodes" => ("", format!("metadata.name={NODE}")),
                _ => ("", String::new()),
            };
            assert_eq!(request.query.get("labelSelector"), label, "{request:?}");
            assert_eq!(request.query.get("fieldSelector"), field, "{request:?}");
        }
    }
}

// The alert KubeVersionMismatch compares what all components of the cluster report (P14).
#[test]
fn the_metrics_report_the_version_of_the_cluster_unless_a_flag_gives_another_one() {
    let cluster = Cluster::new(Format::Json);
    let reported = |proxy: &Proxy| {
        let page = proxy.get("127.0.0.1:10249", "/metrics");
        let series = page.lines().filter(|line| line.starts_with("kubernetes_build_info{"));
        series.collect::<Vec<_>>().join("\n")
    };
    let proxy = cluster.proxy();
    assert!(reported(&proxy).contains("minor=\"37\""), "before the server was asked: {}", reported(&proxy));
    let found = wait_for("the version of the cluster", || {
        Some(reported(&proxy)).filter(|text| text.contains("git_version=\"v1.36.2+kube-proxy-nft."))
    });
    assert!(found.contains("minor=\"36\"") && !found.contains('\n'), "one series: {found}");
    drop(proxy);

    let mut told = cluster.prepared();
    told.set_arguments(&["--version=v1.35.4"]);
    told.launch();
    let asked = || cluster.server.requests().iter().filter(|request| request.path == "/version").count();
    wait_for("another question for the version", || (asked() > 1).then_some(()));
    thread::sleep(Duration::from_millis(300));
    assert!(reported(&told).contains("git_version=\"v1.35.4\""), "{}", reported(&told));
}

/// A proxy of the cluster as this user, with everything in its log.
fn proxy<'a>(cluster: &'a Cluster, user: &Value) -> Proxy<'a> {
    let mut config = config();
    config["logging"] = json!({ "verbosity": 10 });
    let mut proxy = Proxy::with_api(&cluster.node, &config, &cluster.server.kubeconfig(user));
    proxy.launch();
    proxy
}

/// Starts as this user, follows a change, and ends; gives the log.
fn follows_as(cluster: &Cluster, user: &Value) -> String {
    let mut proxy = proxy(cluster, user);
    assert!(cluster.serves("web"));
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
    proxy.stop();
    assert!(cluster.server.requests().iter().all(|request| request.answered != 401));
    proxy.log()
}

fn with_token(format: Format, scheme: Scheme) -> Cluster {
    let cluster = Cluster::with(format, scheme);
    cluster.server.settings().tokens = Some([TOKEN.to_owned()].into());
    cluster
}

test_in_each_format!(a_token_opens_the_door_and_is_never_logged);
fn a_token_opens_the_door_and_is_never_logged(format: Format) {
    for scheme in [Scheme::Http, Scheme::Https] {
        let log = follows_as(&with_token(format, scheme), &json!({ "token": TOKEN }));
        assert!(!log.is_empty() && !log.contains(TOKEN), "{log}");
    }
}

test_in_each_format!(a_certificate_opens_the_door);
fn a_certificate_opens_the_door(format: Format) {
    let cluster = with_token(format, Scheme::Https);
    let user = cluster.server.certified_user("system:kube-proxy");
    follows_as(&cluster, &user);
    assert!(cluster.server.requests().iter().all(|request| !request.headers.contains_key("authorization")));
}

test_in_each_format!(a_certificate_that_is_replaced_is_used_without_a_failure);
fn a_certificate_that_is_replaced_is_used_without_a_failure(format: Format) {
    // In place, and as kubelet does it: a link that leads to another file from one moment to the next.
    for is_link in [false, true] {
        let cluster = with_token(format, Scheme::Https);
        let user = cluster.server.certified_user("system:kube-proxy");
        let directory = cluster.server.directory();
        let path = |name: &str| directory.join(name);
        let link = |version: &str| {
            for file in ["user.crt", "user.key"] {
                let to = format!("{version}-{file}");
                fs::rename(path(file), path(&to)).expect("a file can be renamed");
                symlink(to, path("link")).expect("a link can be made");
                fs::rename(path("link"), path(file)).expect("a link can be renamed");
            }
        };
        if is_link {
            link("first");
        }
        let mut proxy = proxy(&cluster, &user);
        cluster.server.wait_for_watches();
        if is_link {
            // The files are renamed over the links, and the targets of the links stay.
            ["user.crt", "user.key"]
                .iter()
                .for_each(|file| fs::remove_file(path(file)).expect("a link can be removed"));
        }
        cluster.server.certified_user("system:kube-proxy");
        if is_link {
            link("second");
        }
        let before = cluster.server.requests_for(Resource::Service);
        cluster.server.order(None, Command::Finish);
        let after =
            wait_for("the next watch", || cluster.server.requests_for(Resource::Service).get(before.len()).cloned());
        assert!(after.certificate != before[0].certificate, "the old certificate is in use; by link: {is_link}");
        cluster.server.apply(&served("api", 2));
        cluster.wait_until_serves("api", true);
        proxy.stop();
        assert!(cluster.server.requests().iter().all(|request| request.answered != 401), "nothing was refused");
    }
}

test_in_each_format!(a_plugin_provides_the_token);
fn a_plugin_provides_the_token(format: Format) {
    let cluster = with_token(format, Scheme::Http);
    let log = follows_as(&cluster, &plugin(&cluster));
    assert!(!log.contains(TOKEN), "{log}");
}

/// A user whose plugin prints what the file `credential` holds, which is a token at first.
fn plugin(cluster: &Cluster) -> Value {
    let directory = cluster.server.directory();
    let (plugin, file) = (directory.join("plugin"), directory.join("credential"));
    fs::write(&file, credential(TOKEN)).expect("a credential can be written");
    fs::write(&plugin, format!("#!/bin/sh\nexec cat {}\n", file.display())).expect("a script can be written");
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("a script can be made executable");
    json!({ "exec": { "apiVersion": CREDENTIAL, "command": plugin, "interactiveMode": "Never" } })
}

fn credential(token: &str) -> String {
    json!({ "apiVersion": CREDENTIAL, "kind": "ExecCredential", "status": { "token": token } }).to_string()
}

test_in_each_format!(a_plugin_is_asked_again_when_its_token_is_refused);
fn a_plugin_is_asked_again_when_its_token_is_refused(format: Format) {
    let cluster = with_token(format, Scheme::Http);
    let mut proxy = proxy(&cluster, &plugin(&cluster));
    cluster.server.wait_for_watches();
    fs::write(cluster.server.directory().join("credential"), credential("rotated")).expect("a file can be written");
    cluster.server.settings().tokens = Some(["rotated".to_owned()].into());
    cluster.server.order(None, Command::End(Ending::Close));
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
    proxy.stop();
}

// Events reach the API server (P9).
test_in_each_format!(the_start_is_an_event_of_the_node);
fn the_start_is_an_event_of_the_node(format: Format) {
    // Each start is an event of the Node (O11).
    let cluster = Cluster::new(format);
    let _proxy = cluster.proxy();
    let event = wait_for("the Event", || cluster.server.events().into_iter().next());
    let words =
        ["reason", "action", "type", "reportingController"].map(|field| event[field].as_str().unwrap_or_default());
    assert_eq!(words, ["Starting", "StartKubeProxy", "Normal", "kube-proxy"]);
    assert_eq!(event["regarding"]["kind"], "Node");
    assert_eq!(event["regarding"]["name"], NODE);
}

test_in_each_format!(a_token_file_is_read_again);
fn a_token_file_is_read_again(format: Format) {
    let cluster = with_token(format, Scheme::Http);
    let file = cluster.server.directory().join("token");
    fs::write(&file, format!("{TOKEN}\n")).expect("a token can be written");
    let mut proxy = proxy(&cluster, &json!({ "tokenFile": file }));
    cluster.server.wait_for_watches();
    fs::write(&file, "rotated\n").expect("a token can be written");
    cluster.server.settings().tokens = Some(["rotated".to_owned()].into());
    cluster.server.order(None, Command::End(Ending::Close));
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
    proxy.stop();
    assert!(!proxy.log().contains("rotated"), "{}", proxy.log());
}

// A kubelet replaces a certificate and its key one after the other, and a token may come after the start; client-go reads such files again
// for each connection (P15).
test_in_each_format!(credentials_that_are_not_complete_yet_are_waited_for);
fn credentials_that_are_not_complete_yet_are_waited_for(format: Format) {
    let cluster = with_token(format, Scheme::Https);
    let directory = cluster.server.directory();
    let (key, token) = (directory.join("user.key"), directory.join("later"));
    cluster.server.certified_user("system:kube-proxy");
    let former = fs::read(&key).expect("the key of the first certificate");
    let user = cluster.server.certified_user("system:kube-proxy");
    let fitting = fs::read(&key).expect("the key of the second certificate");
    fs::write(&key, former).expect("a key can be written");
    for (user, words, file, content) in [
        (user, "the client certificate and the client key do not belong together", key, &*fitting),
        (json!({ "tokenFile": token }), "cannot use token file", token.clone(), TOKEN.as_bytes()),
    ] {
        let mut proxy = Proxy::with_api(&cluster.node, &config(), &cluster.server.kubeconfig(&user));
        proxy.spawn();
        wait_for(words, || proxy.log().contains(words).then_some(()));
        assert!(proxy.is_running(), "{}", proxy.log());
        fs::write(file, content).expect("a file can be written");
        proxy.wait_until_synced();
        assert!(cluster.serves("web"));
        assert_eq!(proxy.stop().code(), Some(0));
    }
}

// The forms come from installers and guides; upstream starts with each (P15).
#[test]
fn what_installers_write_into_kubeconfigs_is_enough_to_start() {
    let cluster = Cluster::new(Format::Json);
    let (url, address) = (cluster.server.url(), cluster.server.address().to_string());
    let file = cluster.server.directory().join("kubeconfig");
    let of = |server: Value, user: Value| {
        let cluster = json!({ "server": server, "certificate-authority-data": "", "tls-server-name": "" });
        let context = json!({ "name": "c", "context": { "cluster": "c", "user": "u" } });
        json!({ "current-context": "c", "contexts": [context], "clusters": [{ "name": "c", "cluster": cluster }],
            "users": [{ "name": "u", "user": user }] })
        .to_string()
    };
    let empty = json!({ "token": "", "tokenFile": "", "client-certificate-data": "", "client-key-data": "" });
    for (kubeconfig, master) in [
        (of(json!(address), json!({})), None),
        (of(json!(url), empty.clone()), None),
        (of(json!(null), empty), Some(&url)),
        (String::new(), Some(&address)),
    ] {
        fs::write(&file, &kubeconfig).expect("a kubeconfig can be written");
        let mut proxy = Proxy::with_api(&cluster.node, &config(), &file);
        let master: Vec<_> = master.map(|master| format!("--master={master}")).into_iter().collect();
        proxy.set_arguments(&master.iter().map(String::as_str).collect::<Vec<_>>());
        proxy.launch();
        assert!(cluster.serves("web"), "{kubeconfig}");
        assert_eq!(proxy.stop().code(), Some(0), "{kubeconfig}: {}", proxy.log());
    }
}

test_in_each_format!(a_server_that_refused_everybody_for_a_while_is_used_again_soon);
fn a_server_that_refused_everybody_for_a_while_is_used_again_soon(format: Format) {
    // After refused credentials, and redirects, the server is tried again soon (O16).
    for status in [401, 302] {
        let cluster = Cluster::new(format);
        let mut proxy = cluster.proxy();
        cluster.server.wait_for_watches();
        cluster.server.lasting_fault(On::All, Fault::Refuse(status, None));
        cluster.server.order(None, Command::End(Ending::Close));
        let asked = cluster.server.requests().len();
        let time = Duration::from_secs(18);
        thread::sleep(time);
        let asked = cluster.server.requests().len() - asked;
        cluster.server.clear_faults();
        let start = Instant::now();
        cluster.server.apply(&served("api", 2));
        cluster.wait_until_serves("api", true);
        println!("after {status} for {time:?}: {:?}, {asked} requests", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(5), "{status}: {:?}", start.elapsed());
        assert!(asked < 36, "{asked} requests in {time:?}");
        assert_eq!(proxy.stop().code(), Some(0));
    }
}

test_in_each_format!(a_certificate_of_the_ca_file_that_cannot_be_used_is_skipped_with_one_warning);
fn a_certificate_of_the_ca_file_that_cannot_be_used_is_skipped_with_one_warning(format: Format) {
    let cluster = with_token(format, Scheme::Https);
    let kubeconfig = cluster.server.kubeconfig(&json!({ "token": TOKEN }));
    let file = cluster.server.directory().join("ca.crt");
    let good = fs::read_to_string(&file).expect("the kubeconfig's CA");
    let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(&file, format!("{bad}{good}")).expect("a file can be written");
    let mut proxy = Proxy::with_api(&cluster.node, &config(), &kubeconfig);
    proxy.launch();
    cluster.server.wait_for_watches();
    // The client is made again.
    cluster.server.close();
    cluster.server.open();
    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);
    proxy.stop();
    assert_eq!(proxy.log().matches("Skips a certificate of the CA file").count(), 1, "{}", proxy.log());
    assert!(proxy.log().contains("certificate 1: "), "{}", proxy.log());
}
