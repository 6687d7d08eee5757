//! A kernel that fails when the test says so; it wraps a kernel that carries out the transactions.
//!
//! Takes the test's orders: how the next transactions and the next reads fail, and which elements are refused for ever. Like the real
//! kernel, it changes nothing when it refuses, and its acknowledgement may get lost after it carried everything out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use nft::decode::DecodeError;
use nft::{Batch, Command, CommitError, Committed, Element, ReadError, Refusal, Set, TableDump, TableName};
use node::kernel::{ForeignWrites, Kernel};
use rules::conntrack::{Flow, Listing};
use rules::model::Family;

/// How a transaction or a read ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The command at this position (modulo the number of commands) is refused with this error number; a read fails with it.
    Refuse(i32, usize),
    /// The whole batch is refused.
    RefuseAll(i32),
    /// The transaction is carried out, and the acknowledgement gets lost.
    LoseAck,
    /// The socket is dead, before anything was sent.
    SocketDeath,
    /// No fault.
    Fine,
}

/// The faults to come, and a count of what was done.
#[derive(Default)]
pub(crate) struct Orders {
    pub(crate) commits: VecDeque<Fault>,
    pub(crate) reads: VecDeque<Fault>,
    /// Elements that are refused for ever, and whether the kernel's error names the element.
    pub(crate) poison: Option<fn(&Element) -> bool>,
    pub(crate) tells_element: bool,
    /// The faults that transactions and reads met, in this order; a fault that is still in `commits` or `reads` was never met.
    pub(crate) met: Vec<Fault>,
    /// The error with which the kernel refuses every deletion of an element that rules added.
    pub(crate) no_forgetting: Option<i32>,
    /// The map of clients that cannot be read.
    pub(crate) unreadable: Option<std::sync::Arc<str>>,
    /// The size in bytes of the largest batch that is taken; `None` for no limit.
    pub(crate) most_bytes: Option<usize>,
    /// The number of transactions that were tried.
    pub(crate) tried: usize,
    /// The number of tables that were read.
    pub(crate) read: usize,
    /// The error numbers of the next checks for writes of other programs; later checks succeed.
    pub(crate) foreign_errors: VecDeque<i32>,
    /// The error numbers of the next lists of UDP flows; later lists succeed.
    pub(crate) flow_errors: VecDeque<i32>,
    /// The UDP flows.
    pub(crate) flows: Vec<Flow>,
    /// The number of lists of UDP flows that were asked for.
    pub(crate) flow_lists: usize,
}

/// The kernel. The test may change its orders at any time.
#[derive(Clone)]
pub(crate) struct Faulty<K> {
    pub(crate) inner: K,
    pub(crate) orders: Rc<RefCell<Orders>>,
}

impl<K> Faulty<K> {
    pub(crate) fn new(inner: K) -> Self {
        Self { inner, orders: Rc::default() }
    }

    fn next_fault(&self, queue: impl Fn(&mut Orders) -> &mut VecDeque<Fault>) -> Fault {
        let mut orders = self.orders.borrow_mut();
        let fault = queue(&mut orders).pop_front().unwrap_or(Fault::Fine);
        orders.met.push(fault);
        fault
    }

    fn kept(&self, commands: &[Command]) -> Option<Refusal> {
        let errno = self.orders.borrow().no_forgetting?;
        commands.iter().enumerate().find_map(|(number, command)| match command {
            Command::DeleteElements(_, set, _) | Command::DestroyElements(_, set, _) if set.flags.dynamic => {
                Some(Refusal {
                    command: Some(number),
                    element: Some(0),
                    object: command.to_string(),
                    errno,
                    message: None,
                })
            }
            _ => None,
        })
    }

    fn poisoned(&self, commands: &[Command]) -> Option<Refusal> {
        let orders = self.orders.borrow();
        let poison = orders.poison?;
        commands.iter().enumerate().find_map(|(number, command)| {
            let Command::AddElements(_, set, elements) = command else { return None };
            let at = elements.iter().position(|element| poison(&element.element()))?;
            let object = format!("element of {}", set.name);
            let element = orders.tells_element.then_some(at);
            Some(Refusal { command: Some(number), element, object, errno: EINVAL, message: None })
        })
    }
}

/// The error numbers that faults use.
pub(crate) const EINVAL: i32 = 22;

fn refusal(command: Option<usize>, errno: i32) -> CommitError {
    let object = command.map_or_else(|| "batch".to_owned(), |number| format!("command {number}"));
    CommitError::Refused(vec![Refusal { command, element: None, object, errno, message: None }])
}

fn death() -> io::Error {
    io::Error::from_raw_os_error(9)
}

impl<K: Kernel> Kernel for Faulty<K> {
    fn commit(&mut self, commands: &[Command]) -> Result<Committed, CommitError> {
        self.orders.borrow_mut().tried += 1;
        match self.next_fault(|orders| &mut orders.commits) {
            Fault::Refuse(errno, position) => return Err(refusal(Some(position % commands.len()), errno)),
            Fault::RefuseAll(errno) => return Err(refusal(None, errno)),
            Fault::SocketDeath => return Err(CommitError::Socket(death())),
            Fault::LoseAck => {
                self.inner.commit(commands)?;
                return Err(CommitError::Unconfirmed);
            }
            Fault::Fine => {}
        }
        if let Some(most) = self.orders.borrow().most_bytes {
            let bytes = Batch::encode(commands)?.datagram_len();
            if bytes > most {
                return Err(CommitError::OverLimit { bytes, limit: most });
            }
        }
        match self.kept(commands).or_else(|| self.poisoned(commands)) {
            Some(refusal) => Err(CommitError::Refused(vec![refusal])),
            None => self.inner.commit(commands),
        }
    }

    fn read(&mut self, table: &TableName) -> Result<Option<TableDump>, ReadError> {
        self.orders.borrow_mut().read += 1;
        match self.next_fault(|orders| &mut orders.reads) {
            Fault::Refuse(errno, _) | Fault::RefuseAll(errno) => {
                Err(ReadError::Socket(io::Error::from_raw_os_error(errno)))
            }
            Fault::LoseAck | Fault::SocketDeath => Err(ReadError::Socket(death())),
            Fault::Fine => self.inner.read(table),
        }
    }

    fn elements(&mut self, table: &TableName, set: &Set) -> Result<Vec<Element>, ReadError> {
        if self.orders.borrow().unreadable.as_ref() == Some(&set.name) {
            let error = DecodeError { object: "element", name: Some(set.name.clone()), attribute: "data" };
            return Err(ReadError::Decode(error));
        }
        self.inner.elements(table, set)
    }

    fn reading(&mut self) {
        self.inner.reading();
    }

    fn foreign_writes(&mut self, tables: &[TableName], now: Instant) -> Result<ForeignWrites, ReadError> {
        if let Some(errno) = self.orders.borrow_mut().foreign_errors.pop_front() {
            return Err(ReadError::Socket(io::Error::from_raw_os_error(errno)));
        }
        self.inner.foreign_writes(tables, now)
    }

    fn flows(
        &mut self,
        family: Family,
        listing: Listing,
        is_wanted: &mut dyn FnMut(&Flow) -> bool,
    ) -> io::Result<Vec<Flow>> {
        if listing != Listing::Udp {
            return Ok(Vec::new());
        }
        let mut orders = self.orders.borrow_mut();
        orders.flow_lists += 1;
        if let Some(errno) = orders.flow_errors.pop_front() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let is_listed = |flow: &&Flow| Family::of(flow.original_destination.ip()) == family && is_wanted(flow);
        Ok(orders.flows.iter().filter(is_listed).cloned().collect())
    }

    fn delete_flows(&mut self, flows: &[Flow], reset_at: Option<IpAddr>) -> io::Result<usize> {
        self.orders.borrow_mut().flows.retain(|flow| !flows.contains(flow));
        self.inner.delete_flows(flows, reset_at)
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        self.inner.addresses()
    }
}
