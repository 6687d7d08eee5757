//! A node without pods and an API server on it: enough to see which rules follow from which answers.

use serde_json::Value;

use crate::support::apiserver::{ApiServer, Format, Scheme, wait_for};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};

/// The port that every Service here has.
pub(crate) const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];

/// A node and the API server on it.
pub(crate) struct Cluster {
    // The server leaves the namespace before that is deleted.
    pub(crate) server: ApiServer,
    pub(crate) node: Namespace,
}

impl Cluster {
    /// A plain HTTP server with the Node, the ServiceCIDR and the Service `web`.
    pub(crate) fn new(format: Format) -> Self {
        Self::with(format, Scheme::Http)
    }

    /// The same with a scheme.
    pub(crate) fn with(format: Format, scheme: Scheme) -> Self {
        let node = Namespace::new("node");
        let server = node.enter(|| ApiServer::start_with(scheme, format));
        server.apply(&base());
        server.apply(&served("web", 1));
        Self { server, node }
    }

    /// A proxy of this node, without credentials, that has written its first rules.
    pub(crate) fn proxy(&self) -> Proxy<'_> {
        let mut proxy = self.prepared();
        proxy.launch();
        proxy
    }

    /// The same, not started yet.
    pub(crate) fn prepared(&self) -> Proxy<'_> {
        Proxy::with_api(&self.node, &config(), &self.server.kubeconfig(&serde_json::json!({})))
    }

    /// Whether there are rules for the Service.
    pub(crate) fn serves(&self, name: &str) -> bool {
        nft::list_ruleset(&self.node).contains(&format!("\"shop/{name}:http\""))
    }

    /// Waits until there are rules for the Service, or none any more.
    pub(crate) fn wait_until_serves(&self, name: &str, wanted: bool) {
        wait_for(&format!("{name} served: {wanted}"), || (self.serves(name) == wanted).then_some(()));
    }
}

/// The Node and the ServiceCIDR.
pub(crate) fn base() -> [Value; 2] {
    [node(), service_cidr()]
}

/// A Service with cluster IPs number `n` and two endpoints a family.
pub(crate) fn served(name: &str, n: u8) -> Vec<Value> {
    let service = service("shop", name).cluster_ips(n).port("http", Proto::Tcp, 80).json();
    [vec![service], slices("shop", name, &[0, 2], &PORTS)].concat()
}

/// What the proxy has sent to the kernel so far: transactions, elements added, elements removed.
pub(crate) fn sent(proxy: &Proxy<'_>) -> [f64; 3] {
    ["transactions", "elements_added", "elements_removed"].map(|name| {
        let series = proxy.series(&format!("kubeproxy_nft_{name}_total"));
        assert_eq!(series.len(), 1, "{name}");
        series[0]
    })
}
