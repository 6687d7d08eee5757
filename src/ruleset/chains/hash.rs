//! The hash in the names of a service port's chains. It is iptables mode's, so that a name known from there is found here.

use data_encoding::BASE32;
use sha2::{Digest, Sha256};

use crate::model::Protocol;

/// Characters of the hash that are part of a name.
const LEN: usize = 16;

/// The hash of a service port: `label` is `namespace/name:port`, or `namespace/name` when the port has no name.
pub(super) fn of_port(label: &str, protocol: Protocol) -> String {
    let mut encoded = BASE32.encode(&Sha256::digest(format!("{label}{protocol}").as_bytes()));
    encoded.truncate(LEN);
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ports_have_the_hashes_of_iptables_mode() {
        // Layout `chains` has the names of iptables mode (F5).
        let known = [
            ("kube-system/kube-dns:dns", Protocol::Udp, "TCOU7JCQXEZGVUNU"),
            ("kube-system/kube-dns:dns-tcp", Protocol::Tcp, "ERIFXISQEP7F7OF4"),
            ("kube-system/kube-dns:metrics", Protocol::Tcp, "JD5MR3NA4I4DYORP"),
            ("default/kubernetes:https", Protocol::Tcp, "NPX46M4PTMTKRN6Y"),
            ("drds/mysql-read:mysql", Protocol::Tcp, "RVEVH2XMONK6VC5O"),
            ("demo/netutil-2:tcp-8081", Protocol::Tcp, "QUZXUNUIPD3MZETI"),
        ];
        for (label, protocol, expected) in known {
            assert_eq!(of_port(label, protocol), expected, "{label}");
        }
    }

    #[test]
    fn a_port_without_a_name_leaves_no_colon() {
        assert_ne!(of_port("ym/echo-app", Protocol::Tcp), of_port("ym/echo-app:", Protocol::Tcp));
        assert_eq!(of_port("ym/echo-app", Protocol::Tcp).len(), LEN);
    }
}
