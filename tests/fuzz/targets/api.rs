//! Answers of an API server. The first byte says of which kind and in which format ('0' to '3':
//! Node, Service, EndpointSlice, ServiceCIDR in JSON, '4' to '7': the same in protobuf).

use cluster::source::api::{list_bytes, watch_bytes};
use rules::model::Event;

use super::cluster::programmed;

/// The longest line of a watch.
const LIMIT: usize = 4096;

/// The stream of a watch means the same wherever the network cuts it.
pub(super) fn watch(bytes: &[u8]) {
    let Some((kind, answer)) = bytes.split_first() else { return };
    let cut = |chunk: usize| watch_bytes(usize::from(*kind), answer, chunk, LIMIT);
    let whole = cut(answer.len());
    for chunk in [1, 3, 100] {
        assert_eq!(cut(chunk), whole, "in chunks of {chunk}");
    }
    check(whole);
}

pub(super) fn page(bytes: &[u8]) {
    let Some((kind, answer)) = bytes.split_first() else { return };
    check(list_bytes(usize::from(*kind), answer));
}

fn check((events, words): (Vec<Event>, Vec<String>)) {
    assert!(words.iter().all(|words| !words.is_empty()));
    programmed(events);
}
