//! Asks the API server for its version, which the metrics report.
//!
//! The module takes a connection and gives each answer to the observer. It asks once the objects are known, so that a start waits for
//! nothing, and again about every ten minutes, because a cluster may be upgraded while the proxy runs. By default every user may ask
//! (ClusterRole `system:public-info-viewer`), and no rule depends on the answer: a failure is no event and no line of the log.

use std::time::Duration;

use tokio::time::sleep;

use super::Observer;
use super::connection::Connection;
use super::look::version;

/// The wait before the first question, without jitter.
const FIRST: Duration = Duration::from_secs(2);
/// The wait before each further question, without jitter.
const AGAIN: Duration = Duration::from_secs(600);

/// Asks until the caller drops this future.
pub(super) async fn run(mut connection: Connection, observer: &impl Observer) {
    let mut wait = FIRST;
    loop {
        sleep(wait.mul_f64(1.0 + rand::random::<f64>() / 4.0)).await;
        wait = AGAIN;
        if let Ok(version) = version(&mut connection).await {
            observer.server_version(&version);
        }
    }
}
