//! The help texts of commands: a command shows its own flags and some of the proxy's, in lines that fit a terminal. Pure.
//!
//! Invariant: no line of a help text is wider than [`WIDTH`], unless a single word or a flag with its value is.

use clap::{Arg, Command};

use super::table::GROUPS;

/// The width of help texts in columns: that of a standard terminal.
const WIDTH: usize = 80;
/// The rightmost column at which descriptions begin beside their flags; further to the right they stand below them.
const MOST: usize = 46;
/// The indentation of descriptions below their flags.
const BELOW: usize = 10;

/// The flags of the proxy that the help text of another command shows, because they say from where the command takes its objects, and for
/// which node.
const SHOWN: [&str; 4] = ["config", "hostname-override", "kubeconfig", "manifests"];
/// The text that the help of a command shows in place of the hidden flags.
const OTHERS: &str = "All flags of the proxy are accepted too, see kube-proxy --help.";

/// Hides most flags of the proxy in the help text of a command that takes them.
pub(super) fn shortened(command: Command) -> Command {
    let is_of_proxy = |arg: &Arg| arg.get_help_heading().is_some_and(|heading| GROUPS.contains(&heading));
    if !command.get_arguments().any(is_of_proxy) {
        return command;
    }
    let own = command.get_after_help().map_or_else(String::new, |text| format!("{text}\n\n"));
    let command = command.mut_args(|arg| match is_of_proxy(&arg) {
        true if SHOWN.contains(&arg.get_id().as_str()) => arg.help_heading(None::<&'static str>),
        true => arg.hide_short_help(true),
        false => arg,
    });
    command.after_help(own + OTHERS)
}

/// Breaks lines that are wider than [`WIDTH`] between words. The continuation of a line has the line's indentation. For a flag or a command
/// it begins at the column of the description, or at [`BELOW`] if that column is to the right of [`MOST`].
pub(super) fn wrapped(text: &str) -> String {
    text.lines().map(|line| wrapped_line(line) + "\n").collect()
}

fn wrapped_line(line: &str) -> String {
    if line.chars().count() <= WIDTH {
        return line.trim_end().to_owned();
    }
    let start = line.len() - line.trim_start().len();
    let gap = line[start..].find("  ").map(|gap| start + gap).filter(|_| start > 0);
    let column = gap.map(|gap| line.len() - line[gap..].trim_start().len());
    let (mut out, text, indent) = match column {
        _ if line.starts_with("Usage: ") => ("Usage:".to_owned(), &line[6..], 7),
        Some(column) if column <= MOST => (line[..column].trim_end().to_owned(), &line[column..], column),
        Some(column) => (line[..column].trim_end().to_owned() + "\n", &line[column..], BELOW),
        None => (String::new(), line, start),
    };
    let mut at = out.rsplit('\n').next().map_or(0, |last| last.chars().count());
    for word in text.split_whitespace() {
        let length = word.chars().count();
        // The first word begins at the indentation, the others follow after a space.
        let begin = if at < indent || at == 0 { indent } else { at + 1 };
        if begin + length > WIDTH && begin > indent {
            out.push('\n');
            at = 0;
        }
        let begin = if at < indent || at == 0 { indent } else { at + 1 };
        out.extend(std::iter::repeat_n(' ', begin - at));
        out += word;
        at = begin + length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_lines_are_broken_between_words_and_indented_like_their_text() {
        let words = "word ".repeat(20);
        let text =
            format!("Usage: kube-proxy {words}\n  -o, --output <FORMAT>  {words}\n{words}\n  {words}\nshort\n\n");
        let wrapped = wrapped(&text);
        assert!(wrapped.lines().all(|line| line.len() <= WIDTH && line == line.trim_end()), "{wrapped}");
        let starts: Vec<usize> = wrapped.lines().map(|line| line.len() - line.trim_start().len()).collect();
        assert_eq!(starts, [0, 7, 2, 25, 0, 0, 2, 2, 0, 0], "{wrapped}");
        assert_eq!(wrapped.split_whitespace().count(), text.split_whitespace().count());
    }

    #[test]
    fn a_description_far_to_the_right_stands_below_its_flag() {
        let flag = format!("      --{} <string>", "a".repeat(40));
        let wrapped = wrapped(&format!("{flag}  {}", "word ".repeat(10)));
        assert_eq!(wrapped, format!("{flag}\n          {}\n", "word ".repeat(10).trim_end()));
    }
}
