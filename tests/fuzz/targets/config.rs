//! A configuration file, at the start and while the process runs. What was decoded and is written down decodes to the same.

use component::config::{check_content, file};

pub(super) fn run(bytes: &[u8]) {
    if let Err(problem) = check_content(bytes) {
        assert!(!problem.is_empty());
    }
    let Ok(decoded) = std::str::from_utf8(bytes).map_err(drop).and_then(|text| file::decode(text).map_err(drop)) else {
        return;
    };
    let text = serde_json::to_string(&decoded.config).expect("a configuration can be written as JSON");
    let again = file::decode(&text).expect("what was written can be read");
    assert_eq!(again.config, decoded.config);
}
