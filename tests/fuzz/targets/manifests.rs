//! Files of a manifest directory: what they hold, and what the proxy would make of it.

use std::path::Path;

use cluster::source::manifests::read_bytes;

use super::cluster::programmed;

pub(super) fn yaml(bytes: &[u8]) {
    run(Path::new("a.yaml"), bytes);
}

pub(super) fn json(bytes: &[u8]) {
    run(Path::new("a.json"), bytes);
}

fn run(file: &Path, bytes: &[u8]) {
    let (events, problems) = read_bytes(file, bytes);
    for problem in problems {
        assert!(problem.to_string().len() > file.as_os_str().len() + ": ".len(), "{problem:?}");
    }
    programmed(events);
}
