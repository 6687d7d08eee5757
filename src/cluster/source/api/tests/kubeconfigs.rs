//! Tests of how a kubeconfig and `--master` are read, compared with upstream's behaviour for the same input.
//!
//! Upstream's behaviour is that of `tools/clientcmd`, `rest` and `transport` of client-go. It was found by running kube-proxy with each kind
//! of input; these tests do not run it.

use std::fs;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use kube::api::ListParams;
use tempfile::TempDir;

use super::super::client::{Configuration, configuration};
use super::super::connection::Request;
use super::access::{ask, authorization, kubeconfig, runtime};
use super::*;

/// Writes a file into a directory. Returns its path.
fn file(dir: &Path, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    fs::write(dir.join(name), text).unwrap();
    dir.join(name)
}

/// Returns options for a kubeconfig of this text, in a directory.
fn text(dir: &Path, text: impl AsRef<[u8]>, master: Option<&str>) -> ClientOptions {
    ClientOptions {
        kubeconfig: Some(file(dir, "kubeconfig", text)),
        master: master.map(ToOwned::to_owned),
        ..ClientOptions::default()
    }
}

/// Returns a server that answers each request.
fn server() -> Server {
    serve(|_| reply(200, "", &json!({})))
}

/// Returns a new CA certificate in PEM.
fn authority() -> String {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
}

/// Returns base64 as `base64` prints it: lines of 76 characters.
fn lines(text: &str) -> String {
    let data = BASE64.encode(text.as_bytes());
    data.as_bytes().chunks(76).map(|line| format!("{}\n", std::str::from_utf8(line).unwrap())).collect()
}

// An empty string is not set, as in client-go (P15).
#[test]
fn an_empty_string_is_a_field_that_is_not_set() {
    let dir = TempDir::new().unwrap();
    let server = server();
    let (ca, token) = (file(dir.path(), "ca.crt", authority()), file(dir.path(), "token", "from-file"));
    let cluster = json!({
        "server": server.url, "certificate-authority": "", "certificate-authority-data": "", "tls-server-name": "", "proxy-url": "",
    });
    let empty = json!({
        "token": "", "tokenFile": "", "username": "", "password": "", "as": "", "as-uid": "",
        "client-certificate": "", "client-certificate-data": "", "client-key": "", "client-key-data": "",
    });
    runtime().block_on(ask(kubeconfig(dir.path(), &cluster, &empty))).unwrap();
    let headers = &server.requests("services")[0].headers;
    assert!(!headers.keys().any(|name| name == "authorization" || name.starts_with("impersonate")), "{headers:?}");

    // The other one of two fields counts.
    let user = json!({"token": "", "tokenFile": token});
    assert_eq!(authorization(dir.path(), &user).as_deref(), Some("Bearer from-file"));
    let cluster = json!({"server": "https://192.0.2.1", "certificate-authority": ca, "certificate-authority-data": ""});
    let options = kubeconfig(dir.path(), &cluster, &empty);
    let Configuration { config, .. } = configuration(&options).unwrap();
    assert_eq!((config.root_cert.map(|trusted| trusted.len()), config.root_cert_file), (Some(1), Some(ca)));
    let context = json!({"current-context": "", "contexts": null, "clusters": [{"name": "c"}], "users": [{"name": "u", "user": null}]});
    runtime().block_on(ask(text(dir.path(), context.to_string(), Some(&server.url)))).unwrap();
}

#[test]
fn data_may_be_base64_of_several_lines() {
    let dir = TempDir::new().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap().pem();
    let cluster = json!({"server": "https://192.0.2.1", "certificate-authority-data": lines(&authority())});
    let user = json!({"client-certificate-data": lines(&certificate), "client-key-data": lines(&key.serialize_pem())});
    let options = kubeconfig(dir.path(), &cluster, &user);
    runtime().block_on(Connection::new(options.clone())).map(drop).unwrap();
    let Configuration { config, .. } = configuration(&options).unwrap();
    assert!(super::super::certificate::of_client(&config.auth_info).is_some(), "`check` reads it too");
    let user = json!({"client-certificate-data": "***", "client-key-data": "***"});
    let error = runtime().block_on(Connection::new(kubeconfig(dir.path(), &cluster, &user))).err().unwrap();
    assert!(format!("{error:#}").contains("client certificate: its data is not base64"), "{error:#}");
}

#[test]
fn the_content_of_the_token_file_comes_before_the_token() {
    let dir = TempDir::new().unwrap();
    for (content, expected) in
        [(Some("b"), "Bearer b"), (Some(" b\n"), "Bearer b"), (Some("\n"), "Bearer a"), (None, "Bearer a")]
    {
        let path = dir.path().join("token");
        let _ = fs::remove_file(&path);
        if let Some(content) = content {
            file(dir.path(), "token", content);
        }
        let user = json!({"token": "a", "tokenFile": path});
        assert_eq!(authorization(dir.path(), &user).as_deref(), Some(expected), "{content:?}");
    }
    assert_eq!(authorization(dir.path(), &json!({"token": " a\n"})).as_deref(), Some("Bearer a"));
    assert_eq!(authorization(dir.path(), &json!({"username": "u"})).as_deref(), Some("Basic dTo="));
}

#[test]
fn a_server_without_tls_needs_none_of_the_files_for_tls_and_no_token() {
    let dir = TempDir::new().unwrap();
    let server = server();
    let no_certificate = BASE64.encode(b"-----BEGIN CERTIFICATE-----\n");
    for (field, user) in [
        ("certificate-authority-data", json!({})),
        ("x", json!({"tokenFile": "/nowhere/token"})),
        ("x", json!({"client-certificate-data": no_certificate, "client-key-data": no_certificate})),
        ("x", json!({"auth-provider": {"name": "gcp"}})),
    ] {
        let options = kubeconfig(dir.path(), &json!({"server": server.url, field: no_certificate}), &user);
        assert!(runtime().block_on(ask(options)).is_ok(), "{field} {user}");
    }
}

/// What cluster/gce writes for every node, beside `--master`.
const NO_SERVER: &str = "
users: [{name: kube-proxy, user: {token: abc}}]
clusters: [{name: local, cluster: {certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==}}]
contexts: [{name: c, context: {cluster: local, user: kube-proxy}}]
current-context: c
";

#[test]
fn beside_a_master_the_kubeconfig_may_lack_anything() {
    let dir = TempDir::new().unwrap();
    let server = server();
    for kubeconfig in [
        NO_SERVER,
        "",
        "# nothing\n",
        "null\n",
        "---\n",
        "{}",
        "clusters: [{name: c, cluster: {server: 'http://192.0.2.1'}}]\ncurrent-context: ''\n",
        "contexts: [{name: c, context: {user: u}}]\ncurrent-context: c\n",
        "contexts: [{name: c, context: {cluster: other, user: other}}]\ncurrent-context: c\n",
        "contexts: [{name: c}]\ncurrent-context: c\nclusters:\nusers: ~\n",
        "current-context: ''\n---\nkind: [\n",
        "\u{feff}current-context: ''\n",
        "current-context: x\ncurrent-context: ''\n",
    ] {
        let options = text(dir.path(), kubeconfig, Some(&server.url));
        let asked = runtime().block_on(ask(options));
        assert!(asked.is_ok(), "{kubeconfig:?}: {asked:?}");
    }
}

#[test]
fn a_server_may_lack_the_scheme() {
    let dir = TempDir::new().unwrap();
    let server = server();
    let address = server.url.trim_start_matches("http://");
    let (port, ca) = (address.rsplit(':').next().unwrap(), BASE64.encode(authority().as_bytes()));
    // clientcmd decides for http before it looks at the settings of TLS.
    for cluster in [
        json!({"server": address}),
        json!({"server": format!("{address}/")}),
        json!({"server": format!("localhost:{port}")}),
        json!({"server": format!("HTTP://{address}")}),
        json!({"server": address, "insecure-skip-tls-verify": true}),
        json!({"server": address, "certificate-authority-data": ca}),
    ] {
        let options = kubeconfig(dir.path(), &cluster, &json!({}));
        assert!(runtime().block_on(ask(options)).is_ok(), "{cluster}");
    }
    // As in Go, the user of the URL counts unless there are other credentials, and does not get into the Host header.
    let url = format!("http://me:p%40ss@{address}");
    runtime().block_on(ask(ClientOptions { master: Some(url), ..ClientOptions::default() })).unwrap();
    let headers = server.requests("services").pop().unwrap().headers;
    assert_eq!((&*headers["authorization"], &*headers["host"]), ("Basic bWU6cEBzcw==", address));
}

#[test]
fn tls_server_name_is_that_of_the_kubeconfigs_server_only() {
    let dir = TempDir::new().unwrap();
    let options = kubeconfig(dir.path(), &json!({"server": "https://192.0.2.1", "tls-server-name": "k8s"}), &json!({}));
    let name = |options| configuration(&options).unwrap().config.tls_server_name;
    assert_eq!(name(options.clone()).as_deref(), Some("k8s"));
    assert_eq!(name(ClientOptions { master: Some("https://192.0.2.2".to_owned()), ..options }), None);
}

#[test]
fn what_cannot_be_used_is_named_with_what_to_do() {
    let dir = TempDir::new().unwrap();
    let of_server = |server: &str| {
        json!({"clusters": [{"name": "c", "cluster": {"server": server}}], "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c"}}]})
        .to_string()
    };
    for (kubeconfig, words) in [
        (String::new(), "names no server; give --master, or set current-context and the server of its cluster"),
        (NO_SERVER.to_owned(), "names no server; give --master"),
        ("current-context: x".to_owned(), "there is no context \"x\", which current-context names"),
        (of_server("ftp://192.0.2.1"), "server: \"ftp://192.0.2.1\" is not a URL of http or https"),
        (of_server("http://192.0.2.1:99999"), "is not a URL of http or https"),
        (of_server("https://"), "is not a URL of http or https"),
        (of_server("https://x:6443 "), "is not a URL of http or https"),
        ("clusters: 3".to_owned(), "line 1, column 11"),
        ("users: [{name: u, user: {token: top-secret}}\nx: ]".to_owned(), "line 2, column 2"),
    ] {
        let error = runtime().block_on(ask(text(dir.path(), &kubeconfig, None))).unwrap_err();
        assert!(error.contains(words) && error.contains("cannot use kubeconfig"), "{kubeconfig:?}: {error}");
        assert!(!error.contains("top-secret"), "{error}");
    }
    let provider = json!({"auth-provider": {"name": "gcp"}});
    for (user, words) in [
        (provider, "auth-provider gcp"),
        (json!({"token": "a\nb"}), "the token has characters that no HTTP header may have"),
    ] {
        let options = kubeconfig(dir.path(), &json!({"server": "https://192.0.2.1"}), &user);
        let error = runtime().block_on(ask(options)).unwrap_err();
        assert!(error.contains(words) && !error.contains("a\nb"), "{user}: {error}");
    }
}

/// Reads the configuration, makes a client, and sends a request that has a moment to come to a connection.
async fn try_out(options: ClientOptions) -> Result<(), String> {
    let mut connection = Connection::new(options).await.map_err(|error| format!("{error:#}"))?;
    let request = Request::List(ListParams::default());
    let sent = connection.send("/api/v1/services", &request, Duration::from_millis(2)).await;
    sent.map(drop).map_err(|error| error.to_string())
}

/// Values that no field expects.
fn odd_values() -> Vec<Value> {
    let texts = [
        "",
        " ",
        "\n",
        "\0",
        "a\nb",
        "é",
        "%",
        "/",
        ".",
        "?",
        "#",
        "@",
        ":",
        "://",
        "http://",
        "https://",
        "http:///",
        "http://:1",
        "http://@",
        "http://[",
        "http://[::1",
        "http://[::1]",
        "http://[fe80::1%25lo]:1",
        "[::1]:1",
        "::1",
        "127.0.0.1:1",
        "127.0.0.1",
        "127.0.0.1:",
        ":1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:-1",
        "http://me:%zz@127.0.0.1:1",
        "http://a\u{7f}b",
        "unix:///x",
        "ftp://127.0.0.1:1",
        "https://127.0.0.1:1/a b",
        "https://127.0.0.1:1/%zz?x#y",
        "socks5://127.0.0.1:1",
        "LS0tLS0=",
        "====",
        "/dev/null",
        "/",
        "*",
    ];
    let mut values: Vec<Value> = texts.map(Value::from).into();
    values.extend([
        Value::from("x".repeat(70_000)),
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!([]),
        json!([""]),
        json!({}),
    ]);
    values
}

// A panic in a thread of the source could leave a process that looks alive (P15).
#[test]
fn no_kubeconfig_and_no_master_panics() {
    let dir = TempDir::new().unwrap();
    let runtime = runtime();
    let clusters = [
        "server",
        "certificate-authority",
        "certificate-authority-data",
        "tls-server-name",
        "proxy-url",
        "insecure-skip-tls-verify",
    ];
    let users = [
        "token",
        "tokenFile",
        "username",
        "password",
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "as",
        "as-uid",
        "as-groups",
        "as-user-extra",
        "exec",
        "auth-provider",
    ];
    let fields = clusters.map(|field| ("clusters", "cluster", field)).into_iter();
    let fields: Vec<_> = fields.chain(users.map(|field| ("users", "user", field))).collect();
    for (list, item, field) in fields {
        for value in odd_values() {
            let mut config = json!({
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true}}],
                "users": [{"name": "u", "user": {}}],
            });
            config[list][0][item][field] = value;
            let _any = runtime.block_on(try_out(text(dir.path(), config.to_string(), None)));
        }
    }
    for value in odd_values().iter().filter_map(Value::as_str) {
        let _any = runtime.block_on(try_out(text(dir.path(), "", Some(value))));
        let _any =
            runtime.block_on(try_out(ClientOptions { master: Some(value.to_owned()), ..ClientOptions::default() }));
    }
    runtime.shutdown_background();
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_bytes_of_a_kubeconfig_panic(
        changes in proptest::collection::vec((0..1000_usize, proptest::option::of(proptest::num::u8::ANY)), 0..12),
        start in proptest::option::of(proptest::sample::select(vec![&b"\xff\xfe"[..], b"\xfe\xff", b"\xef\xbb\xbf", b"\0", b"---\n"])),
    ) {
        let dir = TempDir::new().unwrap();
        let mut bytes = NO_SERVER.replace("cluster: {", "cluster: {server: 127.0.0.1:1, ").into_bytes();
        for (at, byte) in changes {
            let at = at % bytes.len();
            match byte {
                Some(byte) => bytes[at] = byte,
                None => bytes.truncate(at.max(1)),
            }
        }
        let bytes = [start.unwrap_or_default(), &*bytes].concat();
        let runtime = runtime();
        let _any = runtime.block_on(try_out(text(dir.path(), bytes, Some("127.0.0.1:1"))));
        runtime.shutdown_background();
    }
}
