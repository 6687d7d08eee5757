//! The kernel's lists of flows and of addresses. A flow is deleted by the tuple that was read, and no other.

use nft::decode::Messages;
use nft::wire::{Attr, Attrs};
use node::kernel;

/// Bytes of `nlmsghdr` and `nfgenmsg`.
const HEADERS: usize = 20;
const ORIGINAL: u16 = 1;

pub(super) fn run(bytes: &[u8]) {
    for message in Messages::new(bytes).chain([bytes]) {
        let _ = (kernel::address(message), kernel::connection(message));
        let Some(flow) = kernel::flow(message) else { continue };
        let request = kernel::deletion(&flow);
        assert_eq!(Messages::new(&request).map(<[u8]>::len).collect::<Vec<_>>(), [request.len()], "one whole message");
        assert_eq!(original(&request), original(message), "the flow that was read");
    }
}

/// The bytes of the original tuple.
fn original(message: &[u8]) -> Option<&[u8]> {
    Attrs::new(message.get(HEADERS..)?).find(ORIGINAL).map(|attr: Attr<'_>| attr.payload)
}
