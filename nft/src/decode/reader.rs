//! Reads the attributes of one expression as numbers, registers and data.

use super::decoded::value;
use crate::data::{Data, Value};
use crate::expr::Register;
use crate::wire::Attrs;

/// The attributes of one expression. The functions that decode expressions give the number of the attribute to read.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) Attrs<'a>);

impl Reader<'_> {
    pub(super) fn number(self, kind: u16) -> Option<u32> {
        self.0.find(kind)?.u32()
    }

    /// The number in an attribute, 0 when the attribute is absent.
    pub(super) fn number_or_zero(self, kind: u16) -> Option<u32> {
        self.0.find(kind).map_or(Some(0), |attr| attr.u32())
    }

    pub(super) fn register(self, kind: u16) -> Option<Register> {
        Register::from_wire(self.number(kind)?)
    }

    /// A register that may be absent; the outer `None` means an unknown register.
    pub(super) fn optional_register(self, kind: u16) -> Option<Option<Register>> {
        if self.has(kind) { self.register(kind).map(Some) } else { Some(None) }
    }

    pub(super) fn data(self, kind: u16) -> Option<Data> {
        match value(self.0.find(kind)?)? {
            Value::Data(data) => Some(data),
            Value::Verdict(_) | Value::None => None,
        }
    }

    pub(super) fn has(self, kind: u16) -> bool {
        self.0.find(kind).is_some()
    }
}

/// Gives `None` unless a condition holds, for use with `?`.
pub(super) fn only_if(condition: bool) -> Option<()> {
    condition.then_some(())
}
