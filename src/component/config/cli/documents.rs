//! Generates documents from the definition of the command line, as clap does for `--help`: shell completion and a man page. Pure.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, ValueEnum, ValueHint, value_parser};
use clap_complete::shells;
use clap_mangen::Man;

use super::Described;
use super::help::wrapped;

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

/// Completes names of Services and frontends in bash: `kube-proxy services --names` reads them from the kernel. Calls clap's function
/// first, which completes options and their fixed values. Takes the words from the line, because bash splits them at colons and `=`.
const BASH_NAMES: &str = r#"
_kube_proxy_names() {
    local line="${COMP_LINE:0:COMP_POINT}" word before kind=
    word="${line##*[[:space:]]}"
    before="${line%"$word"}"
    before="${before%"${before##*[![:space:]]}"}"
    before="${before##*[[:space:]]}"
    if [[ "$word" == --*=* ]]; then
        before="${word%%=*}"
        word="${word#*=}"
    fi
    _kubeproxy "$1" "$word" "$before"
    case "${COMP_WORDS[1]} $before" in
        "changes --service") kind=services ;;
        "explain --to" | "trace --to") kind=targets ;;
        services\ -n | services\ --namespace | probe\ -n | probe\ --namespace) kind=namespaces ;;
        services\ -o | services\ --output | services\ --interval | services\ --healthz-address) ;;
        probe\ -o | probe\ --output | probe\ --timeout | probe\ --healthz-address) ;;
        services\ * | probe\ *) [[ "$word" == -* || "$COMP_CWORD" -lt 2 ]] || kind=frontends ;;
    esac
    if [[ -n "$kind" ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$1" services --names="$kind" 2>/dev/null)" -- "$word")
    fi
    # Bash replaces only what follows the last colon.
    if [[ "$word" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
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

/// Hints for values that are names in the kernel's tables, as `services --names` lists them. clap has no hint for such names, so these
/// constants use hints that no other argument of this program uses. [`ZSH_WORDS`] and [`FISH_WORDS`] replace the functions that clap's
/// scripts call for these hints with functions that list the names. clap's script for fish calls none for positional arguments;
/// [`FISH_NAMES`] adds it.
const SERVICES: ValueHint = ValueHint::Username;
const TARGETS: ValueHint = ValueHint::Hostname;
const NAMESPACES: ValueHint = ValueHint::CommandName;
const FRONTENDS: ValueHint = ValueHint::Url;

/// Pairs of a text in clap's script for zsh and the text that replaces it.
const ZSH_WORDS: [(&str, &str); 4] = [
    (":_users'", ":_kube_proxy_services'"),
    (":_hosts'", ":_kube_proxy_targets'"),
    (":_command_names -e'", ":_kube_proxy_namespaces'"),
    (":_urls'", ":_kube_proxy_frontends'"),
];
/// The zsh functions that complete names. They follow clap's functions, because zsh requires `#compdef` in the script's first line.
const ZSH_NAMES: &str = r#"
_kube_proxy_services() {
    _kube_proxy_names services
}
_kube_proxy_targets() {
    _kube_proxy_names targets
}
_kube_proxy_namespaces() {
    _kube_proxy_names namespaces
}
_kube_proxy_frontends() {
    _kube_proxy_names frontends
}
_kube_proxy_names() {
    local -a names
    names=(${(f)"$(_call_program names kube-proxy services --names=$1 2>/dev/null)"})
    compadd -a names
}
"#;

/// Pairs of a text in clap's script for fish and the text that replaces it.
const FISH_WORDS: [(&str, &str); 4] = [
    ("(__fish_complete_users)", "(__fish_kube_proxy_names services)"),
    ("(__fish_print_hostnames)", "(__fish_kube_proxy_names targets)"),
    ("(__fish_complete_command)", "(__fish_kube_proxy_names namespaces)"),
    // clap's function calls `argparse`, which fails while the value of a proxy flag is incomplete. Without this line the function would
    // return that failure, and fish would complete nothing.
    ("    or return\n", "    or return 0\n"),
];
/// The fish function that completes names, and its use for the arguments of `services` and `probe`: clap's script completes only flags.
const FISH_NAMES: &str = r#"
function __fish_kube_proxy_names
    kube-proxy services --names=$argv 2>/dev/null
end
complete -c kube-proxy -n "__fish_kube_proxy_using_subcommand services probe" -f -a "(__fish_kube_proxy_names frontends)"
"#;

/// The arguments for whose values the shell completes names of files and directories.
const FILES: [&str; 7] =
    ["boot-id-file", "config", "diff", "kubeconfig", "machine-id-file", "manifests", "write-config-to"];
/// The values to complete for flags whose type does not list its values.
const VALUES: [(&str, &[&str]); 5] = [
    ("detect-local-mode", &["BridgeInterface", "ClusterCIDR", "InterfaceNamePrefix", "NodeCIDR"]),
    ("ipvs-scheduler", &["mh", "rr", "sh"]),
    ("kube-api-content-type", &["application/json", "application/vnd.kubernetes.protobuf"]),
    ("logging-format", &["json", "text"]),
    ("proxy-mode", &["iptables", "ipvs", "nftables"]),
];

/// Adds the commands that print documents.
pub(super) fn add_to(line: Command) -> Command {
    let shell = Arg::new("shell").required(true).value_name("SHELL").value_parser(value_parser!(Shell));
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

/// Describes the values of an argument for completion: fixed ones, names, files, or nothing to complete. `flags` are those of the proxy.
fn with_values(arg: Arg, flags: &[Described]) -> Arg {
    if !arg.get_action().takes_values() || !arg.get_possible_values().is_empty() {
        return arg;
    }
    let id = arg.get_id().to_string();
    // In the script for zsh, a colon would end the name of the value, so such a name is replaced.
    let has_colon = arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.contains(':')));
    let arg = if has_colon { arg.value_name("VALUE") } else { arg };
    let kind = flags.iter().find(|flag| flag.name == id).map_or("", |flag| flag.kind);
    let is_word = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let words: Vec<&'static str> = match VALUES.iter().find(|(name, _)| *name == id) {
        Some((_, words)) => words.to_vec(),
        None if kind == "bool" => vec!["true", "false"],
        None if kind.contains('|') => kind.split('|').filter(is_word).collect(),
        None => Vec::new(),
    };
    match id.as_str() {
        _ if !words.is_empty() => arg.value_parser(PossibleValuesParser::new(words)),
        "service" => arg.value_hint(SERVICES),
        "to" => arg.value_hint(TARGETS),
        "names" => arg.value_hint(FRONTENDS),
        "namespace" => arg.value_hint(NAMESPACES),
        id if FILES.contains(&id) => arg.value_hint(ValueHint::AnyPath),
        _ => arg.value_hint(ValueHint::Other),
    }
}

/// The completion script for the shell that the user named.
///
/// # Errors
/// None in practice: clap's scripts are UTF-8, and its script for zsh ends in the way that [`zsh`] expects.
pub(super) fn completion(line: Command, matches: &ArgMatches) -> Result<String, String> {
    let flags = super::described();
    let with_values = |arg| with_values(arg, &flags);
    let mut line = line.mut_args(with_values).mut_subcommands(|command| command.mut_args(with_values));
    let mut script = Vec::new();
    let shell = matches.get_one("shell").unwrap_or(&Shell::Bash);
    match shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut line, BASH_PROGRAM, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut line, PROGRAM, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut line, PROGRAM, &mut script),
    }
    let script = String::from_utf8(script).map_err(|error| error.to_string())?;
    match shell {
        Shell::Bash => {
            let (own, program) = (format!("-o default {BASH_PROGRAM}\n"), format!("-o default {PROGRAM}\n"));
            Ok(script.replace(&own, &program) + BASH_NAMES)
        }
        Shell::Zsh => zsh(&script),
        Shell::Fish => Ok(replaced(&script, &FISH_WORDS) + FISH_NAMES),
    }
}

fn replaced(script: &str, words: &[(&str, &str)]) -> String {
    words.iter().fold(script.to_owned(), |script, (words, names)| script.replace(words, names))
}

/// Adds the completion of names to clap's script for zsh, before its last lines, which call or register clap's function.
fn zsh(script: &str) -> Result<String, String> {
    const LAST: &str = "\nif [ \"$funcstack[1]\"";
    let (functions, last) = script.rsplit_once(LAST).ok_or("the script of clap has no end as expected")?;
    Ok(replaced(functions, &ZSH_WORDS) + ZSH_NAMES + LAST + last)
}

/// The man page of the program, followed by the help text of each command that is not hidden.
///
/// # Errors
/// None in practice: the page is written to memory.
pub(super) fn man_page(line: Command) -> Result<String, String> {
    let mut line = line.name(PROGRAM);
    line.build();
    let mut page = Vec::new();
    Man::new(line.clone()).section("8").render(&mut page).map_err(|error| error.to_string())?;
    let page = String::from_utf8(page).map_err(|error| error.to_string())?;
    // Replace clap_mangen's title, in which the fields after an empty date move up, and its synopsis, which lists every flag.
    let (_, behind) = page.split_once(".SH DESCRIPTION\n").ok_or("the man page has no description")?;
    let mut page = format!("{MAN_HEAD}.SH DESCRIPTION\n{behind}");
    for command in line.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name().to_uppercase();
        let help = wrapped(&command.clone().render_help().to_string());
        page += &format!(".SH \"COMMAND {name}\"\n.nf\n{}\n.fi\n", escaped(help.trim_end()));
    }
    Ok(page)
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
