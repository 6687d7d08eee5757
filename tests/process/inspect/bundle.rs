//! `kube-proxy bundle`: what the archive holds beside a running, a stopped and no proxy, and that no secret is in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::apiserver::{ApiServer, Scheme};
use crate::support::mixed;
use crate::support::netns::{self, Namespace, run_with_input};
use crate::support::proxy::{Proxy, binary, config};

/// What must be in no file, by where it was planted.
const SECRETS: [(&str, &str); 5] = [
    ("the token of the kubeconfig", "sekret-one-token"),
    ("the password of the HTTP proxy", "sekret-two"),
    ("the password of --master", "sekret-three"),
    ("the environment", "sekret-four"),
    ("a comment of another program", "sekret-five"),
];

const FILES: [&str; 17] = [
    "changes.json",
    "changes.txt",
    "check.txt",
    "configz.json",
    "connections.txt",
    "healthz.json",
    "livez.json",
    "metrics.txt",
    "node.txt",
    "problems.txt",
    "readyz.json",
    "rules.nft",
    "services.json",
    "services.txt",
    "summary.txt",
    "sysctls.txt",
    "verify.txt",
];

fn folder() -> TempDir {
    TempDir::new().expect("a temporary directory can be made")
}

fn bundle(node: &Namespace, at: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = node.command(binary());
    command.arg("bundle").args(arguments).current_dir(at).env("HTTPS_PROXY", "http://user:sekret-four@192.0.2.9:3128");
    command.output().expect("the binary can be run")
}

/// The files of an archive, as the system's tar unpacks them.
fn unpacked(archive: &Path) -> BTreeMap<String, String> {
    let folder = folder();
    netns::run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder.path()));
    let only = fs::read_dir(folder.path()).expect("a folder").next().expect("a folder in it").expect("an entry");
    let files = fs::read_dir(only.path()).expect("a folder").map(|entry| entry.expect("an entry"));
    let text = |path| fs::read_to_string(path).expect("a file is text");
    files.map(|file| (file.file_name().to_string_lossy().into_owned(), text(file.path()))).collect()
}

fn assert_has(files: &BTreeMap<String, String>, name: &str, text: &str) {
    assert!(files[name].contains(text), "{name} lacks {text:?}: {}", files[name]);
}

#[test]
fn an_archive_beside_a_running_proxy_has_all_parts_and_no_secret() {
    let node = Namespace::new("bundle");
    let (server, at) = (node.enter(|| ApiServer::start(Scheme::Https)), folder());
    server.apply(&mixed::cluster());
    server.settings().tokens = Some(BTreeSet::from(["sekret-one-token".to_owned()]));
    let kubeconfig = server.kubeconfig(&json!({ "token": "sekret-one-token" }));
    let mut proxy = Proxy::with_api(&node, &config(), &kubeconfig);
    proxy.launch();
    let foreign = "table inet myfw { chain forw { type filter hook forward priority 5; policy drop; tcp dport 4711 drop comment \"see http://bob:sekret-five@wiki\"; }; }";
    run_with_input(node.command("nft").args(["-f", "-"]), foreign);

    // The commands of the archive take another way to the server, which does not work: their errors name it.
    let text = fs::read_to_string(&kubeconfig).expect("a kubeconfig");
    let mut other: Value = serde_saphyr::from_str(&text).expect("a kubeconfig is YAML");
    other["clusters"][0]["cluster"]["proxy-url"] = json!("http://user:sekret-two@192.0.2.9:3128");
    let path = |name: &str| at.path().join(name);
    fs::write(path("kubeconfig"), other.to_string()).expect("a file can be written");
    let mut settings = config();
    settings["clientConnection"]["kubeconfig"] = json!(path("kubeconfig"));
    fs::write(path("config"), settings.to_string()).expect("a file can be written");

    let made = bundle(&node, at.path(), &["--config", "config", "--master=https://user:sekret-three@127.0.0.1:1"]);
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success() && made.stdout.is_empty(), "{told}");
    let entries = fs::read_dir(at.path()).expect("a folder").map(|entry| entry.expect("an entry").path());
    let archives: Vec<_> = entries.filter(|path| path.to_string_lossy().ends_with(".tar.gz")).collect();
    let [archive] = archives.as_slice() else { panic!("not one archive: {archives:?}") };
    assert!(
        archive.file_name().expect("a name").to_string_lossy().starts_with("kube-proxy-test-node-20"),
        "{archive:?}"
    );
    assert_eq!(fs::metadata(archive).expect("a file").permissions().mode() & 0o777, 0o600);

    let files = unpacked(archive);
    assert_eq!(files.keys().map(String::as_str).collect::<Vec<_>>(), FILES);
    for (name, content) in &files {
        for (place, secret) in SECRETS {
            assert!(!content.contains(secret) && !told.contains(secret), "{name} has {place}: {content}");
        }
        assert!(name == "summary.txt" || told.contains(&format!("{name}: ")), "{told}");
    }
    assert_has(&files, "check.txt", "192.0.2.9:3128");
    assert_has(&files, "verify.txt", "ended with exit code 2");
    assert_has(&files, "services.txt", "shop/web:http");
    assert_has(&files, "services.txt", "TRACKED");
    let services: Value = serde_json::from_str(&files["services.json"]).expect("JSON");
    assert!(services["services"][0]["stats"]["open"].is_number(), "{services}");
    assert_has(&files, "changes.txt", "committed");
    let changes: Value = serde_json::from_str(&files["changes.json"]).expect("JSON");
    assert!(changes["changes"][0]["kind"].is_string(), "{changes}");
    assert_has(&files, "metrics.txt", "kubeproxy_sync_proxy_rules_last_timestamp_seconds");
    assert_has(&files, "configz.json", "\"KubeProxyConfiguration\"");
    for page in ["healthz.json", "livez.json", "readyz.json"] {
        assert!(serde_json::from_str::<Value>(&files[page]).is_ok_and(|page| page.is_object()), "{}", files[page]);
    }
    assert_eq!(files["problems.txt"], "none\n");
    assert_has(&files, "node.txt", &format!("running   pid {}: ", proxy.pid()));
    assert_has(&files, "connections.txt", "FAMILY  PROTOCOL");
    assert_has(&files, "sysctls.txt", "net.ipv4.ip_forward = ");
    assert_has(&files, "sysctls.txt", "net.netfilter.nf_conntrack_max = ");
    assert_has(&files, "rules.nft", "\t\ttype filter hook forward priority 5; policy drop;\n");
    assert_has(&files, "rules.nft", "\t\ttcp dport 4711 drop comment \"see http://***@wiki\"\n");
    // The tables of the proxy are as nft lists them.
    for table in ["ip kube-proxy", "ip6 kube-proxy"] {
        let listed = netns::run(node.command("nft").args(["--stateless", "list", "table"]).args(table.split(' ')));
        let (_, ours) = files["rules.nft"].split_once(&format!("table {table} {{\n")).expect("the table is there");
        let lines: BTreeSet<&str> = ours.lines().collect();
        let is_wanted = |line: &&str| {
            let is_element = line.starts_with("\t\t\t") || line.contains("elements = {");
            line.starts_with('\t') && !is_element && line.trim() != "}"
        };
        let missing: Vec<&str> = listed.lines().filter(is_wanted).filter(|line| !lines.contains(line)).collect();
        assert!(missing.is_empty() && lines.len() > 100, "{missing:?} {ours}");
        assert!(ours.contains("elements = { "), "{ours}");
    }
}

#[test]
fn beside_a_stopped_proxy_an_archive_is_made_in_bounded_time_from_what_the_node_tells() {
    let (node, at) = (Namespace::new("bundle"), folder());
    let proxy = Proxy::start(&node, &config(), &mixed::cluster());
    let path = |path: &Path| path.to_str().expect("a temporary path is text").to_owned();
    let (file, manifests) = (path(&proxy.config_path()), path(proxy.manifests().path()));
    proxy.signal(Signal::STOP);
    let start = Instant::now();
    let made = bundle(&node, at.path(), &["-", "--config", &file, "--manifests", &manifests]);
    let elapsed = start.elapsed();
    proxy.signal(Signal::CONT);
    let told = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{told}");
    assert!(elapsed < Duration::from_secs(90), "it took {elapsed:?}: {told}");
    let archive = at.path().join("archive");
    fs::write(&archive, &made.stdout).expect("a file can be written");
    let files = unpacked(&archive);
    assert_eq!(files.keys().map(String::as_str).collect::<Vec<_>>(), FILES);
    assert_has(&files, "metrics.txt", "cannot get http://127.0.0.1:10249/metrics: no answer within 3s\n");
    assert_has(&files, "summary.txt", "livez.json: cannot get http://127.0.0.1:10256/livez: no answer within 3s\n");
    assert_has(&files, "services.txt", "shop/web:http");
    assert_has(&files, "services.txt", "may be stopped or stuck");
    assert_has(&files, "verify.txt", "hold what they should");
    assert_has(&files, "rules.nft", "table ip kube-proxy {\n");
}

#[test]
fn without_a_proxy_each_part_says_why_it_is_missing_and_no_file_is_overwritten() {
    let (node, at) = (Namespace::new("bundle"), folder());
    let made = bundle(&node, at.path(), &["new.tar.gz"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let files = unpacked(&at.path().join("new.tar.gz"));
    assert_has(&files, "services.txt", "no table kube-proxy in this network namespace");
    assert_has(&files, "healthz.json", "cannot get http://127.0.0.1:10256/healthz: Connection refused");
    assert_has(&files, "node.txt", "running   none of this program runs\n");

    let before = fs::read(at.path().join("new.tar.gz")).expect("a file");
    let again = bundle(&node, at.path(), &["new.tar.gz"]);
    let told = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() == Some(2) && told.contains("cannot write new.tar.gz: name a new file"), "{told}");
    assert_eq!(fs::read(at.path().join("new.tar.gz")).expect("a file"), before);
}
