//! Measures how much of the kernel's memory a table takes.
//!
//! The kernel charges elements to the control group of the process that adds them; the bench moves into a new control group, fills a table
//! and reads the usage. Needs control groups of version 1 with the memory controller, or of version 2; a row of the table says so if there
//! are none.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, process, thread};

use component::config::Config;
use nft::{Element, Value};
use rules::ruleset::Layout;

use crate::cluster::{Shape, counting};
use crate::fresh;
use crate::measure::Bench;
use crate::support::cluster;
use crate::table::Table;

/// The bytes that every element takes in addition to key, value and comment: the links of the hash table, and the offset of each of them
/// (`struct nft_rhash_elem` in `net/netfilter/nft_set_hash.c`).
const ELEMENT_HEAD: usize = 32;

/// Adds rows about the memory of the tables of a cluster.
pub(crate) fn rows(table: &mut Table, shape: Shape) {
    let Some(group) = Group::new() else {
        table.text("kernel memory of the table", "no memory control group", "");
        return;
    };
    let size = format!("{} x {}", shape.services, shape.endpoints);
    let measured = measure(&group, &cluster::config(), shape);
    let Measured { bytes, elements, least } = measured;
    table.text(&format!("kernel memory of the table, {size}"), &format!("{} MB", bytes / 1_000_000), "");
    table.text("  bytes an element, hash tables included", &(bytes / elements.max(1)).to_string(), "");
    table.number("  against elements x their minimal size", ratio(bytes, least), "1.2");
    for counters in ["services", "endpoints"] {
        let counting = measure(&group, &counting(counters), shape);
        table.text(&format!("  with counters of {counters}"), &format!("{} MB", counting.bytes / 1_000_000), "");
        table.number("    against none", ratio(counting.bytes, bytes), "");
    }
}

/// The memory that a table takes.
struct Measured {
    bytes: usize,
    elements: usize,
    /// The sum of the least sizes of the table's elements.
    least: usize,
}

fn measure(group: &Group, config: &Config, shape: Shape) -> Measured {
    fresh(|| {
        let before = group.used();
        let mut bench = Bench::new(config, Layout::Maps, shape);
        // The kernel frees the memory of a transaction a moment after it.
        thread::sleep(Duration::from_secs(2));
        let bytes = group.used().saturating_sub(before);
        let sets = bench.content().tables.into_iter().flat_map(|table| table.sets);
        let sizes: Vec<usize> = sets.flat_map(|(_, elements)| elements).map(|element| least(&element)).collect();
        Measured { bytes, elements: sizes.len(), least: sizes.iter().sum() }
    })
}

#[allow(clippy::cast_precision_loss, reason = "a ratio for people to read")]
fn ratio(bytes: usize, least: usize) -> f64 {
    bytes as f64 / least as f64
}

/// Returns the least memory of an element: the sum of its parts, rounded up to a size class of the kernel's allocator.
fn least(element: &Element) -> usize {
    let value = match &element.value {
        Value::None => 0,
        Value::Data(data) => data.len().next_multiple_of(8),
        Value::Verdict(_) => 16,
    };
    let comment = element.comment.as_ref().map_or(0, |comment| comment.len() + 5);
    let bytes = ELEMENT_HEAD + element.key.len().next_multiple_of(8) + value + comment;
    [64, 96, 128, 192, 256].into_iter().find(|class| bytes <= *class).unwrap_or(bytes)
}

/// A control group that this process moves into; it moves back and removes the group at the end.
struct Group {
    directory: PathBuf,
    /// The name of the file with the bytes of kernel memory that are charged to the group.
    file: &'static str,
}

impl Group {
    fn new() -> Option<Self> {
        [("/sys/fs/cgroup/memory", "memory.kmem.usage_in_bytes"), ("/sys/fs/cgroup", "memory.stat")]
            .into_iter()
            .find_map(|(root, file)| Self::below(Path::new(root), file))
    }

    fn below(root: &Path, file: &'static str) -> Option<Self> {
        let directory = root.join(format!("kpn-bench-{}", process::id()));
        fs::create_dir(&directory).ok()?;
        let group = Self { directory, file };
        let is_usable = group.directory.join(file).exists()
            && fs::write(group.directory.join("cgroup.procs"), process::id().to_string()).is_ok();
        is_usable.then_some(group)
    }

    /// Returns the kernel memory that is charged to the group, in bytes.
    fn used(&self) -> usize {
        let text = fs::read_to_string(self.directory.join(self.file)).unwrap_or_default();
        let plain = text.trim().parse().ok();
        let line = || text.lines().find_map(|line| line.strip_prefix("kernel ")?.trim().parse().ok());
        plain.or_else(line).unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(root) = self.directory.parent() {
            let _back = fs::write(root.join("cgroup.procs"), process::id().to_string());
        }
        // Removing the group fails while memory is still charged to it; an empty group costs nothing.
        let _gone = fs::remove_dir(&self.directory);
    }
}
