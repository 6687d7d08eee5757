//! The owner of an object in a table: the node, or a Service.

use rules::model::ObjectName;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::sync) enum Owner {
    /// The node: it owns, for example, the addresses that accept node ports.
    Node,
    Service(ObjectName),
}
