//! No secret from any input of the program is in any of its outputs.
//!
//! Each case plants marked secrets in the inputs that have any: the kubeconfig, its files, the exec plugin with all that it gets and prints,
//! URLs in flags, in the kubeconfig and in the environment. Then it looks for the marks in the log with all records, in each page, in what
//! each command prints, in the archive of `bundle`, in the events that were sent and in the tables of the kernel.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use data_encoding::BASE64;
use serde_json::{Value, json};

use super::api::cluster::{base, served};
use crate::support::apiserver::{ApiServer, Format, Scheme, wait_for};
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::proxy::{Proxy, binary, config};

const PAGES: [(&str, &[&str]); 2] = [
    (
        "127.0.0.1:10249",
        &["/metrics", "/configz", "/flagz", "/statusz", "/proxyMode", "/debug/changes", "/debug/endpoints/shop/web"],
    ),
    ("127.0.0.1:10256", &["/healthz", "/livez", "/readyz"]),
];
const COMMANDS: [&str; 8] = [
    "check",
    "check -o json",
    "changes",
    "changes -o json",
    "services --wide",
    "services -o json",
    "verify --timeout=1",
    "explain --from 10.244.1.99 --to 10.96.0.1:80",
];

/// The number of cases, and how many of them run at once.
const CASES: usize = 16;
const AT_ONCE: usize = 4;

/// The inputs of a proxy.
#[derive(Default)]
struct Case {
    user: Value,
    /// Changes the cluster of the kubeconfig.
    cluster: Value,
    flags: Vec<String>,
    variables: Vec<String>,
    /// What the log says once the secrets have been used.
    expected: &'static str,
    /// Secrets that are no marks, or were encoded.
    more: Vec<String>,
}

/// A secret by which it is found; `n` tells the places apart.
fn mark(n: u8) -> String {
    format!("sekret{n:02}Zq8Lw3Xv")
}

/// The marks, as they are and as the credentials of a user `me`.
fn marks() -> Vec<String> {
    let basic = |n| BASE64.encode(format!("me:{}", mark(n)).as_bytes());
    (0..30).flat_map(|n| [mark(n), basic(n)]).collect()
}

/// A user whose plugin is this script, with secrets in its arguments and its environment.
fn plugin(at: &Path, script: &str) -> Value {
    fs::create_dir(at).expect("a folder can be made");
    let file = at.join("plugin");
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a script can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a script can be made executable");
    json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": file, "interactiveMode": "Never",
        "args": [format!("--password={}", mark(0)), "--token", mark(1)],
        "env": [{ "name": "CLIENT_SECRET", "value": mark(2) }, { "name": "AWS_SECRET_ACCESS_KEY", "value": mark(3) }],
    } })
}

fn key_pem(server: &ApiServer) -> (Value, Vec<String>) {
    let user = server.certified_user("system:kube-proxy");
    let read = |field: &str| fs::read_to_string(user[field].as_str().expect("a path")).expect("a file");
    let (certificate, key) = (read("client-certificate"), read("client-key"));
    let middle = key.lines().nth(1).expect("a key has a second line").to_owned();
    let encoded = BASE64.encode(key.as_bytes());
    let user = json!({
        "client-certificate-data": BASE64.encode(certificate.as_bytes()), "client-key-data": encoded,
    });
    (user, vec![middle, encoded[40..80].to_owned()])
}

/// A plugin that fails and prints its secrets in the forms in which programs do.
const TELLS: &str = r#"
echo "{\"status\": {\"token\": \"$1\"}}"
exec >&2
echo "error: token: sekret10Zq8Lw3Xv is not valid"
echo "{\"access_token\": \"sekret11Zq8Lw3Xv\", \"password\":\"sekret12Zq8Lw3Xv\"}"
echo "secret='sekret13Zq8Lw3Xv' Authorization: Basic sekret14Zq8Lw3Xv"
echo "+ login $@; $CLIENT_SECRET, key $AWS_SECRET_ACCESS_KEY"
exit 3"#;

fn cases(server: &ApiServer, at: &Path) -> [(&'static str, Case); CASES] {
    let (file, synced) = (at.join("token"), "Synced for the first time");
    fs::write(&file, mark(4)).expect("a token can be written");
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": { "token": mark(5) },
    });
    let (certified, more) = key_pem(server);
    let broken = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", mark(6));
    let with_user = |n| format!("https://me:{}@{}", mark(n), server.address());
    let elsewhere = |scheme: &str, n| format!("{scheme}://me:{}@127.0.0.1:9", mark(n));
    let user = |user: Value, expected| Case { user, expected, ..Case::default() };
    [
        ("token", user(json!({ "token": mark(7) }), synced)),
        ("token with a line", user(json!({ "token": format!("{}\n{}", mark(7), mark(8)) }), "no HTTP header may have")),
        ("token file", user(json!({ "tokenFile": file }), synced)),
        ("password", user(json!({ "username": "me", "password": mark(9) }), synced)),
        ("key", Case { more, ..user(certified.clone(), synced) }),
        ("broken key", {
            let mut user = certified;
            user["client-key-data"] = json!(BASE64.encode(broken.as_bytes()));
            Case { user, expected: "key", ..Case::default() }
        }),
        ("plugin", user(plugin(&at.join("good"), &format!("echo '{credential}'")), synced)),
        ("failing plugin", user(plugin(&at.join("bad"), TELLS), "it failed (exit status: 3)")),
        ("server", Case { cluster: json!({ "server": with_user(15) }), expected: synced, ..Case::default() }),
        ("--master", Case { flags: vec![format!("--master={}", with_user(16))], expected: synced, ..Case::default() }),
        (
            "server that is away",
            Case { cluster: json!({ "server": elsewhere("https", 17) }), expected: "refused", ..Case::default() },
        ),
        (
            "broken --master",
            Case {
                flags: vec![format!("--master=https://me:{}@[", mark(18))],
                expected: "--master",
                ..Case::default()
            },
        ),
        (
            "broken server",
            Case {
                cluster: json!({ "server": format!("https://me:{}@[", mark(19)) }),
                expected: "kubeconfig",
                ..Case::default()
            },
        ),
        (
            "proxy-url",
            Case { cluster: json!({ "proxy-url": elsewhere("http", 20) }), expected: "refused", ..Case::default() },
        ),
        (
            "broken proxy-url",
            Case { cluster: json!({ "proxy-url": elsewhere("ftp", 21) }), expected: "proxy-url", ..Case::default() },
        ),
        (
            "HTTPS_PROXY",
            Case {
                cluster: json!({ "server": "https://192.0.2.1:6443" }),
                variables: vec![format!("HTTPS_PROXY={}", elsewhere("socks5", 22))],
                expected: "HTTPS_PROXY",
                ..Case::default()
            },
        ),
    ]
}

/// The kubeconfig of a case.
fn kubeconfig(server: &ApiServer, case: &Case) -> PathBuf {
    let path = server.kubeconfig(&case.user);
    let text = fs::read_to_string(&path).expect("a kubeconfig");
    let mut kubeconfig: Value = serde_saphyr::from_str(&text).expect("a kubeconfig is YAML");
    let cluster = &mut kubeconfig["clusters"][0]["cluster"];
    for (field, value) in case.cluster.as_object().into_iter().flatten() {
        cluster[field] = value.clone();
    }
    fs::write(&path, kubeconfig.to_string()).expect("a file can be written");
    path
}

/// What each command prints while a proxy runs, with its name.
fn printed(node: &Namespace, lines: &[String], variables: &[&str]) -> Vec<(String, String)> {
    let print = |line: &String| {
        let mut command = node.command(binary());
        command.args(line.split(' ')).envs(variables.iter().filter_map(|variable| variable.split_once('=')));
        let output = command.output().expect("the binary can be run");
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (format!("command {line}"), text)
    };
    thread::scope(|scope| {
        let running: Vec<_> = lines.iter().map(|line| scope.spawn(move || print(line))).collect();
        running.into_iter().map(|command| command.join().expect("a command runs")).collect()
    })
}

/// All outputs of the program in this case, each with its name.
fn outputs(node: &Namespace, server: &ApiServer, at: &Path, case: &Case) -> Vec<(String, String)> {
    let path = kubeconfig(server, case);
    let mut config = config();
    config["logging"] = json!({ "verbosity": 10 });
    config["enableProfiling"] = json!(true);
    config["featureGates"] = json!({ "ComponentFlagz": true, "ComponentStatusz": true });
    let mut proxy = Proxy::with_api(node, &config, &path);
    let variables: Vec<&str> = case.variables.iter().map(String::as_str).chain(["RUST_LOG=trace"]).collect();
    proxy.set_wrapper(&[&["env"], &variables[..]].concat());
    proxy.set_arguments(&case.flags.iter().map(String::as_str).collect::<Vec<_>>());
    proxy.spawn();
    wait_for("what the case is about", || proxy.log().contains(case.expected).then_some(()));

    let (archive, flags) = (at.join("bundle.tar.gz"), case.flags.iter().map(|flag| format!(" {flag}")));
    let mut lines = COMMANDS.map(str::to_owned).to_vec();
    lines.push(format!("check --kubeconfig={}{}", path.display(), flags.collect::<String>()));
    lines.push(format!("bundle {}", archive.display()));
    let mut found = printed(node, &lines, &variables);
    for (address, pages) in PAGES {
        let get = |page: &&str| Some((format!("page {page}"), proxy.try_get(address, page)?));
        found.extend(pages.iter().filter_map(get));
    }
    let empty: Vec<&String> = found.iter().filter(|(_, text)| text.is_empty()).map(|(place, _)| place).collect();
    assert!(empty.is_empty(), "nothing was looked at: {empty:?}");
    let pages = PAGES.iter().flat_map(|(_, pages)| *pages).count();
    assert!(!proxy.is_running() || found.len() == lines.len() + pages, "pages are missing");
    found.push(("bundle".to_owned(), run(Command::new("tar").arg("-xzOf").arg(&archive))));
    found.push(("events".to_owned(), json!(server.events()).to_string()));
    found.push(("tables".to_owned(), nft::list_ruleset(node)));
    if proxy.is_running() {
        proxy.stop();
    }
    found.push(("log".to_owned(), proxy.log()));
    found
}

/// The secrets that are in some output of the case with this number, each with the output's line.
fn shown(number: usize) -> Vec<String> {
    let node = Namespace::new("secrets");
    let server = node.enter(|| ApiServer::start_with(Scheme::Https, Format::Protobuf));
    server.apply(&base());
    server.apply(&served("web", 1));
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let mut all = cases(&server, folder.path()).into_iter();
    let (name, case) = all.nth(number).expect("a number of a case");
    let secrets = [marks(), case.more.clone()].concat();
    let mut shown = Vec::new();
    for (place, text) in outputs(&node, &server, folder.path(), &case) {
        for (secret, at) in secrets.iter().filter_map(|secret| Some((secret, text.find(&**secret)?))) {
            let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
            let line: String = text[start..].lines().next().unwrap_or_default().chars().take(300).collect();
            shown.push(format!("{name}, {place}: {secret} in {line}"));
        }
    }
    shown
}

#[test]
fn no_secret_of_any_input_is_in_any_output() {
    // Credentials stay with the program (P16).
    // Most of the time goes by while commands wait for servers that do not answer.
    let numbers: Vec<usize> = (0..CASES).collect();
    let shown: Vec<String> = numbers
        .chunks(AT_ONCE)
        .flat_map(|some| {
            thread::scope(|scope| {
                let running: Vec<_> = some.iter().map(|number| scope.spawn(|| shown(*number))).collect();
                running.into_iter().flat_map(|case| case.join().expect("a case")).collect::<Vec<_>>()
            })
        })
        .collect();
    assert!(shown.is_empty(), "{} secrets:\n{}", shown.len(), shown.join("\n"));
}
