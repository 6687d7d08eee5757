//! The hash in the chain names of service ports and endpoints. It is computed as in iptables mode, so that the names are the same (F5).

use std::net::SocketAddr;

use data_encoding::BASE32;
use sha2::{Digest, Sha256};

use crate::model::Protocol;

/// The number of characters of the hash that a name has.
const LEN: usize = 16;

/// The hash of a service port: `label` is `namespace/name:port`, or `namespace/name` when the port has no name.
pub(super) fn of_port(label: &str, protocol: Protocol) -> String {
    hash(&format!("{label}{protocol}"))
}

/// The hash of an endpoint of a service port.
pub(super) fn of_endpoint(label: &str, protocol: Protocol, endpoint: SocketAddr) -> String {
    hash(&format!("{label}{protocol}{endpoint}"))
}

fn hash(text: &str) -> String {
    let mut encoded = BASE32.encode(&Sha256::digest(text.as_bytes()));
    encoded.truncate(LEN);
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ports_have_the_hashes_of_iptables_mode() {
        // `--ruleset-layout=chains` uses the chain names of iptables mode (F5).
        let known = [
            ("kube-system/kube-dns:dns", Protocol::Udp, "TCOU7JCQXEZGVUNU"),
            ("kube-system/kube-dns:dns-tcp", Protocol::Tcp, "ERIFXISQEP7F7OF4"),
            ("kube-system/kube-dns:metrics", Protocol::Tcp, "JD5MR3NA4I4DYORP"),
            ("default/kubernetes:https", Protocol::Tcp, "NPX46M4PTMTKRN6Y"),
            ("drds/mysql-read:mysql", Protocol::Tcp, "RVEVH2XMONK6VC5O"),
            ("demo/netutil-2:tcp-8081", Protocol::Tcp, "QUZXUNUIPD3MZETI"),
            ("default/nginx:80-80", Protocol::Tcp, "OVTWZ4GROBJZO4C5"),
        ];
        for (label, protocol, expected) in known {
            assert_eq!(of_port(label, protocol), expected, "{label}");
        }
    }

    #[test]
    fn endpoints_have_the_hashes_of_iptables_mode() {
        let known = [
            ("kube-system/kube-dns:dns", Protocol::Udp, "10.200.192.74:53", "X2ADUEUQITSVT76E"),
            ("kube-system/kube-dns:dns", Protocol::Udp, "10.200.192.75:53", "YKQ3S3HS332IQ2RP"),
            ("default/kubernetes:https", Protocol::Tcp, "10.240.0.10:6443", "HFMBYHW5FO36NATD"),
            ("default/nginx:80-80", Protocol::Tcp, "10.42.0.199:80", "ZGUCVTBPJNCW75NN"),
            ("default/nginx:80-80", Protocol::Tcp, "10.42.0.200:80", "UIOQG3KKGTPDCR56"),
        ];
        for (label, protocol, endpoint, expected) in known {
            assert_eq!(of_endpoint(label, protocol, endpoint.parse().unwrap()), expected, "{endpoint}");
        }
    }

    #[test]
    fn a_port_without_a_name_leaves_no_colon() {
        assert_ne!(of_port("ym/echo-app", Protocol::Tcp), of_port("ym/echo-app:", Protocol::Tcp));
        assert_eq!(of_port("ym/echo-app", Protocol::Tcp).len(), LEN);
    }
}
