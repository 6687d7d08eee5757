//! A difference of a table: the object that differs, the commands that put it right, and what its owner is found by. Pure values.

use std::sync::Arc;

use nft::decode::DecodeError;
use nft::{Chain, Command, Element, Elements, NamedObject, Rule, RuleDump, Set, TableName, TableState};

use crate::table::ChainContent;

/// The most differences of a table that are listed, and the most elements that the commands of one difference add. The differences of a large
/// table that another program emptied, or that another version wrote, would need gigabytes.
pub const MOST_LISTED: usize = 10_000;

/// The differences of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differences<Owner> {
    /// The first differences, at most [`MOST_LISTED`].
    pub listed: Vec<Difference<Owner>>,
    /// The number of the others.
    pub unlisted: usize,
}

/// A difference between the records and the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference<Owner> {
    /// The owner (Service or node) of the object that differs; `None` if it belongs to the static rules or to no record.
    pub owner: Option<Owner>,
    /// The object that differs, and how it differs.
    pub what: DifferenceKind,
}

/// The object that differs: its wanted and its present form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// The table does not exist.
    NoTable,
    /// The table has the flag `dormant`: its rules are not in effect.
    Dormant,
    /// The table has another comment, or flags that this program does not know.
    Table(TableState),
    /// An object of a type that this program never creates in this table, such as a flowtable.
    Object(NamedObject),
    /// An object that cannot be decoded, because it has a property that this program never writes.
    Unreadable(DecodeError),
    /// A chain is missing. Has the content that the chain should have.
    NoChain(ChainContent),
    /// A chain that should not exist, with the number of its rules. If it is not a base chain, the correction deletes only its rules; a
    /// later transaction deletes the chain.
    SurplusChain(Chain, usize),
    /// A chain has another type, hook, priority or comment. Its rules are not compared, because the chain has to be made anew.
    OtherChain {
        /// The chain that the table should have, with its rules.
        wanted: ChainContent,
        /// The chain in the kernel.
        present: Chain,
    },
    /// A chain has rules other than the wanted rules.
    Rules {
        /// The chain with its wanted rules.
        wanted: ChainContent,
        /// The rules that the chain has in the kernel.
        present: Vec<RuleDump>,
    },
    /// A set or map is missing.
    NoSet {
        /// The set that the table should have.
        set: Arc<Set>,
        /// The elements that it should have. Empty for a set of one owner: its elements are differences of their own, as there are few, and
        /// they say which endpoints a new Service gets.
        elements: Elements,
    },
    /// A set or map that should not exist.
    SurplusSet(Arc<Set>),
    /// A set or map differs from the wanted one, for example in its type, flags or comment, or it is too small for its wanted elements.
    OtherSet {
        /// The set that the table should have.
        wanted: Arc<Set>,
        /// The set in the kernel.
        present: Arc<Set>,
        /// The elements that the set should have.
        elements: Elements,
    },
    /// An element is missing, should not exist, or has another value or comment.
    Element {
        /// The set or map of the element.
        set: Arc<Set>,
        /// The wanted element; `None` if it should not exist.
        wanted: Option<LedElement>,
        /// The element in the kernel; `None` if it is missing.
        present: Option<LedElement>,
    },
    /// A session affinity entry of a client whose endpoint the map must not have.
    StaleClient {
        /// The dynamic map, which rules fill while they process packets.
        set: Arc<Set>,
        /// The entry: client and endpoint.
        element: Element,
    },
}

/// An element, with the comment of the chain that it goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedElement {
    /// The element with its key, and its value if it is of a map.
    pub element: Element,
    /// The comment of the chain that the element's verdict goes to; `None` if there is no such chain, or it has no comment.
    pub leads_to: Option<Arc<str>>,
}

impl DifferenceKind {
    /// The commands to show for the difference: they add, replace or delete the object that differs. None if the whole table has to be made
    /// anew: the sync or a start of the proxy does that, and until then deleting the table would only end what still works. None either
    /// for a whole set of more than [`MOST_LISTED`] elements: without its elements it would serve nobody.
    ///
    /// The kernel refuses to delete a set, or a chain without a hook, that other rules or elements use; then too the sync makes the table
    /// anew.
    #[must_use]
    pub fn commands(&self, table: &TableName) -> Vec<Command> {
        let table = || table.clone();
        let elements = |held: &Option<LedElement>| held.iter().map(|held| held.element.clone()).collect::<Elements>();
        let rules = |content: &ChainContent| {
            let name = &content.chain.name;
            let add = |rule: &Rule| Command::AddRule(table(), Arc::clone(name), rule.clone());
            content.rules.iter().map(add).collect::<Vec<_>>()
        };
        let with_elements = |set: &Arc<Set>, elements: &Elements| {
            let fill = (!elements.is_empty()).then(|| Command::AddElements(table(), Arc::clone(set), elements.clone()));
            [Command::AddSet(table(), Arc::clone(set))].into_iter().chain(fill).collect::<Vec<_>>()
        };
        match self {
            Self::NoTable | Self::Table(_) | Self::Unreadable(_) => Vec::new(),
            // Adding a table without flags makes a dormant one of that name active.
            Self::Dormant => vec![Command::AddTable(nft::Table { name: table(), comment: None })],
            Self::Object(object) => vec![Command::DeleteObject(table(), object.clone())],
            Self::NoChain(content) => {
                [vec![Command::AddChain(table(), content.chain.clone())], rules(content)].concat()
            }
            Self::SurplusChain(chain, _) => {
                let flush = Command::FlushChain(table(), Arc::clone(&chain.name));
                let delete = Command::DeleteChain(table(), Arc::clone(&chain.name));
                if chain.base.is_some() { vec![flush, delete] } else { vec![flush] }
            }
            Self::OtherChain { wanted, .. } => {
                let name = &wanted.chain.name;
                let delete =
                    [Command::FlushChain(table(), Arc::clone(name)), Command::DeleteChain(table(), Arc::clone(name))];
                [delete.to_vec(), vec![Command::AddChain(table(), wanted.chain.clone())], rules(wanted)].concat()
            }
            Self::Rules { wanted, present } => {
                let flush = Command::FlushChain(table(), Arc::clone(&wanted.chain.name));
                let flush = if present.is_empty() { Vec::new() } else { vec![flush] };
                [flush, rules(wanted)].concat()
            }
            Self::NoSet { elements, .. } | Self::OtherSet { elements, .. } if elements.len() > MOST_LISTED => {
                Vec::new()
            }
            Self::NoSet { set, elements } => with_elements(set, elements),
            Self::SurplusSet(set) => vec![Command::DeleteSet(table(), Arc::clone(set))],
            Self::OtherSet { wanted, present, elements } => {
                [vec![Command::DeleteSet(table(), Arc::clone(present))], with_elements(wanted, elements)].concat()
            }
            Self::Element { set, wanted, present } => {
                let (delete, add) = (elements(present), elements(wanted));
                let delete = (!delete.is_empty()).then(|| Command::DeleteElements(table(), Arc::clone(set), delete));
                let add = (!add.is_empty()).then(|| Command::AddElements(table(), Arc::clone(set), add));
                delete.into_iter().chain(add).collect()
            }
            Self::StaleClient { set, element } => {
                let elements = [element.clone()].into_iter().collect();
                vec![Command::DeleteElements(table(), Arc::clone(set), elements)]
            }
        }
    }
}

impl DifferenceKind {
    /// The set and the key, if the difference is an element.
    #[must_use]
    pub fn element(&self) -> Option<(&str, &[u8])> {
        match self {
            Self::Element { set, wanted, present } => {
                let held = wanted.as_ref().or(present.as_ref())?;
                Some((&*set.name, held.element.key.as_slice()))
            }
            _ => None,
        }
    }

    /// The name of the chain or set that differs or that has the element; `None` for the table, for objects of other types, and if the name
    /// could not be read.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        Some(match self {
            Self::NoTable | Self::Dormant | Self::Table(_) | Self::Object(_) => return None,
            Self::Unreadable(error) => error.name.as_deref()?,
            Self::NoChain(content) | Self::Rules { wanted: content, .. } | Self::OtherChain { wanted: content, .. } => {
                &content.chain.name
            }
            Self::SurplusChain(chain, _) => &chain.name,
            Self::NoSet { set, .. }
            | Self::SurplusSet(set)
            | Self::OtherSet { wanted: set, .. }
            | Self::Element { set, .. }
            | Self::StaleClient { set, .. } => &set.name,
        })
    }

    /// The comments of the wanted and of the present object; for an element, its own comment and that of its set. Most comments of Services'
    /// objects contain the name of a service port.
    #[must_use]
    pub fn comments(&self) -> Vec<&str> {
        let comments = match self {
            Self::NoChain(content) | Self::Rules { wanted: content, .. } => [content.chain.comment.as_deref(), None],
            Self::SurplusChain(chain, _) => [chain.comment.as_deref(), None],
            Self::OtherChain { wanted, present } => [wanted.chain.comment.as_deref(), present.comment.as_deref()],
            Self::NoSet { set, .. } | Self::SurplusSet(set) | Self::StaleClient { set, .. } => {
                [set.comment.as_deref(), None]
            }
            Self::OtherSet { wanted, present, .. } => [wanted.comment.as_deref(), present.comment.as_deref()],
            // In a map that belongs to one service port, the map has its name as a comment, and the elements have no comment.
            Self::Element { set, wanted, present } => {
                let mut of_element =
                    [wanted, present].into_iter().flatten().map(|held| held.element.comment.as_deref());
                [of_element.find_map(|comment| comment), set.comment.as_deref()]
            }
            _ => [None, None],
        };
        comments.into_iter().flatten().collect()
    }
}
