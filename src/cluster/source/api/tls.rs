//! Makes the settings of TLS connections to the API server: the trusted CAs and the client certificate.
//!
//! The module takes the CA, the client certificate and its key from the configuration, and returns settings for rustls. Like Go's
//! `crypto/x509`, it skips a certificate of the CA file that cannot be used, and, unlike rustls, it accepts a server whose certificate is
//! itself in the CA file. `deploy/COMPATIBILITY.md` says where it differs from Go.
//!
//! Invariants: the name and the period of validity of a server's certificate are always checked, except with `insecure-skip-tls-verify`. A
//! CA file without a usable certificate is an error. No error text contains a key.

use std::fmt;
use std::fs;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use kube::config::{AuthInfo, Config};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use secrecy::ExposeSecret;

use super::certificate::{self, base64};
use super::kubeconfig::NotYet;

/// The usable and the skipped certificates of a CA file.
#[derive(Clone, Debug, Default)]
pub(super) struct Authorities {
    /// The certificates that can be used.
    pub(super) trusted: Vec<CertificateDer<'static>>,
    /// For each certificate that cannot be used: its number in the file, and the reason.
    pub(super) skipped: Vec<String>,
}

impl Authorities {
    /// Reads the certificates of a PEM text; other text is ignored.
    ///
    /// # Errors
    /// Fails if the text has no certificate that can be used.
    pub(super) fn read(text: &[u8]) -> Result<Self> {
        let mut found = Self::default();
        for (n, certificate) in certificate::blocks(&String::from_utf8_lossy(text)).enumerate() {
            let checked = certificate.context("it is not base64").and_then(|bytes| {
                RootCertStore::empty()
                    .add(CertificateDer::from(bytes.as_slice()))
                    .map_err(|error| anyhow!("{error}"))?;
                Ok(CertificateDer::from(bytes))
            });
            match checked {
                Ok(certificate) => found.trusted.push(certificate),
                Err(error) => found.skipped.push(format!("certificate {}: {error:#}", n + 1)),
            }
        }
        match found.skipped.first() {
            _ if !found.trusted.is_empty() => Ok(found),
            Some(why) => bail!("it holds no certificate that can be used; {why}"),
            None => bail!("it holds no certificate in PEM"),
        }
    }

    /// Returns the CA certificates of the system that can be used.
    fn of_system() -> Vec<CertificateDer<'static>> {
        let mut store = RootCertStore::empty();
        let certificates = rustls_native_certs::load_native_certs().certs;
        certificates.into_iter().filter(|certificate| store.add(certificate.clone()).is_ok()).collect()
    }
}

/// Returns the settings for the server of this configuration. If the configuration has a CA, its `root_cert` must contain only certificates
/// from [`Authorities`]; without one the CAs of the system are trusted.
///
/// # Errors
/// Returns [`NotYet`] if the CA file is empty, and for the reasons of [`identity`]. Fails if the client certificate or its key cannot be used,
/// or if no certificate is trusted.
pub(super) fn for_server(config: &Config) -> Result<ClientConfig> {
    let trusted = match &config.root_cert {
        Some(certificates) if certificates.is_empty() && !config.accept_invalid_certs => {
            return Err(
                NotYet("the certificate-authority file is empty: it holds no certificate in PEM".to_owned()).into()
            );
        }
        Some(certificates) => certificates.iter().map(|bytes| CertificateDer::from(bytes.clone())).collect(),
        None => Authorities::of_system(),
    };
    settings(config, trusted)
}

/// Returns the settings for an HTTPS proxy on the way to the server. They also trust the system's CAs, because an HTTPS proxy is often not
/// part of the cluster.
///
/// # Errors
/// Fails for the same reasons as [`for_server`].
pub(super) fn for_proxy(config: &Config) -> Result<ClientConfig> {
    let given = config.root_cert.iter().flatten().map(|bytes| CertificateDer::from(bytes.clone()));
    settings(config, given.chain(Authorities::of_system()).collect())
}

fn settings(config: &Config, trusted: Vec<CertificateDer<'static>>) -> Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let verifier: Arc<dyn ServerCertVerifier> = if config.accept_invalid_certs {
        Arc::new(Unchecked)
    } else {
        Arc::new(Verifier::new(trusted, Arc::clone(&provider))?)
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    Ok(match identity(&config.auth_info, &provider)? {
        // `with_client_auth_cert` of rustls would refuse a certificate that it cannot check, although only the server has to check it.
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => builder.with_no_client_auth(),
    })
}

/// Returns the client's certificate and key, if the configuration has them.
///
/// # Errors
/// Returns [`NotYet`] if both are files and cannot be used, because perhaps only one of them has been replaced so far. Fails also if both
/// cannot be used and are not files, if a file cannot be read, or if one of the two is missing.
fn identity(auth: &AuthInfo, provider: &CryptoProvider) -> Result<Option<CertifiedKey>> {
    let key_data = auth.client_key_data.as_ref().map(ExposeSecret::expose_secret);
    let certificate = read(auth.client_certificate_data.as_deref(), auth.client_certificate.as_deref());
    let certificate = certificate.context("cannot read the client certificate")?;
    let key = read(key_data, auth.client_key.as_deref()).context("cannot read the client key")?;
    let (certificate, key) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) => return Ok(None),
        (Some(_), None) => bail!("the user of the kubeconfig has a client certificate, but no key"),
        (None, Some(_)) => bail!("the user of the kubeconfig has a client key, but no certificate"),
    };
    let are_files = auth.client_certificate_data.is_none() && auth.client_key_data.is_none();
    match certified_key(&certificate, &key, provider) {
        Err(error) if are_files => Err(NotYet(format!("{error:#}")).into()),
        identity => identity.map(Some),
    }
}

/// Returns a certificate with its issuers, and its key, from PEM.
fn certified_key(certificate: &[u8], key: &[u8], provider: &CryptoProvider) -> Result<CertifiedKey> {
    let blocks = certificate::blocks(&String::from_utf8_lossy(certificate)).collect::<Option<Vec<_>>>();
    let chain = blocks.context("client certificate: it is not base64")?;
    let Some(first) = chain.first() else { bail!("client certificate: it holds no certificate in PEM") };
    if let Some(bits) = weak_bits(first) {
        bail!("client certificate: {}", WeakKey(bits));
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| anyhow!("client key: it holds no private key in PEM without a password"))?;
    let key = provider.key_provider.load_private_key(key).context("client key")?;
    let belongs = key.public_key().map_or(Some(true), |public| certificate::has_key(first, &public));
    if !belongs.context("client certificate: it cannot be read")? {
        bail!("the client certificate and the client key do not belong together");
    }
    Ok(CertifiedKey::new(chain.into_iter().map(CertificateDer::from).collect(), key))
}

/// The shortest RSA key that is accepted, in bits, because rustls verifies no signature of a shorter one; Go accepts 1024.
const LEAST_RSA_BITS: usize = 2048;

/// The error that a certificate has an RSA key that is too short. Contains the length in bits.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its RSA key has {0} bits, which is too short to be safe: at least {LEAST_RSA_BITS} are needed")]
pub(super) struct WeakKey(usize);

/// Writes the same text as `Display`, because rustls prints errors of applications with `Debug`.
impl fmt::Debug for WeakKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the length of a certificate's RSA key, if it is too short.
fn weak_bits(certificate: &[u8]) -> Option<usize> {
    certificate::facts(certificate)?.rsa_bits.filter(|bits| *bits < LEAST_RSA_BITS)
}

/// Returns the decoded base64 `data`, or the content of `file` if there is no data; `None` without both.
fn read(data: Option<&str>, file: Option<&str>) -> Result<Option<Vec<u8>>> {
    match (data, file) {
        (Some(data), _) => Ok(Some(base64(data).context("its data is not base64")?)),
        (None, Some(file)) => Ok(Some(fs::read(file).with_context(|| format!("cannot read file {file}"))?)),
        (None, None) => Ok(None),
    }
}

/// Accepts a server's certificate if rustls accepts it, or if it is itself in the CA file and passes [`check_trusted`]. Accepts none with a
/// short RSA key.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn new(trusted: Vec<CertificateDer<'static>>, provider: Arc<CryptoProvider>) -> Result<Self> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(trusted.iter().cloned());
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider);
        let chains = builder.build().context("no CA to trust: the kubeconfig names none, and the system has none")?;
        Ok(Self { chains, trusted })
    }
}

/// Checks a server's certificate that is itself in the CA file, as Go does: the name, the period of validity, and whether servers may use
/// it. Does not check the signature, because the certificate itself is trusted.
fn check_trusted(certificate: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    let facts = certificate::facts(certificate).ok_or(CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < facts.begin.as_second() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > facts.end.as_second() {
        return Err(CertificateError::Expired.into());
    }
    if !facts.is_for_servers {
        return Err(CertificateError::InvalidPurpose.into());
    }
    Ok(())
}

fn weak(bits: usize) -> rustls::Error {
    CertificateError::Other(OtherError(Arc::new(WeakKey(bits)))).into()
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // Always check the key of this certificate, because it signs the handshake.
        if let Some(bits) = weak_bits(end_entity) {
            return Err(weak(bits));
        }
        let outcome = self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let Err(error) = outcome else { return outcome };
        if self.trusted.contains(end_entity) {
            return check_trusted(end_entity, server_name, now).map(|()| ServerCertVerified::assertion());
        }
        let mut signers = intermediates.iter().chain(&self.trusted);
        match error {
            rustls::Error::InvalidCertificate(CertificateError::BadSignature) => {
                Err(signers.find_map(|signer| weak_bits(signer)).map_or(error, weak))
            }
            error => Err(error),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Accepts any server, for `insecure-skip-tls-verify`.
#[derive(Debug)]
struct Unchecked;

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
