//! Reads a table object by object, and keeps none of them: for a reader who needs a summary of a table with a million elements.

use super::{Connection, ReadError};
use crate::decode::{self, DecodeError, Decoded, RawElement};
use crate::object::{RuleDump, Set};
use crate::table::TableName;
use crate::wire::kind;

/// An object of a table, in the kernel's order. All rules come before the elements.
#[derive(Debug)]
pub enum Item<'a> {
    /// A rule.
    Rule {
        /// The name of its chain.
        chain: &'a str,
        /// The rule.
        rule: RuleDump,
    },
    /// An element, as the kernel lists it: of a set of ranges with one field, a range is two of them.
    Element {
        /// Its set or map.
        set: &'a Set,
        /// The element.
        element: RawElement,
    },
    /// An object or message that this crate cannot express.
    Unreadable(DecodeError),
}

impl Connection {
    /// Shows every rule and element of a table to `each`, with what it has made of those before, which is `S::default()` at first.
    /// `None` when there is no such table. As with [`Self::read_table`], the objects are those of one moment: after a transaction on
    /// the table it starts again, from `S::default()`.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn walk_table<S: Default>(
        &mut self,
        name: &TableName,
        each: impl Fn(&mut S, Item<'_>),
    ) -> Result<Option<S>, ReadError> {
        self.undisturbed(name, |connection| {
            if connection.read_table_object(name)?.is_none() {
                return Ok(None);
            }
            let mut summary = S::default();
            connection.walk_once(name, |item| each(&mut summary, item))?;
            Ok(Some(summary))
        })
    }

    fn walk_once(&mut self, name: &TableName, mut each: impl FnMut(Item<'_>)) -> Result<(), ReadError> {
        let mut sets = Vec::new();
        self.dump(kind::GET_SET, name, &[&name.name], |item| match item {
            Ok(Decoded::Set { set, .. }) => sets.push(set),
            Ok(_) => {}
            Err(error) => each(Item::Unreadable(error)),
        })?;
        self.dump(kind::GET_RULE, name, &[&name.name], |item| match item {
            Ok(Decoded::Rule { chain, rule, .. }) => each(Item::Rule { chain: &chain, rule }),
            Ok(_) => {}
            Err(error) => each(Item::Unreadable(error)),
        })?;
        for set in &sets {
            self.dump_messages(kind::GET_ELEMENTS, name, &[&name.name, &set.name], |message| {
                match decode::message(message) {
                    Ok(Decoded::Elements { elements, .. }) => {
                        elements.into_iter().for_each(|element| each(Item::Element { set, element }));
                    }
                    Ok(_) => {}
                    Err(error) => each(Item::Unreadable(error)),
                }
            })?;
        }
        Ok(())
    }
}
