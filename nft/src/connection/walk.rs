//! Reads a table object by object and keeps none of them, so a table with a million elements can be summarised in little memory.

use super::{Connection, ReadError, unless_absent};
use crate::decode::{self, Count, DecodeError, Decoded, RawElement};
use crate::object::{RuleDump, Set};
use crate::table::{TableName, TableState};
use crate::wire::kind;

/// An object of a table. All rules come before all elements, and both come in the kernel's order.
#[derive(Debug)]
pub enum Item<'a> {
    /// A rule.
    Rule {
        /// The name of its chain.
        chain: &'a str,
        /// Its expressions and its comment.
        rule: RuleDump,
        /// The count of its first counter; `None` without a counter.
        count: Option<Count>,
    },
    /// An element, as the kernel lists it: in an interval set of one field, a range is two elements.
    Element {
        /// The set or map that it is in.
        set: &'a Set,
        /// Its key, value, comment, time-outs and count.
        element: RawElement,
    },
    /// An object or message that this crate cannot express.
    Unreadable(DecodeError),
}

/// The result of [`Connection::walk_table`].
#[derive(Clone, Debug)]
pub struct Walked<S> {
    /// The summary of all objects.
    pub summary: S,
    /// The table's flags, its owner and the number of its objects.
    pub state: TableState,
    /// Whether no transaction changed the table during the walk. Otherwise an element may be missing, outdated or repeated.
    pub is_of_one_moment: bool,
}

impl Connection {
    /// Calls `each` for every rule and element of a table, to add it to a summary, which begins as `S::default()`. `None` when there is no
    /// such table. After a transaction on the table the walk starts again with a new summary. The third walk ignores transactions: in a
    /// large table that changes all the time, no walk would come to its end.
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
