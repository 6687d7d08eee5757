//! Generates documents from the definition of the command line, as clap does for `--help`: shell completion and a man page. Pure.

use clap::{ArgMatches, Command, ValueEnum, value_parser};
use clap_complete::shells;
use clap_mangen::Man;

use super::table::GROUPS;

/// The command that prints completion for a shell.
pub(super) const COMPLETION: &str = "completion";
/// The command that prints the man page.
pub(super) const MAN: &str = "man";

/// The name by which the program is called.
const PROGRAM: &str = "kube-proxy";

/// A shell for which there is a completion script.
#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The program's name within the script for bash: with a dash in it, clap_complete 4.6.11 does not find the options of commands.
const BASH_PROGRAM: &str = "kubeproxy";

/// Completes the names of Services in bash: `kube-proxy services --names` reads them from the kernel. Calls clap's function first, which
/// completes options.
const BASH_NAMES: &str = r#"
_kube_proxy_names() {
    _kubeproxy "$@"
    if [[ "$3" == --service || ( "${COMP_WORDS[1]}" =~ ^(services|probe)$ && "$2" != -* && "$3" =~ ^([^-]|--stats|--watch) ) ]]; then
        COMPREPLY+=($(compgen -W "$("$1" services --names 2>/dev/null)" -- "$2"))
    fi
}
complete -F _kube_proxy_names -o bashdefault -o default kube-proxy
"#;

/// The beginning of the man page. It has no date, so that each build gives the same page.
const MAN_HEAD: &str = concat!(
    ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq \'\n.TH KUBE-PROXY 8 \"\" \"kube-proxy-nft ",
    env!("CARGO_PKG_VERSION"),
    "\"\n.SH NAME\nkube-proxy \\- programs Kubernetes Services into nf_tables over netlink\n\
     .SH SYNOPSIS\n\\fBkube-proxy\\fR [\\fIflags\\fR]\n.br\n\\fBkube-proxy\\fR \\fIcommand\\fR [\\fIarguments\\fR]\n",
);

/// Replacements in clap's script for zsh, so that arguments that name a Service are completed with names of Services and not of files.
const ZSH_WORDS: [(&str, &str); 3] = [
    ("without any, all:_default'", "without any, all:_kube_proxy_services'"),
    ("frontends or node ports:_default'", "frontends or node ports:_kube_proxy_services'"),
    (":NAMESPACE/NAME:_default'", ":NAMESPACE/NAME:_kube_proxy_services'"),
];
/// The zsh function that completes names of Services. It cannot be put at the beginning, because the script's first line must stay first.
const ZSH_NAMES: &str = r#"
_kube_proxy_services() {
    local -a names
    names=(${(f)"$(_call_program services kube-proxy services --names 2>/dev/null)"})
    compadd -a names
}
"#;

/// Completes names of Services in fish.
const FISH_NAMES: &str = r#"
function __fish_kube_proxy_services
    kube-proxy services --names 2>/dev/null
end
complete -c kube-proxy -n "__fish_kube_proxy_using_subcommand services probe" -f -a "(__fish_kube_proxy_services)"
complete -c kube-proxy -n "__fish_kube_proxy_using_subcommand changes" -l service -x -a "(__fish_kube_proxy_services)"
"#;

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

/// The completion script for the shell that the user named.
///
/// # Errors
/// None in practice: clap's scripts are UTF-8, and its script for zsh ends in the way that [`zsh`] expects.
pub(super) fn completion(mut line: Command, matches: &ArgMatches) -> Result<String, String> {
    let mut script = Vec::new();
    let names = match matches.get_one("shell").unwrap_or(&Shell::Bash) {
        Shell::Bash => {
            clap_complete::generate(shells::Bash, &mut line, BASH_PROGRAM, &mut script);
            BASH_NAMES
        }
        Shell::Zsh => {
            clap_complete::generate(shells::Zsh, &mut line, PROGRAM, &mut script);
            return zsh(String::from_utf8(script).map_err(|error| error.to_string())?);
        }
        Shell::Fish => {
            clap_complete::generate(shells::Fish, &mut line, PROGRAM, &mut script);
            FISH_NAMES
        }
    };
    let script = String::from_utf8(script).map_err(|error| error.to_string())?;
    Ok(script.replace(&format!("-o default {BASH_PROGRAM}\n"), &format!("-o default {PROGRAM}\n")) + names)
}

/// Adds the completion of Service names to clap's script for zsh, before its last lines, which call or register clap's function.
fn zsh(script: String) -> Result<String, String> {
    const LAST: &str = "\nif [ \"$funcstack[1]\"";
    let (functions, last) = script.rsplit_once(LAST).ok_or("the script of clap has no end as expected")?;
    let functions = ZSH_WORDS.iter().fold(functions.to_owned(), |script, (words, names)| script.replace(words, names));
    Ok(functions + ZSH_NAMES + LAST + last)
}

/// The man page of the program, followed by the help text of each command.
///
/// # Errors
/// None in practice: the page is written to memory.
pub(super) fn man_page(line: Command) -> Result<String, String> {
    let mut line = line.name(PROGRAM);
    line.build();
    let mut page = Vec::new();
    Man::new(line.clone()).section("8").render(&mut page).map_err(|error| error.to_string())?;
    let page = String::from_utf8(page).map_err(|error| error.to_string())?;
    // Replace clap_mangen's title, which has no field for a date, and its synopsis, which lists every flag.
    let (_, behind) = page.split_once(".SH DESCRIPTION\n").ok_or("the man page has no description")?;
    let mut page = format!("{MAN_HEAD}.SH DESCRIPTION\n{behind}");
    for command in line.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name().to_uppercase();
        let help = without_flags_of_the_proxy(command.clone()).render_long_help().to_string();
        page += &format!(".SH \"COMMAND {name}\"\n.nf\n{}\n.fi\n", escaped(help.trim_end()));
    }
    Ok(page)
}

/// Hides the proxy's flags in the help of a command, because the man page has described them before.
fn without_flags_of_the_proxy(command: Command) -> Command {
    let is_told = |arg: &clap::Arg| arg.get_help_heading().is_some_and(|heading| GROUPS.contains(&heading));
    let (name, has_them) = (command.get_name().to_owned(), command.get_arguments().any(is_told));
    let command = command.mut_args(|arg| if is_told(&arg) { arg.hide(true) } else { arg });
    if has_them { command.after_help(format!("{name} takes the flags of the proxy as well.")) } else { command }
}

/// Escapes text for a man page, so that roff takes no line of it as a request.
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
