//! Reads a table object by object, and keeps none of them: for a reader who needs a summary of a table with a million elements.

use super::{Connection, ReadError, unless_absent};
use crate::decode::{self, Count, DecodeError, Decoded, RawElement};
use crate::object::{RuleDump, Set};
use crate::table::{TableName, TableState};
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
        /// What its first counter has counted.
        count: Option<Count>,
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

/// What a walk over a table gives.
#[derive(Clone, Debug)]
pub struct Walked<S> {
    /// What was made of its objects.
    pub summary: S,
    /// Its state.
    pub state: TableState,
    /// Whether no transaction changed the table during the walk. Otherwise an element may be missing, old, or shown twice.
    pub is_of_one_moment: bool,
}

impl Connection {
    /// Shows every rule and element of a table to `each`, with what it has made of those before, which is `S::default()` at first.
    /// `None` when there is no such table. After a transaction on the table it starts again, from `S::default()`, and the third time it goes
    /// on: in a large table that changes all the time no walk would come to its end.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn walk_table<S: Default>(
        &mut self,
        name: &TableName,
        each: impl Fn(&mut S, Item<'_>),
    ) -> Result<Option<Walked<S>>, ReadError> {
        let (walked, is_of_one_moment) = self.even_disturbed(name, |connection| {
            let Some((_, state)) = connection.read_table_object(name)? else { return Ok(None) };
            let mut summary = S::default();
            connection.walk_once(name, |item| each(&mut summary, item))?;
            Ok(Some((summary, state)))
        })?;
        Ok(walked.map(|(summary, state)| Walked { summary, state, is_of_one_moment }))
    }

    fn walk_once(&mut self, name: &TableName, mut each: impl FnMut(Item<'_>)) -> Result<(), ReadError> {
        let mut sets = Vec::new();
        self.dump(kind::GET_SET, name, &[&name.name], |item| match item {
            Ok(Decoded::Set { set, .. }) => sets.push(set),
            Ok(_) => {}
            Err(error) => each(Item::Unreadable(error)),
        })?;
        self.dump(kind::GET_RULE, name, &[&name.name], |item| match item {
            Ok(Decoded::Rule { chain, rule, count, .. }) => each(Item::Rule { chain: &chain, rule, count }),
            Ok(_) => {}
            Err(error) => each(Item::Unreadable(error)),
        })?;
        for set in &sets {
            let elements =
                self.dump_messages(
                    kind::GET_ELEMENTS,
                    name,
                    &[&name.name, &set.name],
                    |message| match decode::message(message) {
                        Ok(Decoded::Elements { elements, .. }) => {
                            elements.into_iter().for_each(|element| each(Item::Element { set, element }));
                        }
                        Ok(_) => {}
                        Err(error) => each(Item::Unreadable(error)),
                    },
                );
            // A set may be deleted during the walk.
            unless_absent(elements)?;
        }
        Ok(())
    }
}
