//! Tests of how the client finds the server and authenticates: kubeconfigs, certificates, tokens, plugins.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::super::client::{Configuration, configuration, without_secrets};
use super::super::connection::Request;
use super::*;

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Writes a kubeconfig with one cluster and one user into a directory. Returns the options for a client that uses the file.
pub(super) fn kubeconfig(dir: &Path, cluster: &Value, user: &Value) -> ClientOptions {
    let file = dir.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}]
    });
    fs::write(&file, config.to_string()).unwrap();
    ClientOptions { kubeconfig: Some(file), ..ClientOptions::default() }
}

/// Requests a page of Services with these options. Returns the body of the answer.
pub(super) async fn ask(options: ClientOptions) -> Result<Vec<u8>, String> {
    let mut connection = Connection::new(options).await.map_err(|error| format!("{error:#}"))?;
    let request = Request::List(kube::api::ListParams::default());
    let answer = connection.send("/api/v1/services", &request, PATIENCE).await;
    answer
        .map_err(|error| error.to_string())?
        .read_all(1000, PATIENCE, PATIENCE)
        .await
        .map_err(|error| error.to_string())
}

// An answer that comes too slowly is not the same as one of which nothing comes.
#[test]
fn a_slow_server_is_not_called_silent() {
    let server = serve(|_| vec![Act::Head(200, ""), Act::Chunk(b"{".to_vec()), Act::Hold]);
    let options = ClientOptions { master: Some(server.url.clone()), ..ClientOptions::default() };
    let read = async |stall, patience| {
        let mut connection = Connection::new(options.clone()).await.unwrap();
        let request = Request::List(kube::api::ListParams::default());
        let mut response = connection.send("/api/v1/services", &request, PATIENCE).await.unwrap();
        response.read_all(1000, stall, patience).await.unwrap_err().to_string()
    };
    let second = Duration::from_secs(1);
    let text = runtime().block_on(read(second, second));
    assert_eq!(text, "the server is too slow: it sent only a part of its answer in 1 s");
    let text = runtime().block_on(read(second, PATIENCE));
    assert_eq!(text, "the server accepts connections, but sent nothing for 1 s");
}

/// Returns the Authorization header that the client sends for this user of a kubeconfig.
pub(super) fn authorization(dir: &Path, user: &Value) -> Option<String> {
    let server = serve(|_| reply(200, "", &json!({})));
    let options = kubeconfig(dir, &json!({"server": server.url}), user);
    runtime().block_on(ask(options)).unwrap();
    server.requests("services")[0].headers.get("authorization").cloned()
}

#[test]
fn without_any_way_to_a_server_the_error_says_what_to_do() {
    let error = runtime().block_on(ask(ClientOptions::default())).unwrap_err();
    for word in ["--kubeconfig", "clientConnection.kubeconfig", "--master", "--manifests", "ServiceAccount"] {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_kubeconfig_that_cannot_be_read_is_named() {
    let options = ClientOptions { kubeconfig: Some("/nowhere/kubeconfig".into()), ..ClientOptions::default() };
    let error = runtime().block_on(ask(options)).unwrap_err();
    assert_eq!(error, "cannot use kubeconfig /nowhere/kubeconfig: No such file or directory (os error 2)");
    let dir = TempDir::new().unwrap();
    let user = json!({"client-certificate": "gone.crt", "client-key": "gone.key"});
    let error = runtime().block_on(ask(kubeconfig(dir.path(), &json!({"server": "https://x"}), &user))).unwrap_err();
    assert!(error.contains("gone.crt") && error.matches("No such file").count() == 1, "{error}");
}

#[test]
fn a_url_takes_the_place_of_the_kubeconfigs_server() {
    let dir = TempDir::new().unwrap();
    let server = serve(|_| reply(200, "", &json!({})));
    let options = kubeconfig(dir.path(), &json!({"server": "http://192.0.2.1:1"}), &json!({"token": "t"}));
    runtime().block_on(ask(ClientOptions { master: Some(server.url.clone()), ..options })).unwrap();
    assert_eq!(server.requests("services")[0].headers["authorization"], "Bearer t");
    // The URL of a server may lack the scheme.
    let address = server.url.trim_start_matches("http://").to_owned();
    runtime().block_on(ask(ClientOptions { master: Some(address), ..ClientOptions::default() })).unwrap();
    assert_eq!(server.requests("services").len(), 2);
}

#[test]
fn credentials_leave_the_host_only_encrypted() {
    let dir = TempDir::new().unwrap();
    let withheld = |server: &str, user: &Value| {
        let options = kubeconfig(dir.path(), &json!({"server": server}), user);
        let Configuration { config, withheld, .. } = configuration(&options).unwrap();
        let auth = config.auth_info;
        assert!(!withheld || auth.token.is_none() && auth.token_file.is_none() && auth.password.is_none());
        withheld
    };
    for server in ["https://192.0.2.7:6443", "http://127.0.0.1:8001", "http://[::1]:8001", "http://localhost"] {
        assert!(!withheld(server, &json!({"token": "t"})), "{server}");
    }
    for user in [json!({"token": "t"}), json!({"tokenFile": "/t"}), json!({"username": "u", "password": "p"})] {
        assert!(withheld("http://192.0.2.7", &user), "{user}");
    }
    assert!(!withheld("http://192.0.2.7", &json!({})), "there is nothing to send");
}

#[test]
fn tokens_come_from_the_config_a_file_or_a_plugin() {
    let dir = TempDir::new().unwrap();
    assert_eq!(authorization(dir.path(), &json!({})), None);
    assert_eq!(authorization(dir.path(), &json!({"token": "a"})).as_deref(), Some("Bearer a"));

    let file = dir.path().join("token");
    fs::write(&file, "b\n").unwrap();
    assert_eq!(authorization(dir.path(), &json!({"tokenFile": file})).as_deref(), Some("Bearer b"));

    let plugin = dir.path().join("plugin");
    let version = "client.authentication.k8s.io/v1";
    let credential = json!({"apiVersion": version, "kind": "ExecCredential", "status": {"token": "c"}});
    fs::write(&plugin, format!("#!/bin/sh\necho '{credential}'\n")).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let exec = json!({"exec": {"apiVersion": version, "command": plugin, "interactiveMode": "Never"}});
    assert_eq!(authorization(dir.path(), &exec).as_deref(), Some("Bearer c"));
}

#[test]
fn credentials_are_read_again_when_the_server_refuses_them() {
    let dir = TempDir::new().unwrap();
    let (path, renewed) = (dir.path().to_owned(), Mutex::new(false));
    let server = serve(move |request| match request.headers.get("authorization").map(String::as_str) {
        Some("Bearer new") if request.resource == "nodes" => stream(vec![added(&node()), end("2")]),
        Some("Bearer new") => stream(vec![end("2")]),
        _ => {
            let mut renewed = renewed.lock().unwrap();
            if !std::mem::replace(&mut *renewed, true) {
                let text = fs::read_to_string(path.join("kubeconfig")).unwrap().replace("\"old\"", "\"new\"");
                fs::write(path.join("new"), text).unwrap();
                fs::rename(path.join("new"), path.join("kubeconfig")).unwrap();
            }
            refusal(401, "")
        }
    });
    let client = kubeconfig(dir.path(), &json!({"server": server.url}), &json!({"token": "old"}));
    start(server, ApiOptions { client, ..options("") }, Timing::default()).until("done");
}

#[test]
fn credentials_that_come_late_are_used_at_once() {
    let dir = TempDir::new().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "old").unwrap();
    let server = serve(|request| match request.headers.get("authorization").map(String::as_str) {
        Some("Bearer newer") if request.resource == "nodes" => stream(vec![added(&node()), end("2")]),
        Some("Bearer newer") => stream(vec![end("2")]),
        _ => refusal(401, ""),
    });
    let client = kubeconfig(dir.path(), &json!({"server": server.url}), &json!({"tokenFile": token}));
    let followed = start(server, ApiOptions { client, ..options("") }, longest_waits());
    let all = ["nodes", "services", "endpointslices", "servicecidrs"];
    followed.wait(|followed| all.iter().all(|kind| !followed.server.requests(kind).is_empty()));
    // After this time each kind has read the credentials again after the refusal, and waits for its next attempt.
    std::thread::sleep(Duration::from_secs(1));
    let asked = all.map(|kind| followed.server.requests(kind).len());
    fs::write(&token, "newer").unwrap();
    let since = std::time::Instant::now();
    followed.until("done");
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    let more: Vec<_> =
        all.iter().zip(asked).map(|(kind, asked)| followed.server.requests(kind).len() - asked).collect();
    assert_eq!(more, [1; 4], "only the request with the new token");
}

#[test]
fn a_plugin_does_not_run_for_each_request_that_a_server_refuses() {
    // The server refuses the credentials for 12 s, and the kind with the fewest objects tries every 2 to 3 s.
    let dir = TempDir::new().unwrap();
    let (plugin, runs) = (dir.path().join("plugin"), dir.path().join("runs"));
    let version = "client.authentication.k8s.io/v1";
    let credential = json!({"apiVersion": version, "kind": "ExecCredential", "status": {"token": "c"}});
    fs::write(&plugin, format!("#!/bin/sh\necho >> {}\necho '{credential}'\n", runs.display())).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let server = serve(|_| refusal(401, ""));
    let exec = json!({"exec": {"apiVersion": version, "command": plugin, "interactiveMode": "Never"}});
    let client = kubeconfig(dir.path(), &json!({"server": server.url}), &exec);
    let followed = start(server, ApiOptions { client, ..options("") }, Timing::default());
    std::thread::sleep(Duration::from_secs(12));
    let (runs, asked) = (fs::read(&runs).unwrap().len(), followed.server.requests("nodes").len());
    println!("{runs} runs, {asked} requests for Nodes");
    // The plugin runs for the first request, after the first refusal, and 5 s later.
    assert!((2..=3).contains(&runs) && asked >= 4, "{runs} runs, {asked} requests for Nodes");
}

/// A certificate and its key in PEM.
struct Signed {
    certificate: String,
    key: String,
}

/// A CA that signs the certificates of a server and a client.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, names: &[&str]) -> (Signed, CertificateDer<'static>, PrivateKeyDer<'static>) {
        self.sign_with(names, |_| ())
    }

    /// Does the same as `sign`, with the parameters of the certificate changed by `change`.
    fn sign_with(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> (Signed, CertificateDer<'static>, PrivateKeyDer<'static>) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let signed = Signed { certificate: certificate.pem(), key: key.serialize_pem() };
        (signed, certificate.der().clone(), key.into())
    }

    /// Returns a TLS server that demands a client certificate of this CA and shows the given certificate.
    fn acceptor(&self, (certificate, key): (CertificateDer<'static>, PrivateKeyDer<'static>)) -> TlsAcceptor {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        let der = CertificateDer::from(pem_body(&self.certificate));
        roots.add(der).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_client_cert_verifier(clients.unwrap());
        TlsAcceptor::from(Arc::new(config.with_single_cert(vec![certificate], key).unwrap()))
    }
}

/// Returns the bytes of the certificate in a PEM text.
fn pem_body(text: &str) -> Vec<u8> {
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    CertificateDer::from_pem_slice(text.as_bytes()).unwrap().to_vec()
}

/// Returns the result of a request to `host`, at which a server has a certificate for `names`.
fn ask_by_tls(host: &str, names: &[&str]) -> Result<Vec<u8>, String> {
    let authority = Authority::new();
    let (_, certificate, key) = authority.sign(names);
    ask_server(host, &authority, &authority.certificate, (certificate, key))
}

/// Returns the result of a request to `host` by a client that trusts `trusted`, where a server shows the certificate `shown`.
fn ask_server(
    host: &str,
    authority: &Authority,
    trusted: &str,
    shown: (CertificateDer<'static>, PrivateKeyDer<'static>),
) -> Result<Vec<u8>, String> {
    let dir = TempDir::new().unwrap();
    let (signed, ..) = authority.sign(&["client"]);
    for (name, text) in [("ca", trusted), ("cert", &signed.certificate), ("key", &signed.key)] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{host}:{}", listener.local_addr().unwrap().port());
        let acceptor = authority.acceptor(shown);
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            // The handshake fails if the client refuses the certificate.
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            let _ = stream.shutdown().await;
        });
        let cluster = json!({"server": server, "certificate-authority": "ca"});
        let user = json!({"client-certificate": "cert", "client-key": "key"});
        ask(kubeconfig(dir.path(), &cluster, &user)).await
    })
}

#[test]
fn tls_servers_are_known_by_name_and_by_address() {
    assert_eq!(ask_by_tls("localhost", &["localhost"]).as_deref(), Ok(&b"ok"[..]));
    assert_eq!(ask_by_tls("127.0.0.1", &["127.0.0.1"]).as_deref(), Ok(&b"ok"[..]));
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let error = ask_by_tls("localhost", &["kubernetes"]).unwrap_err();
    assert!(error.contains("kubernetes") && error.contains("use one of these names"), "{error}");
}

#[test]
fn certificates_that_do_not_fit_are_explained() {
    let ask = |authority: &Authority, trusted: &str, (certificate, key)| {
        ask_server("localhost", authority, trusted, (certificate, key)).unwrap_err()
    };
    let (ours, other) = (Authority::new(), Authority::new());
    let (_, certificate, key) = ours.sign(&["localhost"]);
    let error = ask(&ours, &other.certificate, (certificate, key));
    assert!(error.contains("has to be the CA of this cluster"), "{error}");

    let (_, certificate, key) = ours.sign_with(&["localhost"], |params| params.not_after = date_time_ymd(2020, 1, 1));
    let error = ask(&ours, &ours.certificate, (certificate, key));
    assert!(error.contains("expired") && error.contains("certs renew"), "{error}");
}

#[test]
fn a_server_that_cannot_be_reached_is_explained() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let plain = serve(|_| reply(200, "", &json!({})));
    let refusing = |status| serve(move |_| refusal(status, ""));
    let (refused, forbidden, lost) = (refusing(401), refusing(403), refusing(404));
    for (url, words) in [
        (format!("http://{closed}"), "refused"),
        ("https://no-such-name.invalid:6443".to_owned(), "cannot be resolved"),
        (plain.url.replace("http:", "https:"), "it does not speak TLS"),
        (refused.url.clone(), "does not accept the credentials"),
        (forbidden.url.clone(), "system:node-proxier"),
        (lost.url.clone(), "is this the URL of an API server?"),
    ] {
        let error = runtime()
            .block_on(ask(ClientOptions { master: Some(url.clone()), ..ClientOptions::default() }))
            .unwrap_err();
        assert!(error.contains(words), "{url}: {error}");
        for part in error.split(": ") {
            assert_eq!(error.matches(part).count(), 1, "{part} is there twice: {error}");
        }
    }
}

#[test]
fn a_proxy_that_does_not_lead_to_the_server_is_named_with_what_to_check() {
    let refusing = |status| serve(move |_| vec![Act::Head(status, ""), Act::End]);
    let dir = TempDir::new().unwrap();
    for (proxy, words) in [
        (refusing(403), "answered 403 Forbidden; it has to allow CONNECT"),
        (refusing(407), "answered 407 Proxy Authentication Required; it needs a user and a password"),
        (refusing(502), "answered 502 Bad Gateway; it has to allow CONNECT to the API server and reach it"),
        (serve(|_| vec![]), "; does the proxy run, is this its address"),
        (serve(|_| vec![Act::Hold]), "gave no connection in time; does the proxy run"),
    ] {
        let cluster =
            json!({"server": "https://192.0.2.1:6443", "proxy-url": proxy.url.replace("http://", "http://me:secret@")});
        let error = runtime().block_on(ask(kubeconfig(dir.path(), &cluster, &json!({})))).unwrap_err();
        println!("{error}");
        assert!(error.contains(&format!("the proxy {} (proxy-url of the kubeconfig)", proxy.url)), "{error}");
        assert!(error.contains(words) && !error.contains("secret"), "{error}");
        assert_eq!(proxy.requests("192.0.2.1:6443").len(), 1, "it was asked for the server");
    }
}

#[test]
fn a_server_that_accepts_and_does_not_speak_tls_is_given_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let error = runtime().block_on(ask(ClientOptions { master: Some(url), ..ClientOptions::default() })).unwrap_err();
    assert!(error.contains("no connection in time"), "{error}");
}

#[test]
fn a_url_in_a_message_holds_no_password() {
    for (url, shown) in [
        ("https://me:secret@k8s:6443/", "https://k8s:6443"),
        ("https://[fd00::1]:6443/path/?token=secret", "https://[fd00::1]:6443/path"),
        ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
    ] {
        assert_eq!(without_secrets(url), shown);
    }
}

#[test]
fn a_configuration_that_cannot_be_read_ends_the_process() {
    let client = ClientOptions { kubeconfig: Some("/nowhere/kubeconfig".into()), ..ClientOptions::default() };
    let server = serve(|_| Vec::new());
    let mut followed = start(server, ApiOptions { client, ..options("") }, Timing::default());
    let failure = runtime().block_on(async { tokio::time::timeout(PATIENCE, followed.failures.next()).await }).unwrap();
    assert!(format!("{failure:#}").contains("/nowhere/kubeconfig"), "{failure:#}");
}
