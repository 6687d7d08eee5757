//! The state of the cluster and who owns each front.
/// Placeholder until the state lands.
#[derive(Debug, Default)]
pub struct State;
/// Placeholder until the state lands.
#[derive(Debug, Default)]
pub struct Dirty;
