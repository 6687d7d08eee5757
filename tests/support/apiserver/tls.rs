//! Makes certificates: an authority, certificates that it signs, and a TLS server that accepts them.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(crate) struct Signed {
    /// The certificate.
    pub(crate) certificate: String,
    /// The certificate's private key.
    pub(crate) key: String,
}

/// A certificate authority.
pub(crate) struct Authority {
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new authority.
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are good names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.self_signed(&key).expect("a certificate can be made");
        Self { certificate: certificate.der().clone(), pem: certificate.pem(), issuer: Issuer::new(params, key) }
    }

    /// Returns the authority's certificate in PEM.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Makes the certificate of a user.
    pub(crate) fn user(&self, name: &str) -> Signed {
        let (certificate, key) = self.sign(name, &[]);
        Signed { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Makes the TLS settings of a server at these names and addresses. Users may show a certificate of this authority, and no other.
    pub(crate) fn server(&self, names: &[&str]) -> TlsAcceptor {
        let (certificate, key) = self.sign("kube-apiserver", names);
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key of rcgen is one for rustls");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("an own certificate is a good one");
        let users = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let users = users.allow_unauthenticated().build().expect("there is an authority");
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("the provider has the usual versions").with_client_cert_verifier(users);
        let config = config.with_single_cert(vec![certificate.der().clone()], key).expect("the key belongs to it");
        TlsAcceptor::from(Arc::new(config))
    }

    fn sign(&self, common_name: &str, names: &[&str]) -> (rcgen::Certificate, KeyPair) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names and addresses of a test");
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().expect("a key can be made");
        (params.signed_by(&key, &self.issuer).expect("an authority can sign"), key)
    }
}
