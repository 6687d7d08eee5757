//! Helpers for unit tests that compare generated parts of the documentation pages in `deploy` with the code.

use std::{env, fs};

/// Checks that the page contains `text` between the begin and end marks of `part`. If environment variable `BLESS` is set, writes `text`
/// between the marks instead.
///
/// # Panics
/// Panics when the page cannot be read or written, contains a different text, or lacks the marks.
pub fn assert_generated(page: &str, part: &str, text: &str) {
    let path = format!("{}/../../deploy/{page}", env!("CARGO_MANIFEST_DIR"));
    let present = fs::read_to_string(&path).unwrap();
    let [begin, end] = ["begin", "end"].map(|mark| format!("<!-- {mark}: {part}, written by `make pages` -->\n"));
    let (before, rest) = present.split_once(&begin).unwrap_or_else(|| panic!("{path} has no line {begin}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{path} has no line {end}"));
    let wanted = format!("{before}{begin}\n{}\n\n{end}{after}", text.trim());
    if env::var_os("BLESS").is_some() {
        fs::write(&path, &wanted).unwrap();
    } else {
        assert!(
            present == wanted,
            "deploy/{page} is not what the code says: run `make pages`, and look at the difference"
        );
    }
}

/// Returns a Markdown table. A `|` within a cell is escaped, so that it does not end the cell.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let line = |cells: &[String]| {
        format!("| {} |\n", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
    };
    let head = line(&head.map(str::to_owned));
    head + &format!("|{}\n", "---|".repeat(N)) + &rows.iter().map(|row| line(row)).collect::<String>()
}
