//! Tests of the certificates with which the client authenticates: which ones are shown, and what happens while they are replaced.
//!
//! Go shows the certificate that is configured, whatever is in it. It wants only that the key is that of the certificate.
//!
//! rcgen makes no certificates of X.509 version 1. `certificates/version-1-client.pem` was made with these commands:
//!
//!     openssl req -new -key signed.key -subj /CN=client -out client.csr
//!     openssl x509 -req -in client.csr -signkey signed.key -days 36500 -out version-1-client.pem

use std::fs;
use std::path::Path;

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature_with_raw_key};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error as TlsError, ServerConfig, SignatureScheme,
};

use super::super::connection::Request;
use super::access::{kubeconfig, runtime};
use super::*;

const VERSION_1_CLIENT: &str = include_str!("certificates/version-1-client.pem");
const SIGNED_KEY: &str = include_str!("certificates/signed.key");

/// Accepts only a client that shows this certificate and has its key, without reading the certificate.
#[derive(Debug)]
struct Only {
    certificate: CertificateDer<'static>,
    public_key: SubjectPublicKeyInfoDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Only {
    fn new(certificate: &str, key: &str) -> Self {
        let provider = aws_lc_rs::default_provider();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let key = provider.key_provider.load_private_key(key).unwrap();
        Self {
            certificate: CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap(),
            public_key: key.public_key().unwrap().into_owned(),
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl ClientCertVerifier for Only {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        if *end_entity == self.certificate {
            return Ok(ClientCertVerified::assertion());
        }
        Err(TlsError::General("another certificate".to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(TlsError::General("TLS 1.3 is meant".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature_with_raw_key(message, &self.public_key, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Starts a server that answers clients that show this certificate. Returns its URL.
async fn serve_only(certificate: &str, key: &str) -> String {
    let own = KeyPair::generate().unwrap();
    let shown = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&own).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
    let config = config.with_client_cert_verifier(Arc::new(Only::new(certificate, key)));
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(vec![shown.der().clone()], own.into()).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // The handshake fails if the client shows another certificate.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            let _ = stream.shutdown().await;
        }
    });
    url
}

fn write(dir: &Path, name: &str, text: &str) {
    fs::write(dir.join(name), text).unwrap();
}

/// Returns options for a client that authenticates with the files `cert` and `key` of this directory.
fn with_files(dir: &Path, url: &str) -> ClientOptions {
    let cluster = json!({"server": url, "insecure-skip-tls-verify": true});
    kubeconfig(dir, &cluster, &json!({"client-certificate": "cert", "client-key": "key"}))
}

async fn asked(connection: &mut Connection) -> Result<(), String> {
    let request = Request::List(kube::api::ListParams::default());
    connection.send("/api/v1/services", &request, PATIENCE).await.map(drop).map_err(|error| error.to_string())
}

/// Returns a new certificate and its key, in PEM.
fn pair(change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["client".to_owned()]).unwrap();
    change(&mut params);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[test]
fn a_certificate_is_shown_whatever_is_in_it() {
    let (of_policy, key) = pair(|params| {
        // certificatePolicies with anyPolicy.
        let policies = vec![0x30, 0x08, 0x30, 0x06, 0x06, 0x04, 0x55, 0x1d, 0x20, 0x00];
        let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, 32], policies);
        extension.set_criticality(true);
        params.custom_extensions = vec![extension];
    });
    for (name, certificate, key) in [
        ("X.509 version 1", VERSION_1_CLIENT, SIGNED_KEY),
        ("critical certificatePolicies", of_policy.as_str(), key.as_str()),
    ] {
        let dir = TempDir::new().unwrap();
        write(dir.path(), "cert", certificate);
        write(dir.path(), "key", key);
        let outcome = runtime().block_on(async {
            let url = serve_only(certificate, key).await;
            let mut connection =
                Connection::new(with_files(dir.path(), &url)).await.map_err(|error| format!("{error:#}"))?;
            asked(&mut connection).await
        });
        assert_eq!(outcome, Ok(()), "{name}");
    }
}

// A rotation replaces the two files one after the other (P15).
#[test]
fn files_that_do_not_belong_together_yet_are_read_again() {
    let ((certificate, key), (_, other)) = (pair(|_| ()), pair(|_| ()));
    let half = &certificate[..certificate.len() / 2];
    for (name, certificate_now, key_now, words) in [
        ("the key is old", &*certificate, &*other, "do not belong together"),
        ("the key is not written yet", &certificate, "", "it holds no private key in PEM"),
        ("the certificate is not written yet", "", &key, "it holds no certificate in PEM"),
        ("half of the certificate is written", half, &key, "it is not base64"),
    ] {
        let dir = TempDir::new().unwrap();
        write(dir.path(), "cert", certificate_now);
        write(dir.path(), "key", key_now);
        runtime().block_on(async {
            let url = serve_only(&certificate, &key).await;
            let mut connection = Connection::new(with_files(dir.path(), &url)).await.expect("the start goes on");
            let error = asked(&mut connection).await.unwrap_err();
            assert!(error.starts_with("no credentials: ") && error.contains(words), "{name}: {error}");
            write(dir.path(), "cert", &certificate);
            write(dir.path(), "key", &key);
            tokio::time::timeout(PATIENCE, connection.outdated()).await.expect("the new files are noticed");
            connection.refresh().await.unwrap();
            assert_eq!(asked(&mut connection).await, Ok(()), "{name}");
        });
    }
}

#[test]
fn data_that_do_not_belong_together_end_the_start() {
    let ((certificate, _), (_, other)) = (pair(|_| ()), pair(|_| ()));
    let encode = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    let user = json!({"client-certificate-data": encode(&certificate), "client-key-data": encode(&other)});
    let dir = TempDir::new().unwrap();
    let options = kubeconfig(dir.path(), &json!({"server": "https://192.0.2.1"}), &user);
    let error = runtime().block_on(Connection::new(options)).err().map(|error| format!("{error:#}")).unwrap();
    assert!(error.contains("the client certificate and the client key do not belong together"), "{error}");
}

#[test]
fn a_source_waits_for_its_files_and_uses_them_at_once() {
    let ((certificate, key), (_, other)) = (pair(|_| ()), pair(|_| ()));
    let dir = TempDir::new().unwrap();
    write(dir.path(), "cert", &certificate);
    write(dir.path(), "key", &other);
    let (sender, url) = sync_channel(1);
    let wanted = (certificate, key.clone());
    std::thread::spawn(move || {
        runtime().block_on(async {
            sender.send(serve_only(&wanted.0, &wanted.1).await).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let url = url.recv().unwrap();
    let followed =
        start(serve(|_| vec![]), ApiOptions { client: with_files(dir.path(), &url), ..options("") }, longest_waits());
    let told =
        |followed: &Followed, words: &str| followed.counts.0.lock().unwrap().iter().any(|told| told.contains(words));
    followed.wait(|followed| told(followed, "do not belong together"));
    let attempts =
        || followed.counts.0.lock().unwrap().iter().filter(|told| told.starts_with("away from Node")).count();
    std::thread::sleep(Duration::from_secs(2));
    assert!(attempts() <= 3, "{} attempts while no file changes", attempts());
    let since = std::time::Instant::now();
    write(dir.path(), "key", &key);
    followed.wait(|followed| told(followed, "Some(200)"));
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
}
