//! When certificates end: the server's, as it shows it, and the client's of the kubeconfig.
//!
//! Takes the configuration of a client, gives times. One field of a certificate is read, for which a library of ten crates would be
//! needed; rustls, which checks the certificates, does not give it. Bytes that are no certificate give nothing.

use std::fs;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64;
use jiff::Timestamp;
use kube::client::ConfigExt as _;
use kube::config::{AuthInfo, Config};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::client::host_and_port;

/// The end of the server's certificate; `None` without TLS, or when the server cannot be reached or is not trusted.
pub(super) fn of_server(config: &Config, patience: Duration) -> Option<Timestamp> {
    let tls = Arc::new(config.rustls_client_config().ok()?);
    let (host, port) = host_and_port(config).filter(|_| config.cluster_url.scheme_str() == Some("https"))?;
    let name = config.tls_server_name.clone().unwrap_or_else(|| host.to_owned());
    let address = (host, port).to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    stream.set_write_timeout(Some(patience)).ok()?;
    let mut connection = ClientConnection::new(tls, ServerName::try_from(name).ok()?).ok()?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).ok()?;
    }
    end(connection.peer_certificates()?.first()?)
}

/// The end of the client's certificate; `None` when it has none.
pub(super) fn of_client(auth: &AuthInfo) -> Option<Timestamp> {
    let text = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => BASE64.decode(data.as_bytes()).ok()?,
        (None, Some(file)) => fs::read(file).ok()?,
        (None, None) => return None,
    };
    end(&first_of_pem(std::str::from_utf8(&text).ok()?)?)
}

/// The first certificate of a PEM text.
fn first_of_pem(text: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once("-----BEGIN CERTIFICATE-----")?;
    let (body, _) = rest.split_once("-----END CERTIFICATE-----")?;
    let body: String = body.split_whitespace().collect();
    BASE64.decode(body.as_bytes()).ok()
}

/// `notAfter` of a certificate in DER (RFC 5280, section 4.1).
fn end(certificate: &[u8]) -> Option<Timestamp> {
    const VERSION: u8 = 0xa0;
    const UTC_TIME: u8 = 0x17;
    let (_, whole, _) = value(certificate)?;
    let (_, mut fields, _) = value(whole)?;
    if let Some((VERSION, _, rest)) = value(fields) {
        fields = rest;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        fields = value(fields)?.2;
    }
    let (_, validity, _) = value(fields)?;
    let (_, _, after_begin) = value(validity)?;
    let (tag, text, _) = value(after_begin)?;
    let text = std::str::from_utf8(text).ok()?;
    // Two digits of a year mean 1950 to 2049.
    let text = match (tag, text.get(..2)?.parse::<u8>().ok()?) {
        (UTC_TIME, ..50) => format!("20{text}"),
        (UTC_TIME, _) => format!("19{text}"),
        _ => text.to_owned(),
    };
    let part = |from: usize, to: usize| text.get(from..to);
    let (date, time) = ([part(0, 4)?, part(4, 6)?, part(6, 8)?], [part(8, 10)?, part(10, 12)?, part(12, 14)?]);
    format!("{}T{}Z", date.join("-"), time.join(":")).parse().ok()
}

/// The tag and the content of the first value in DER, and what is behind it.
fn value(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        short @ 0..0x80 => (usize::from(*short), rest),
        long => {
            let (digits, rest) =
                rest.split_at_checked(usize::from(long & 0x7f)).filter(|(digits, _)| digits.len() <= 4)?;
            (digits.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
    };
    let (content, behind) = rest.split_at_checked(len)?;
    Some((*tag, content, behind))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(year: i32) -> rcgen::Certificate {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 3, 4);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn the_end_of_a_certificate_is_read_in_both_forms_of_time() {
        for year in [1999, 2049, 2051] {
            let expected: Timestamp = format!("{year}-03-04T00:00:00Z").parse().unwrap();
            assert_eq!(end(certificate(year).der()), Some(expected));
        }
    }

    #[test]
    fn a_clients_certificate_is_read_from_data_and_from_a_file() {
        let pem = certificate(2031).pem();
        let expected: Option<Timestamp> = Some("2031-03-04T00:00:00Z".parse().unwrap());
        let data = AuthInfo { client_certificate_data: Some(BASE64.encode(pem.as_bytes())), ..AuthInfo::default() };
        assert_eq!(of_client(&data), expected);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), format!("# a comment\n{pem}")).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        assert_eq!(of_client(&AuthInfo { client_certificate: Some(path), ..AuthInfo::default() }), expected);
        assert_eq!(of_client(&AuthInfo::default()), None);
    }

    #[test]
    fn bytes_that_are_no_certificate_give_nothing() {
        let whole = certificate(2031).der().to_vec();
        for len in 0..whole.len() {
            assert_eq!(end(&whole[..len]), None, "{len}");
        }
        for position in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0xff] {
                let mut garbled = whole.clone();
                garbled[position] = byte;
                let _any = end(&garbled);
            }
        }
        assert_eq!(first_of_pem("-----BEGIN CERTIFICATE-----\n"), None);
    }
}
