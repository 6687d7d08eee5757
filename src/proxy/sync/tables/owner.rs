//! The owner of an object in a table.

use rules::model::ObjectName;

/// The owner of a part of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::sync) enum Owner {
    /// The node.
    Node,
    /// A Service.
    Service(ObjectName),
}
