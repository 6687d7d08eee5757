//! The classic text format of Prometheus.
//!
//! prometheus-client writes OpenMetrics, in which a counter is described under its name without `_total`. Readers of the classic
//! format would take such samples for untyped ones, so the descriptions are given the samples' name.

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

/// The content type of what [`encode`] gives.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything in a registry.
pub(super) fn encode(registry: &Registry) -> String {
    let mut open_metrics = String::new();
    encode_registry(&mut open_metrics, registry).expect("writing to a String does not fail");
    classic(&open_metrics)
}

fn classic(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 256);
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        // A HELP line is followed by the TYPE line of the same metric.
        let described = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '));
        let counter = described.filter(|(name, _)| lines.peek() == Some(&format!("# TYPE {name} counter").as_str()));
        match counter {
            Some((name, help)) => {
                lines.next();
                text += &format!("# HELP {name}_total {help}\n# TYPE {name}_total counter\n");
            }
            None => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_described_under_the_name_of_their_samples() {
        let text = classic("# HELP a Help.\n# TYPE a counter\na_total 1\n# HELP b B.\n# TYPE b gauge\nb 2\n");
        let wanted = "# HELP a_total Help.\n# TYPE a_total counter\na_total 1\n# HELP b B.\n# TYPE b gauge\nb 2\n";
        assert_eq!(text, wanted);
    }
}
