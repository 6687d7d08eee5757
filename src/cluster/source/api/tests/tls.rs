//! Tests which certificates of servers and clients are accepted, compared with upstream's behaviour for the same files.
//!
//! Upstream's behaviour is that of Go's `crypto/tls` and `crypto/x509`. For some cases it was found by running Go, for others by reading
//! Go's source code; these tests do not run Go.
//!
//! `certificates/` has files that rcgen cannot make, valid for a hundred years. They were made with these commands, with
//! `S=/CN=localhost`, and `E` a file of the lines `basicConstraints=CA:FALSE` and `subjectAltName=DNS:localhost,IP:127.0.0.1`:
//!
//!     openssl req -x509 -newkey rsa:1024 -nodes -days 36500 -subj $S -addext basicConstraints=critical,CA:FALSE \
//!         -addext subjectAltName=DNS:localhost -out rsa-1024-server.pem
//!     openssl req -x509 -newkey rsa:1024 -nodes -days 36500 -subj '/CN=short authority' -keyout ca.key -out rsa-1024-authority.pem
//!     openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj $S -keyout signed.key -out signed.csr
//!     openssl x509 -req -in signed.csr -CA rsa-1024-authority.pem -CAkey ca.key -days 36500 -extfile E -out rsa-1024-signed.pem
//!     openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=old authority' -keyout v1.key -out v1.csr
//!     openssl x509 -req -in v1.csr -signkey v1.key -days 36500 -out version-1-authority.pem
//!     openssl x509 -req -in signed.csr -CA version-1-authority.pem -CAkey v1.key -days 36500 -extfile E -out version-1-signed.pem
//!     openssl ecparam -name prime256v1 -genkey -noout -out ec-p256-sec1.key
//!     openssl ecparam -name secp521r1 -genkey -noout -out ec-p521-sec1.key
//!     openssl genrsa -traditional -out rsa-2048-pkcs1.key 2048

use std::fs;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ECDSA_P521_SHA512, PKCS_ED25519, PKCS_RSA_SHA256, RsaKeySize,
    SignatureAlgorithm, date_time_ymd,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::access::{ask, kubeconfig, runtime};
use super::*;

const RSA_1024_SERVER: &str = include_str!("certificates/rsa-1024-server.pem");
const RSA_1024_AUTHORITY: &str = include_str!("certificates/rsa-1024-authority.pem");
const RSA_1024_SIGNED: &str = include_str!("certificates/rsa-1024-signed.pem");
const VERSION_1_AUTHORITY: &str = include_str!("certificates/version-1-authority.pem");
const VERSION_1_SIGNED: &str = include_str!("certificates/version-1-signed.pem");
const SIGNED_KEY: &str = include_str!("certificates/signed.key");
/// Keys in the formats that tools of a cluster write: kubeadm writes RSA keys in PKCS#1; Go programs and openssl write ECDSA keys in SEC1.
const FORMS: [(&str, &str, &str); 3] = [
    ("P-256", "EC PRIVATE KEY", include_str!("certificates/ec-p256-sec1.key")),
    ("P-521", "EC PRIVATE KEY", include_str!("certificates/ec-p521-sec1.key")),
    ("RSA 2048", "RSA PRIVATE KEY", include_str!("certificates/rsa-2048-pkcs1.key")),
];

/// A certificate and its key in PEM.
#[derive(Clone)]
struct Pair {
    certificate: String,
    key: String,
}

/// A CA that signs certificates.
struct Authority {
    pair: Pair,
    issuer: Issuer<'static, KeyPair>,
}

fn algorithm(kind: &str) -> &'static SignatureAlgorithm {
    match kind {
        "P-256" => &PKCS_ECDSA_P256_SHA256,
        "P-384" => &PKCS_ECDSA_P384_SHA384,
        "P-521" => &PKCS_ECDSA_P521_SHA512,
        "Ed25519" => &PKCS_ED25519,
        _ => &PKCS_RSA_SHA256,
    }
}

/// Returns a new key of this kind, such as `RSA 2048`.
fn key(kind: &str) -> KeyPair {
    let algorithm = algorithm(kind);
    match kind {
        "RSA 2048" => KeyPair::generate_rsa_for(algorithm, RsaKeySize::_2048).unwrap(),
        "RSA 4096" => KeyPair::generate_rsa_for(algorithm, RsaKeySize::_4096).unwrap(),
        _ => KeyPair::generate_for(algorithm).unwrap(),
    }
}

fn params(names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
    let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "test");
    change(&mut params);
    params
}

fn is_ca(params: &mut CertificateParams) {
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
}

/// Returns a self-signed certificate for these names.
fn alone(names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
    let key = key("P-256");
    Pair { certificate: params(names, change).self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

impl Authority {
    fn new(kind: &str) -> Self {
        Self::with(kind, |_| ())
    }

    fn with(kind: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let key = key(kind);
        let params = params(&[], |params| {
            is_ca(params);
            params.distinguished_name.push(DnType::CommonName, "authority");
            change(params);
        });
        let pair = Pair { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() };
        Self { pair, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, kind: &str, names: &[&str]) -> Pair {
        self.sign_with(kind, names, |_| ())
    }

    fn sign_with(&self, kind: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let key = key(kind);
        let certificate = params(names, change).signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }

    /// Returns an intermediate CA whose certificate this CA signed.
    fn below(&self) -> Self {
        let key = key("P-256");
        let params = params(&[], |params| {
            is_ca(params);
            params.distinguished_name.push(DnType::CommonName, "intermediate");
        });
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Self { pair: Pair { certificate, key: key.serialize_pem() }, issuer: Issuer::new(params, key) }
    }
}

/// The expected result of a connection.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// This program and upstream accept the certificate.
    Accepted,
    /// This program and upstream refuse the certificate. This program's error contains these words.
    Refused(&'static str),
    /// Only upstream accepts the certificate. This program's error contains these words.
    OnlyUpstream(&'static str),
    /// Only this program accepts the certificate.
    OnlyOurs,
}
use Outcome::{Accepted, OnlyOurs, OnlyUpstream, Refused};

struct Case {
    name: String,
    /// The CA file.
    trusted: String,
    /// The certificates that the server shows, in one PEM text, and the server's key.
    server: Pair,
    client: Option<Pair>,
    host: &'static str,
    versions: Vec<&'static SupportedProtocolVersion>,
    outcome: Outcome,
}

impl Case {
    fn new(name: impl Into<String>, trusted: &str, server: &Pair, outcome: Outcome) -> Self {
        Self {
            name: name.into(),
            trusted: trusted.to_owned(),
            server: server.clone(),
            client: None,
            host: "localhost",
            versions: vec![&TLS12, &TLS13],
            outcome,
        }
    }
}

/// Shows a certificate without a check of its key, so that clients are tested with certificates that a rustls server would refuse.
#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

fn ders(text: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(text.as_bytes()).map(Result::unwrap).collect()
}

fn acceptor(case: &Case, clients: &Authority) -> TlsAcceptor {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(ders(&clients.pair.certificate).remove(0)).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = if case.client.is_some() { verifier } else { verifier.allow_unauthenticated() };
    let key = PrivateKeyDer::from_pem_slice(case.server.key.as_bytes()).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let shown = Shown(Arc::new(CertifiedKey::new(ders(&case.server.certificate), key)));
    let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&case.versions).unwrap();
    TlsAcceptor::from(Arc::new(
        config.with_client_cert_verifier(verifier.build().unwrap()).with_cert_resolver(Arc::new(shown)),
    ))
}

/// Returns the result of a request in this case: the body, or the error.
fn outcome(case: &Case, clients: &Authority) -> Result<Vec<u8>, String> {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("ca"), &case.trusted).unwrap();
    let mut user = json!({});
    if let Some(client) = &case.client {
        fs::write(dir.path().join("cert"), &client.certificate).unwrap();
        fs::write(dir.path().join("key"), &client.key).unwrap();
        user = json!({"client-certificate": "cert", "client-key": "key"});
    }
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}:{}", case.host, listener.local_addr().unwrap().port());
        let acceptor = acceptor(case, clients);
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            // The handshake fails if the client refuses the certificate.
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            let _ = stream.shutdown().await;
        });
        ask(kubeconfig(dir.path(), &json!({"server": url, "certificate-authority": "ca"}), &user)).await
    })
}

fn check(cases: &[Case], clients: &Authority) {
    let mut wrong = Vec::new();
    for case in cases {
        let outcome = outcome(case, clients);
        let as_wanted = match (&outcome, case.outcome) {
            (Ok(body), Accepted | OnlyOurs) => body == b"ok",
            (Err(error), Refused(words) | OnlyUpstream(words)) => error.contains(words),
            _ => false,
        };
        println!("{}: {:?}", case.name, outcome.as_ref().map(|_| "accepted"));
        if !as_wanted {
            wrong.push(format!("{}: {:?} wanted, {outcome:?} found", case.name, case.outcome));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const KINDS: [&str; 6] = ["P-256", "P-384", "P-521", "Ed25519", "RSA 2048", "RSA 4096"];

#[test]
fn keys_of_each_kind_are_accepted_of_servers_authorities_and_clients() {
    let ours = Authority::new("P-256");
    let good = ours.sign("P-256", &["localhost"]);
    let trusted = &ours.pair.certificate;
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.push(Case::new(format!("server {kind}"), trusted, &ours.sign(kind, &["localhost"]), Accepted));
        let authority = Authority::new(kind);
        let server = authority.sign("P-256", &["localhost"]);
        cases.push(Case::new(format!("CA {kind}"), &authority.pair.certificate, &server, Accepted));
        let client = Some(ours.sign(kind, &["client"]));
        cases.push(Case { client, ..Case::new(format!("client {kind}"), trusted, &good, Accepted) });
    }
    check(&cases, &ours);
}

#[test]
fn keys_of_clients_may_have_each_form_that_programs_write() {
    let ours = Authority::new("P-256");
    let good = ours.sign("P-256", &["localhost"]);
    let cases = FORMS.map(|(kind, form, text)| {
        assert!(text.contains(&format!("BEGIN {form}")), "{text}");
        let der = PrivateKeyDer::from_pem_slice(text.as_bytes()).unwrap();
        let key = KeyPair::from_der_and_sign_algo(&der, algorithm(kind)).unwrap();
        let certificate = params(&["client"], |_| ()).signed_by(&key, &ours.issuer).unwrap().pem();
        // openssl writes the parameters of the curve in front of the key.
        let before = "-----BEGIN EC PARAMETERS-----\nBgUrgQQAIw==\n-----END EC PARAMETERS-----\n";
        let texts = [text.to_owned(), text.replace('\n', "\r\n"), format!("{before}{text}")];
        texts.map(|key| {
            let client = Some(Pair { certificate: certificate.clone(), key });
            Case { client, ..Case::new(format!("{kind}, {form}"), &ours.pair.certificate, &good, Accepted) }
        })
    });
    check(cases.as_flattened(), &ours);
}

#[test]
fn rsa_keys_of_1024_bits_are_refused_with_the_reason() {
    let ours = Authority::new("P-256");
    let good = ours.sign("P-256", &["localhost"]);
    let shown = |certificate: &str| Pair { certificate: certificate.to_owned(), key: SIGNED_KEY.to_owned() };
    const WORDS: &str = "its RSA key has 1024 bits";
    let server = Case::new("server", RSA_1024_SERVER, &shown(RSA_1024_SERVER), OnlyUpstream(WORDS));
    let authority = Case::new("CA", RSA_1024_AUTHORITY, &shown(RSA_1024_SIGNED), OnlyUpstream(WORDS));
    let client = Some(shown(RSA_1024_SERVER));
    let client = Case { client, ..Case::new("client", &ours.pair.certificate, &good, OnlyUpstream(WORDS)) };
    check(&[server, authority, client], &ours);
}

#[test]
fn what_cannot_be_used_in_a_ca_file_is_skipped() {
    let ours = Authority::new("P-256");
    let good = ours.sign("P-256", &["localhost"]);
    let trusted = &ours.pair.certificate;
    let no_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let no_base64 = "-----BEGIN CERTIFICATE-----\n***\n-----END CERTIFICATE-----\n";
    let expired = Authority::with("P-256", |params| params.not_after = date_time_ymd(2020, 1, 1)).pair.certificate;
    let cases = [
        ("no certificate first", format!("{no_certificate}{trusted}"), Accepted),
        ("no certificate last", format!("{trusted}{no_certificate}"), Accepted),
        ("no base64 first", format!("{no_base64}{trusted}"), Accepted),
        ("text around", format!("# our CA\n{trusted}and so on\n"), Accepted),
        ("lines end as on Windows", trusted.replace('\n', "\r\n"), Accepted),
        ("the same twice", format!("{trusted}{trusted}"), Accepted),
        ("a key beside it", format!("{}{trusted}", ours.pair.key), Accepted),
        ("an expired CA beside it", format!("{expired}{trusted}"), Accepted),
        ("nothing", String::new(), Refused("it holds no certificate in PEM")),
        ("only text", "text\n".to_owned(), Refused("it holds no certificate in PEM")),
        (
            "only what cannot be used",
            no_certificate.repeat(2),
            Refused("no certificate that can be used; certificate 1: "),
        ),
    ];
    let cases = cases.map(|(name, trusted, outcome)| Case::new(name, &trusted, &good, outcome));
    check(&cases, &ours);
}

#[test]
fn chains_are_followed_as_by_go() {
    let ours = Authority::new("P-256");
    let below = ours.below();
    let leaf = below.sign("P-256", &["localhost"]);
    let (root, intermediate) = (&ours.pair.certificate, &below.pair.certificate);
    let whole = Pair { certificate: format!("{}{intermediate}", leaf.certificate), key: leaf.key.clone() };
    let of_ca = ours.sign_with("P-256", &["localhost"], is_ca);
    let old = Authority::with("P-256", |params| params.not_after = date_time_ymd(2020, 1, 1));
    let version_1 = Pair { certificate: VERSION_1_SIGNED.to_owned(), key: SIGNED_KEY.to_owned() };
    const STRANGER: &str = "has to be the CA of this cluster";
    let cases = [
        Case::new("the intermediate is sent", root, &whole, Accepted),
        Case::new("the intermediate is not sent", root, &leaf, Refused(STRANGER)),
        Case::new("the intermediate is in the CA file", &format!("{root}{intermediate}"), &leaf, Accepted),
        Case::new("only the intermediate is in the CA file", intermediate, &leaf, Accepted),
        Case::new("another CA", &Authority::new("P-256").pair.certificate, &leaf, Refused(STRANGER)),
        Case::new("a CA of X.509 version 1", VERSION_1_AUTHORITY, &version_1, Accepted),
        Case::new("a CA that has expired", &old.pair.certificate, &old.sign("P-256", &["localhost"]), OnlyOurs),
        Case::new("a server that shows the certificate of a CA", root, &of_ca, OnlyUpstream("the certificate of a CA")),
    ];
    check(&cases, &ours);
}

#[test]
fn a_servers_certificate_may_be_its_own_ca() {
    let ours = Authority::new("P-256");
    let leaf = ours.sign("P-256", &["localhost"]);
    let itself = |name: &str, pair: &Pair, outcome| Case::new(name, &pair.certificate, pair, outcome);
    let own = alone(&["localhost"], is_ca);
    let of_year = |begin, end| {
        alone(&["localhost"], move |params| {
            is_ca(params);
            params.not_before = date_time_ymd(begin, 1, 1);
            params.not_after = date_time_ymd(end, 1, 1);
        })
    };
    let purpose = |purpose| {
        alone(&["localhost"], move |params| {
            is_ca(params);
            params.extended_key_usages = vec![purpose];
        })
    };
    let other = alone(&["localhost"], is_ca);
    // The certificate has the same names and CA flag as the trusted certificate, but it is a different certificate, so it is refused.
    let strange =
        Case::new("another one that is its own CA", &other.certificate, &own, Refused("the certificate of a CA"));
    let stolen = Case::new(
        "trusted, but shown without its key",
        &own.certificate,
        &Pair { key: other.key.clone(), ..own.clone() },
        Refused(""),
    );
    let cases = [
        itself("signed by a CA that is not in the file", &leaf, Accepted),
        itself("self-signed", &alone(&["localhost"], |_| ()), Accepted),
        itself("self-signed, and a CA", &own, Accepted),
        Case::new("beside another", &format!("{}{}", other.certificate, own.certificate), &own, Accepted),
        itself("expired", &of_year(2019, 2020), Refused("certs renew")),
        itself("not valid yet", &of_year(2090, 2091), Refused("clock right")),
        itself("for another name", &alone(&["kubernetes"], is_ca), Refused("use one of these names")),
        itself("for servers", &purpose(ExtendedKeyUsagePurpose::ServerAuth), Accepted),
        itself("for clients", &purpose(ExtendedKeyUsagePurpose::ClientAuth), Refused("not one for servers")),
        strange,
        stolen,
    ];
    check(&cases, &ours);
}

#[test]
fn names_and_versions_are_those_of_go() {
    let ours = Authority::new("P-256");
    let trusted = &ours.pair.certificate;
    let named = |names: &[&str]| ours.sign("P-256", names);
    let at = |host, case: Case| Case { host, ..case };
    let of = |versions, name| Case { versions, ..Case::new(name, trusted, &named(&["localhost"]), Accepted) };
    const NAMES: &str = "use one of these names";
    let common_name =
        ours.sign_with("P-256", &[], |params| params.distinguished_name.push(DnType::CommonName, "localhost"));
    let purpose =
        |purpose| ours.sign_with("P-256", &["localhost"], |params| params.extended_key_usages = vec![purpose]);
    let clients = purpose(ExtendedKeyUsagePurpose::ClientAuth);
    let cases = [
        at("127.0.0.1", Case::new("an address", trusted, &named(&["127.0.0.1"]), Accepted)),
        at(
            "127.0.0.1",
            Case::new("an address, but the certificate has a name", trusted, &named(&["localhost"]), Refused(NAMES)),
        ),
        Case::new("a name, but the certificate has an address", trusted, &named(&["127.0.0.1"]), Refused(NAMES)),
        Case::new("only the common name", trusted, &common_name, Refused("not valid for name")),
        Case::new("for servers", trusted, &purpose(ExtendedKeyUsagePurpose::ServerAuth), Accepted),
        Case::new("for clients", trusted, &clients, Refused("not one for servers")),
        of(vec![&TLS12], "TLS 1.2"),
        of(vec![&TLS13], "TLS 1.3"),
    ];
    check(&cases, &ours);
}
