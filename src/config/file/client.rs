//! `clientConnection`: how the API server is reached.

use serde::{Deserialize, Serialize};

/// The `clientConnection` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    /// Path of a kubeconfig; empty: the in-cluster configuration.
    pub kubeconfig: String,
    /// The `Accept` header of requests; empty: the content type.
    pub accept_content_types: String,
    /// Content type of requests.
    pub content_type: String,
    /// Requests a second; 0 stands for 5.
    pub qps: f32,
    /// Requests at once beyond `qps`; 0 stands for 10.
    pub burst: i32,
}

impl Default for ClientConnection {
    fn default() -> Self {
        let mut section = Self {
            kubeconfig: String::new(),
            accept_content_types: String::new(),
            content_type: String::new(),
            qps: 0.0,
            burst: 0,
        };
        section.fill_defaults();
        section
    }
}

impl ClientConnection {
    pub(super) fn fill_defaults(&mut self) {
        super::fill_text(&mut self.content_type, "application/vnd.kubernetes.protobuf");
        if self.qps == 0.0 {
            self.qps = 5.0;
        }
        if self.burst == 0 {
            self.burst = 10;
        }
    }
}
