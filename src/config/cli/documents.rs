//! Documents about the command line, from the same source as `--help`: completion for shells, and a man page.
//!
//! Takes the whole command line, gives text. Pure.

use clap::{ArgMatches, Command, ValueEnum, value_parser};
use clap_complete::shells;
use clap_mangen::Man;

/// The command that prints completion for a shell.
pub(super) const COMPLETION: &str = "completion";
/// The command that prints the man page.
pub(super) const MAN: &str = "man";

/// The name by which the program is called.
const PROGRAM: &str = "kube-proxy";

/// A shell that completes words.
#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Adds the commands that print documents.
pub(super) fn add_to(line: Command) -> Command {
    let shell = clap::Arg::new("shell").required(true).value_name("SHELL").value_parser(value_parser!(Shell));
    let completion = Command::new(COMPLETION)
        .about("Print a script that completes the words of this command line")
        .arg(shell.help("The shell to complete for"))
        .after_help(
            "Examples:\n  source <(kube-proxy completion bash)\n  kube-proxy completion zsh > \"${fpath[1]}/_kube-proxy\"\n  \
             kube-proxy completion fish > ~/.config/fish/completions/kube-proxy.fish",
        );
    let man = Command::new(MAN)
        .about("Print the man page")
        .after_help("Example:\n  kube-proxy man > /usr/local/share/man/man8/kube-proxy.8");
    line.subcommand(completion).subcommand(man)
}

/// The completion script for the shell of these matches.
///
/// # Errors
/// None in practice: the text is UTF-8.
pub(super) fn completion(mut line: Command, matches: &ArgMatches) -> Result<String, String> {
    let mut script = Vec::new();
    match matches.get_one("shell").unwrap_or(&Shell::Bash) {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut line, PROGRAM, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut line, PROGRAM, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut line, PROGRAM, &mut script),
    }
    String::from_utf8(script).map_err(|error| error.to_string())
}

/// The man page: the program's, and the help of each command at its end.
///
/// # Errors
/// None in practice: it is written to memory.
pub(super) fn man_page(line: Command) -> Result<String, String> {
    let mut line = line.name(PROGRAM);
    line.build();
    let mut page = Vec::new();
    Man::new(line.clone()).section("8").render(&mut page).map_err(|error| error.to_string())?;
    let mut page = String::from_utf8(page).map_err(|error| error.to_string())?;
    for command in line.get_subcommands_mut().filter(|command| command.get_name() != super::RENDER) {
        let name = command.get_name().to_uppercase();
        let help = command.render_long_help().to_string();
        page += &format!(".SH \"COMMAND {name}\"\n.nf\n{}\n.fi\n", escaped(help.trim_end()));
    }
    Ok(page)
}

/// Text as lines of a man page, none of which is a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines =
        text.lines().map(|line| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_of_help_is_a_request_of_the_man_page() {
        assert_eq!(escaped(".a\n'b\nc -d \\e"), "\\&.a\n\\&'b\nc \\-d \\ee");
    }
}
