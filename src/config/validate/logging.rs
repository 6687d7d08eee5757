//! Rules of the `logging` section.

use super::Findings;
use crate::config::file::LoggingSection;
use crate::config::{LogFormat, LoggingConfig};

/// What to log and how.
pub(super) fn logging(section: &LoggingSection, alpha_options: bool, findings: &mut Findings) -> Option<LoggingConfig> {
    findings.positive("logging.flushFrequency", section.flush_frequency);
    let format = match section.format.as_str() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        other => Err(format!("must be \"text\" or \"json\", not {other:?}")),
    };
    let format = findings.take("logging.format", format);
    if !section.vmodule.is_empty() {
        if format == Some(LogFormat::Json) {
            findings.error("logging.vmodule", "works only with format \"text\"");
        } else {
            findings.warn("logging.vmodule names upstream's Go files and has no effect here; use logging.verbosity");
        }
    }
    for (name, options) in [("text", &section.options.text), ("json", &section.options.json)] {
        for (option, used) in
            [("splitStream", options.split_stream), ("infoBufferSize", !options.info_buffer_size.is_zero())]
        {
            let field = format!("logging.options.{name}.{option}");
            match (used, alpha_options) {
                (true, false) => findings.error(field, "needs feature gate LoggingAlphaOptions"),
                (true, true) => {
                    findings.warn(format!("{field} has no effect here: logs go to standard error, unbuffered"))
                }
                (false, _) => {}
            }
        }
    }
    Some(LoggingConfig { format: format?, verbosity: section.verbosity })
}
