//! The two text formats of Prometheus.
//!
//! prometheus-client writes OpenMetrics. For the classic format four things are changed: HELP and TYPE of a counter get the name of its
//! samples; whole numbers in `le` lose their fraction, as in upstream, so that both proxies' series have the same labels; help texts with a
//! stability tag lose the full stop at their end; and the end mark is left out.

use std::fmt::Write as _;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Returns all metrics of a registry as OpenMetrics 1.0.0.
pub(super) fn open_metrics(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("writing to a String does not fail");
    text
}

/// Converts OpenMetrics, as prometheus-client writes it, to the classic text format, version 0.0.4.
pub(super) fn classic(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 256);
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            continue;
        }
        // A HELP line is followed by the TYPE line of the same metric.
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let kind = lines.next().and_then(|line| line.rsplit_once(' ')).map_or("untyped", |(_, kind)| kind);
            let total = if kind == "counter" { "_total" } else { "" };
            let help = plain_help(help);
            writeln!(text, "# HELP {name}{total} {help}\n# TYPE {name}{total} {kind}").expect("writing to a String");
        } else {
            push_sample(&mut text, line);
        }
    }
    text
}

/// Removes the full stop at the end of a help text that starts with a stability tag, such as `[ALPHA]`. Help texts without a tag, which are
/// those of `process`, keep it.
fn plain_help(help: &str) -> &str {
    if help.starts_with('[') { help.strip_suffix('.').unwrap_or(help) } else { help }
}

/// Writes a sample, with `le="1.0"` changed to `le="1"`.
fn push_sample(text: &mut String, line: &str) {
    let bound = line.split_once("le=\"").and_then(|(before, rest)| Some((before, rest.split_once(".0\"")?)));
    match bound {
        Some((before, (whole, after))) if whole.bytes().all(|byte| byte.is_ascii_digit()) => {
            writeln!(text, "{before}le=\"{whole}\"{after}").expect("writing to a String");
        }
        _ => {
            text.push_str(line);
            text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_described_under_the_name_of_their_samples() {
        let text =
            classic("# HELP a [ALPHA] A.\n# TYPE a counter\na_total 1\n# HELP b B.\n# TYPE b gauge\nb 2\n# EOF\n");
        let wanted = "# HELP a_total [ALPHA] A\n# TYPE a_total counter\na_total 1\n# HELP b B.\n# TYPE b gauge\nb 2\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_gauge_whose_name_ends_in_total_keeps_name_and_type() {
        let text = classic("# HELP a_total [ALPHA] A.\n# TYPE a_total gauge\na_total{x=\"y\"} 1\n");
        assert_eq!(text, "# HELP a_total [ALPHA] A\n# TYPE a_total gauge\na_total{x=\"y\"} 1\n");
    }

    #[test]
    fn bounds_of_buckets_are_written_as_go_does() {
        let lines = "a_bucket{le=\"0.0\"} 0\na_bucket{le=\"60.0\",x=\"1.0\"} 1\na_bucket{le=\"0.25\"} 1\na_bucket{le=\"+Inf\"} 1\n";
        let wanted =
            "a_bucket{le=\"0\"} 0\na_bucket{le=\"60\",x=\"1.0\"} 1\na_bucket{le=\"0.25\"} 1\na_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(classic(lines), wanted);
    }
}
