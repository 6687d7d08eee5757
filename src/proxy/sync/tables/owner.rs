//! Who an object of a table belongs to.

use rules::model::ObjectName;

/// What a part of a table belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::sync) enum Owner {
    /// The node.
    Node,
    /// A Service.
    Service(ObjectName),
}
