//! The real kernel, as another version of it or a busy machine would be: without `destroy element`, which is there from Linux 6.3 on,
//! and slow between a request and its execution.
//!
//! Invariant: what it refuses in place of an old kernel is refused with the error of an old kernel, before anything is sent.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nft::{Command, CommitError, Committed, Element, ReadError, Refusal, Set, TableDump, TableName};
use node::kernel::{ForeignWrites, Kernel, Netfilter};
use rules::conntrack::{Flow, Listing};
use rules::model::Family;

/// Which kernel it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// As the one that runs this test.
    Present,
    /// Before Linux 6.3.
    Old,
}

/// What was done so far, and what is to happen.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// How long the next transaction waits before it is sent.
    pub(crate) wait: Duration,
    /// Transactions that were tried.
    pub(crate) tried: usize,
    /// Those of them that were refused.
    pub(crate) refused: usize,
}

/// The kernel of the network namespace of the thread that opened it.
#[derive(Clone)]
pub(crate) struct Aged {
    inner: Rc<RefCell<Netfilter>>,
    age: Age,
    pub(crate) orders: Rc<RefCell<Orders>>,
}

impl Aged {
    pub(crate) fn open(age: Age) -> Self {
        let inner = Netfilter::open().expect("netlink sockets can be opened (needs root)");
        Self { inner: Rc::new(RefCell::new(inner)), age, orders: Rc::default() }
    }
}

impl Kernel for Aged {
    fn commit(&mut self, commands: &[Command]) -> Result<Committed, CommitError> {
        let mut orders = self.orders.borrow_mut();
        sleep(std::mem::take(&mut orders.wait));
        orders.tried += 1;
        let unknown = |command: &Command| matches!(command, Command::DestroyElements(..));
        let outcome = match commands.iter().position(unknown).filter(|_| self.age == Age::Old) {
            Some(command) => {
                const EINVAL: i32 = 22;
                let object = commands[command].to_string();
                Err(CommitError::Refused(vec![Refusal {
                    command: Some(command),
                    element: None,
                    object,
                    errno: EINVAL,
                    message: None,
                }]))
            }
            None => self.inner.borrow_mut().commit(commands),
        };
        orders.refused += usize::from(outcome.is_err());
        outcome
    }

    fn read(&mut self, table: &TableName) -> Result<Option<TableDump>, ReadError> {
        self.inner.borrow_mut().read(table)
    }

    fn elements(&mut self, table: &TableName, set: &Set) -> Result<Vec<Element>, ReadError> {
        self.inner.borrow_mut().elements(table, set)
    }

    fn reading(&mut self) {
        self.inner.borrow_mut().reading();
    }

    fn foreign_writes(&mut self, tables: &[TableName], now: Instant) -> Result<ForeignWrites, ReadError> {
        self.inner.borrow_mut().foreign_writes(tables, now)
    }

    fn flows(
        &mut self,
        family: Family,
        listing: Listing,
        is_wanted: &mut dyn FnMut(&Flow) -> bool,
    ) -> io::Result<Vec<Flow>> {
        self.inner.borrow_mut().flows(family, listing, is_wanted)
    }

    fn delete_flows(&mut self, flows: &[Flow], reset_at: Option<IpAddr>) -> io::Result<usize> {
        self.inner.borrow_mut().delete_flows(flows, reset_at)
    }

    fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        self.inner.borrow_mut().addresses()
    }
}
