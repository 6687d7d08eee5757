//! interim
pub mod server;
use crate::model::Family;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::*;
#[derive(Clone, Default)]
pub struct Metrics(pub Arc<Mutex<BTreeMap<String, f64>>>);
fn secs(t: SystemTime) -> f64 {
    t.duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}
impl Metrics {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn sync_queued(&self, f: Family, at: SystemTime) {
        self.0
            .lock()
            .unwrap()
            .insert(format!("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{{ip_family=\"{f}\"}}"), secs(at));
    }
    pub fn sync_finished(&self, f: Family, at: SystemTime, _: Duration, _: bool, ok: bool) {
        if ok {
            self.0
                .lock()
                .unwrap()
                .insert(format!("kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"{f}\"}}"), secs(at));
        }
    }
    pub fn transaction(&self, _: usize, _: usize, _: usize) {}
}
