//! Reads the following fields of a certificate: its period of validity, its purpose, its key, and the length of an RSA key.
//!
//! The module takes certificates in PEM or DER and returns these few fields, which rustls does not expose although it checks certificates.
//! They are not worth the dependencies of an X.509 library. For bytes that it cannot read as a certificate the result is `None`.

use std::fs;

use data_encoding::BASE64;
use jiff::Timestamp;
use kube::config::AuthInfo;

const BIT_STRING: u8 = 0x03;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// The object identifier rsaEncryption (RFC 8017), 1.2.840.113549.1.1.1, in DER.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// The object identifier extKeyUsage (RFC 5280, section 4.2.1.12), 2.5.29.37, in DER.
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
/// The purposes in extKeyUsage that allow a server: anyExtendedKeyUsage, 2.5.29.37.0, and id-kp-serverAuth, 1.3.6.1.5.5.7.3.1.
const SERVERS: [&[u8]; 2] = [&[0x55, 0x1d, 0x25, 0x00], &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01]];

/// The fields that are read from a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The start of the period of validity (`notBefore`).
    pub(super) begin: Timestamp,
    /// The end of the period of validity (`notAfter`).
    pub(super) end: Timestamp,
    /// The length of the certificate's key in bits, if it is an RSA key.
    pub(super) rsa_bits: Option<usize>,
    /// Whether a server may use the certificate: its extKeyUsage allows that, or is absent.
    pub(super) is_for_servers: bool,
}

/// Returns when the client's certificate expires; `None` if the client has no certificate, or it cannot be read.
pub(super) fn of_client(auth: &AuthInfo) -> Option<Timestamp> {
    let text = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => base64(data)?,
        (None, Some(file)) => fs::read(file).ok()?,
        (None, None) => return None,
    };
    let first = blocks(std::str::from_utf8(&text).ok()?).next()??;
    Some(facts(&first)?.end)
}

/// Returns the certificates in a PEM text, in DER; `None` in place of a certificate that is not base64 or has no end line.
pub(super) fn blocks(text: &str) -> impl Iterator<Item = Option<Vec<u8>>> {
    text.split("-----BEGIN CERTIFICATE-----").skip(1).map(|rest| {
        let (body, _) = rest.split_once("-----END CERTIFICATE-----")?;
        base64(body)
    })
}

/// Decodes base64 that may have several lines; `None` if it is not base64.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_whitespace().collect();
    BASE64.decode(text.as_bytes()).ok()
}

/// Returns whether a certificate in DER has the given public key, which is a SubjectPublicKeyInfo in DER; `None` if the certificate cannot be
/// read.
pub(super) fn has_key(certificate: &[u8], key: &[u8]) -> Option<bool> {
    let (_, wanted, _) = value(key)?;
    Some(parts(certificate)?.key == wanted)
}

/// Some contents in a certificate, in DER.
struct Parts<'a> {
    validity: &'a [u8],
    /// The algorithm of the key, and the key.
    key: &'a [u8],
    /// The fields after the key.
    rest: &'a [u8],
}

/// Finds the fields of a certificate in DER (RFC 5280, section 4.1); `None` if it cannot be read.
fn parts(certificate: &[u8]) -> Option<Parts<'_>> {
    let (_, whole, _) = value(certificate)?;
    let (_, mut fields, _) = value(whole)?;
    if let Some((VERSION, _, rest)) = value(fields) {
        fields = rest;
    }
    // Skip serial number, signature algorithm and issuer.
    for _ in 0..3 {
        fields = value(fields)?.2;
    }
    let (_, validity, fields) = value(fields)?;
    let (_, _subject, fields) = value(fields)?;
    let (_, key, rest) = value(fields)?;
    Some(Parts { validity, key, rest })
}

/// Reads the fields of a certificate in DER; `None` if it cannot be read.
pub(super) fn facts(certificate: &[u8]) -> Option<Facts> {
    let Parts { validity, key, rest } = parts(certificate)?;
    let (begin, after_begin) = time(validity)?;
    let (end, _) = time(after_begin)?;
    let purposes = purposes(rest);
    let is_for_servers = purposes.is_none_or(|purposes| {
        values(purposes).any(|(tag, purpose)| tag == OBJECT_IDENTIFIER && SERVERS.contains(&purpose))
    });
    Some(Facts { begin, end, rsa_bits: rsa_bits(key), is_for_servers })
}

/// Returns the time at the start of `bytes`, and the bytes after it.
fn time(bytes: &[u8]) -> Option<(Timestamp, &[u8])> {
    let (tag, text, rest) = value(bytes)?;
    let text = std::str::from_utf8(text).ok()?;
    // A UTCTime has a year of two digits, which mean 1950 to 2049 (RFC 5280, section 4.1.2.5.1).
    let text = match (tag, text.get(..2)?.parse::<u8>().ok()?) {
        (UTC_TIME, ..50) => format!("20{text}"),
        (UTC_TIME, _) => format!("19{text}"),
        _ => text.to_owned(),
    };
    let part = |from: usize, to: usize| text.get(from..to);
    let (date, time) = ([part(0, 4)?, part(4, 6)?, part(6, 8)?], [part(8, 10)?, part(10, 12)?, part(12, 14)?]);
    let time = format!("{}T{}Z", date.join("-"), time.join(":")).parse().ok()?;
    Some((time, rest))
}

/// Returns the length of the modulus of an RSA key, in bits; `None` for any other key.
fn rsa_bits(key: &[u8]) -> Option<usize> {
    let (_, algorithm, rest) = value(key)?;
    let (OBJECT_IDENTIFIER, RSA, _) = value(algorithm)? else { return None };
    let (BIT_STRING, bits, _) = value(rest)? else { return None };
    // The first byte of a bit string is the number of unused bits, which is 0 for a key.
    let (_, numbers, _) = value(bits.get(1..)?)?;
    let (_, modulus, _) = value(numbers)?;
    let first = modulus.iter().position(|byte| *byte != 0)?;
    let unused = usize::try_from(modulus[first].leading_zeros()).ok()?;
    Some((modulus.len() - first) * 8 - unused)
}

/// Returns the content of extKeyUsage, if the certificate has it. `fields` are the fields after the key.
fn purposes(fields: &[u8]) -> Option<&[u8]> {
    let (_, extensions) = values(fields).find(|(tag, _)| *tag == EXTENSIONS)?;
    let (_, extensions, _) = value(extensions)?;
    let (_, extension) = values(extensions)
        .find(|(_, extension)| value(extension).is_some_and(|(_, id, _)| id == EXTENDED_KEY_USAGE))?;
    let (_, content) = values(extension).last()?;
    value(content).map(|(_, purposes, _)| purposes)
}

/// Returns the DER values in `bytes` up to the first one that cannot be read, each as its tag and its content.
fn values(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (tag, content, behind) = value(rest)?;
        rest = behind;
        Some((tag, content))
    })
}

/// Returns the tag and the content of the first DER value in `bytes`, and the bytes after it; `None` if it is incomplete.
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
    use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(year: i32) -> rcgen::Certificate {
        certificate_for(year, &[])
    }

    fn certificate_for(year: i32, purposes: &[ExtendedKeyUsagePurpose]) -> rcgen::Certificate {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(1990, 1, 2);
        params.not_after = date_time_ymd(year, 3, 4);
        params.extended_key_usages = purposes.to_vec();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    fn end(certificate: &[u8]) -> Option<Timestamp> {
        facts(certificate).map(|facts| facts.end)
    }

    #[test]
    fn a_certificate_says_whether_it_is_for_servers() {
        use ExtendedKeyUsagePurpose as P;
        for (purposes, expected) in [
            (&[][..], true),
            (&[P::ServerAuth], true),
            (&[P::ClientAuth], false),
            (&[P::ClientAuth, P::ServerAuth], true),
            (&[P::Any], true),
        ] {
            let facts = facts(certificate_for(2031, purposes).der()).unwrap();
            assert_eq!(facts.is_for_servers, expected, "{purposes:?}");
            assert_eq!(facts.begin, "1990-01-02T00:00:00Z".parse().unwrap());
            assert_eq!(facts.rsa_bits, None);
        }
    }

    #[test]
    fn the_length_of_an_rsa_key_is_read() {
        let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let facts = facts(params.self_signed(&key).unwrap().der()).unwrap();
        assert_eq!(facts.rsa_bits, Some(2048));
    }

    #[test]
    fn the_certificates_of_a_pem_text_are_found_among_other_text() {
        let (first, second) = (certificate(2031), certificate(2032));
        let text = format!(
            "# CA\n{}text\n-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n{}",
            first.pem(),
            second.pem()
        );
        let expected = [Some(first.der().to_vec()), None, Some(second.der().to_vec())];
        assert_eq!(blocks(&text).collect::<Vec<_>>(), expected);
        assert_eq!(blocks(&text.replace('\n', "\r\n")).collect::<Vec<_>>(), expected);
        assert_eq!(blocks("-----BEGIN CERTIFICATE-----\n").collect::<Vec<_>>(), [None]);
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
            assert_eq!(facts(&whole[..len]), None, "{len}");
        }
        for position in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0xff] {
                let mut garbled = whole.clone();
                garbled[position] = byte;
                let _any = facts(&garbled);
            }
        }
    }
}
